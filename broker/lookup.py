"""Finding single messages: by key, unique id, tags, or offset message id.

The index knows hashes only, so every candidate is compared with what was asked for, newest first, some in each turn of
the loop, until there is enough: keys of the same hash hide nothing. An id of 32 or 56 digits may be an
offset id or a Java client's unique id: the first is tried first.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from ..proto.errors import InvalidArgument, InvalidRecord
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY
from ..proto.record import Record, decode_record
from ..store.message_store import MessageStore
from .topics import Topics

#: Bytes of one answer: the newest that fit, at least one.
_ANSWER_BYTES: Final = 16 * 1024 * 1024
_END_OF_TIME: Final = (1 << 63) - 1
#: Candidates that the index is asked for first, and how many times more each time that there are not enough among them.
_CANDIDATES: Final = 256
_GROWTH: Final = 8
#: Of one hash, no more of the newest are compared.
CANDIDATES_MAX: Final = 1 << 18
#: Records that are compared in one turn, and bytes of them; one record may be larger.
_TURN_RECORDS: Final = 256
_TURN_BYTES: Final = 1024 * 1024


class Lookups:
    """Answers look-ups from STORE."""

    def __init__(self, topics: Topics, store: MessageStore) -> None:
        self._topics = topics
        self._store = store

    async def lookup(self, request: pb.LookupRequest) -> pb.LookupReply:
        """Return the records asked for, the newest ones, oldest first; `more` tells that there may be others.

        Raises InvalidArgument or TopicNotFound; nothing found is an empty answer.
        """
        which = request.WhichOneof("by")
        if which is None or not getattr(request, which):
            raise InvalidArgument("by: give a key, a message id or a tag to look for", field="by")
        if which == "message_id":
            return await self._by_id(request)
        self._topics.get(request.topic)
        if which == "tag":
            return await self._by_text(request, request.tag, "T")
        return await self._by_text(request, request.key, "K")

    async def _by_id(self, request: pb.LookupRequest) -> pb.LookupReply:
        found = None
        try:
            found = self._store.by_message_id(request.message_id)
        except InvalidArgument:
            if not request.topic:
                raise
            # Not an offset id: perhaps a unique one, which the index of a topic knows.
        if found is not None and self._is(found, request):
            return pb.LookupReply(records=found)
        if request.topic:
            self._topics.get(request.topic)
            return await self._by_text(request, request.message_id, "K")
        return pb.LookupReply()

    def _is(self, data: bytes, request: pb.LookupRequest) -> bool:
        """Does the record in DATA bear the id asked for? Its place may have been taken over by another."""
        record = _decoded(data)
        same_topic = record is not None and request.topic in ("", record.topic)
        return record is not None and same_topic and record.message_id == request.message_id.upper()

    async def _by_text(
        self, request: pb.LookupRequest, text: str, kind: Literal["K", "T"]
    ) -> pb.LookupReply:
        _check_not_negative(request)
        most = self._store.config.lookup_results_max
        limit = min(request.max_messages or most, most)
        found: list[bytes] = []  # The newest first.
        found_bytes = 0
        looked_at: set[int] = set()
        asked = _CANDIDATES
        while True:
            offsets = self._store.candidates(
                request.topic,
                text,
                most=asked,
                begin_ms=request.begin_ms,
                end_ms=request.end_ms or _END_OF_TIME,
                kind=kind,
            )
            records = turn_bytes = 0
            for offset in reversed(offsets):
                if offset in looked_at:
                    continue
                looked_at.add(offset)
                if records == _TURN_RECORDS or turn_bytes > _TURN_BYTES:
                    records = turn_bytes = 0
                    await asyncio.sleep(0)
                data = self._store.read_at(offset) if self._store.is_served(offset) else None
                records += 1
                turn_bytes += 0 if data is None else len(data)
                if data is not None and _bears(data, request.topic, text, kind):
                    found.append(data)
                    found_bytes += len(data)
                    if len(found) > limit or found_bytes > _ANSWER_BYTES:
                        return _answer(found, limit, more=True)
            if len(offsets) < asked or asked >= CANDIDATES_MAX:
                return _answer(found, limit, more=len(offsets) >= asked)
            asked *= _GROWTH
            await asyncio.sleep(0)


def _bears(data: bytes, topic: str, text: str, kind: Literal["K", "T"]) -> bool:
    """Is the record in DATA one of TOPIC with TEXT for a key, or for its tags?"""
    if text.encode() not in data:  # Most of those that only share the hash.
        return False
    record = _decoded(data)
    if record is None or record.topic != topic:
        return False
    return text in (_keys(record) if kind == "K" else [record.properties.get(TAGS)])


def _answer(found: list[bytes], limit: int, *, more: bool) -> pb.LookupReply:
    """Return the answer with the newest of FOUND, which has the newest first: LIMIT at most, and what fits."""
    matching = found[::-1]
    newest = _newest(matching, limit)
    return pb.LookupReply(records=b"".join(newest), more=more or len(newest) < len(matching))


def _check_not_negative(request: pb.LookupRequest) -> None:
    for field in ("max_messages", "begin_ms", "end_ms"):
        value = getattr(request, field)
        if value < 0:
            raise InvalidArgument(
                f"{field} is {value}: must not be negative", field=field, limit=0, value=value
            )


def _newest(records: list[bytes], limit: int) -> list[bytes]:
    """Return the last of RECORDS: at most LIMIT, and as many as fit an answer, but at least one."""
    size = 0
    for count, record in enumerate(reversed(records)):
        size += len(record)
        if count == limit or (count and size > _ANSWER_BYTES):
            return records[-count:]
    return records


def _decoded(data: bytes) -> Record | None:
    try:
        return decode_record(data)
    except InvalidRecord:
        return None


def _keys(record: Record) -> list[str]:
    keys = record.properties.get(KEYS, "").split(KEY_SEPARATOR)
    return [*keys, record.properties.get(UNIQ_KEY, "")]
