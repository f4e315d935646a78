"""Lookups of single messages: by key, unique id, tags, or offset message id.

The index contains hashes only. Each candidate is compared with the requested text, newest first, some per turn of the
event loop, until there are enough: other keys with the same hash hide nothing. An id of 32 or 56 digits may be an
offset id or a Java client's unique id; the lookup tries the offset id first.

LOOKUPS_MAX lookups by text run at a time, each with up to one answer's bytes. WAITING_MAX more wait; further ones get
Overloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Final, Literal, TypeVar, cast

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY
from ...proto.record import Record, decode_or_none
from ...store.message_store import MessageStore

T = TypeVar("T")
#: Limit of the bytes of one answer; the newest record is always included.
_ANSWER_BYTES: Final = 16 * 1024 * 1024
_END_OF_TIME: Final = (1 << 63) - 1
#: The index rounds times down to whole seconds since the begin of its file.
_INDEX_ROUNDS_MS: Final = 999
LOOKUPS_MAX: Final = 16
WAITING_MAX: Final = 1_000


class Lookups:
    """Answers lookups from STORE. CHECK_TOPIC raises TopicNotFound."""

    def __init__(self, check_topic: Callable[[str], object], store: MessageStore) -> None:
        self._check_topic = check_topic
        self._store = store
        self._places = asyncio.Semaphore(LOOKUPS_MAX)
        self._asked = 0

    async def lookup(self, request: pb.LookupRequest) -> pb.LookupReply:
        """Return the newest matching records, oldest first. `more` means that there may be others.

        Raises InvalidArgument or TopicNotFound. If nothing matches, the answer is empty.
        """
        which = request.WhichOneof("by")
        if which is None or not getattr(request, which):
            raise errors.InvalidArgument(
                "by: set the key, message id or tag to search for", field="by"
            )
        if which == "message_id":
            return await self._by_id(request)
        self._check_topic(request.topic)
        if which == "tag":
            return await self._by_text(request, request.tag, "T")
        return await self._by_text(request, request.key, "K")

    async def _by_id(self, request: pb.LookupRequest) -> pb.LookupReply:
        found = None
        try:
            found = self._store.by_message_id(request.message_id)
        except errors.InvalidArgument:
            if not request.topic:
                raise
            # It is no offset id. It may be a unique id, which is in the index under its topic.
        if found is not None and self._is(found, request):
            return pb.LookupReply(records=found)
        if request.topic:
            self._check_topic(request.topic)
            return await self._by_text(request, request.message_id, "K")
        return pb.LookupReply()

    def _is(self, data: bytes, request: pb.LookupRequest) -> bool:
        """Return whether the record in DATA has the requested id: another record may be at the offset now."""
        record = decode_or_none(data)
        if record is None or record.message_id != request.message_id.upper():
            return False
        # Without a topic, the user may see all messages.
        return not request.topic or (
            record.topic == request.topic and is_in_its_queue(self._store, data, record)
        )

    async def _by_text(
        self, request: pb.LookupRequest, text: str, kind: Literal["K", "T"]
    ) -> pb.LookupReply:
        _check_not_negative(request)
        most = LOOKUPS_MAX + WAITING_MAX
        if self._asked >= most:
            raise errors.Overloaded(
                f"{self._asked} lookups are running or waiting, the limit is {most}: try again later",
                field="lookups",
                limit=most,
                value=self._asked,
            )
        self._asked += 1
        try:
            async with self._places:
                return await self._search(request, text, kind)
        finally:
            self._asked -= 1

    async def _search(
        self, request: pb.LookupRequest, text: str, kind: Literal["K", "T"]
    ) -> pb.LookupReply:
        most = self._store.config.lookup_results_max
        limit = min(request.max_messages or most, most)
        found: list[bytes] = []  # Newest first.
        found_bytes = 0
        times = range(request.begin_ms, (request.end_ms or _END_OF_TIME) + 1)
        looked_up = self._store.looked_up(
            request.topic,
            text,
            begin_ms=max(0, times.start - _INDEX_ROUNDS_MS),
            end_ms=times.stop - 1,
            kind=kind,
        )
        while True:
            try:
                data = next(looked_up)
            except StopIteration as end:
                return _answer(found, limit, more=end.value)
            if data is None:
                await asyncio.sleep(0)
            elif _bears(data, request.topic, text, kind, times):
                found.append(data)
                found_bytes += len(data)
                if len(found) > limit or found_bytes > _ANSWER_BYTES:
                    return _answer(found, limit, more=True)


def is_in_its_queue(store: MessageStore, data: bytes, record: Record) -> bool:
    """Return whether DATA, with RECORD, is what the queue of RECORD has at its offset.

    Where a client names any log offset, a body may contain what looks like a record, whose properties reach into the
    next messages of the log.
    """
    try:
        found = store.read_queue(record.topic, record.queue_id, record.queue_offset, 1, 1)
    except errors.PocketMQError:
        return False
    return found.records == data


def in_steps(
    steps: Generator[None, None, T],
    done: Callable[[T], object],
    fail: Callable[[errors.PocketMQError], object],
) -> None:
    """Run STEPS, one per turn of the event loop, the first at once; call DONE with the result.

    An error of the first step is raised. FAIL is called with a later one.
    """

    def go_on() -> None:
        try:
            advance()
        except errors.PocketMQError as error:
            fail(error)

    def advance() -> None:
        try:
            next(steps)
        except StopIteration as end:
            done(end.value)
        else:
            asyncio.get_running_loop().call_soon(go_on)

    advance()


def at_once(steps: Generator[None, None, T]) -> T:
    """Run STEPS completely in this turn; return the result. Use it for few steps, or while nothing is served yet."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def _bears(data: bytes, topic: str, text: str, kind: Literal["K", "T"], times: range) -> bool:
    """Return whether the record in DATA is of TOPIC, has TEXT as a key or as its tags, and was stored in TIMES."""
    if text.encode() not in data:  # Excludes most records that only share the hash.
        return False
    record = decode_or_none(data)
    if record is None or record.topic != topic or record.store_timestamp_ms not in times:
        return False
    return text in (_keys(record) if kind == "K" else [record.properties.get(TAGS)])


def _answer(found: list[bytes], limit: int, *, more: bool) -> pb.LookupReply:
    """Return the answer with the newest of FOUND, which is sorted newest first: up to LIMIT records that fit."""
    matching = found[::-1]
    newest = _newest(matching, limit)
    return pb.LookupReply(records=b"".join(newest), more=more or len(newest) < len(matching))


def _check_not_negative(request: pb.LookupRequest) -> None:
    for field in ("max_messages", "begin_ms", "end_ms"):
        value = getattr(request, field)
        if value < 0:
            raise errors.InvalidArgument(
                f"{field} is {value}: must not be negative", field=field, limit=0, value=value
            )


def _newest(records: list[bytes], limit: int) -> list[bytes]:
    """Return the newest of RECORDS: up to LIMIT, as many as fit into an answer, and at least one."""
    size = 0
    for count, record in enumerate(reversed(records)):
        size += len(record)
        if count == limit or (count and size > _ANSWER_BYTES):
            return records[-count:]
    return records


def _keys(record: Record) -> list[str]:
    keys = record.properties.get(KEYS, "").split(KEY_SEPARATOR)
    return [*keys, record.properties.get(UNIQ_KEY, "")]
