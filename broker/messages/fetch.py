"""Fetches: raw records of a queue from an offset on, at once or when there is enough of them.

A fetch waits in purgatory under its (topic, queue) until `min_bytes` are there or its time is over; each append to the
queue lets it try again. Long waits of one length end in bunches, up to 1/64 later than asked for. The records are
slices of the log, joined once; nothing is decoded here, and bodies are compared with their CRCs only where the request
says so: our own clients do that themselves, and ask again when they find a wrong one.

A fetch with a filter (filters.py) looks on from its offset, some messages a turn, and answers with those that are
wanted, once there is enough of them, at most HELD_BYTES_MAX: what was found is kept until then, and nothing is looked
at twice. At the end of the queue it waits for messages to come; those that are not wanted do not end its wait. When its
time is over it answers with what there is, and with how far it has looked, so that the group can commit beyond what it
does not want.

Finding single messages: by key, unique id, tags, or offset message id.

The index knows hashes only, so every candidate is compared with what was asked for, newest first, some in each turn of
the loop, until there is enough: keys of the same hash hide nothing. An id of 32 or 56 digits may be an
offset id or a Java client's unique id: the first is tried first.

Bounds: LOOKUPS_MAX look-ups by text go on at a time, each with one answer's bytes at most; WAITING_MAX wait for them,
and one more is refused with Overloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Final, Literal, NamedTuple, TypeVar, cast

import numpy as np

from ...proto import errors
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY
from ...proto.record import FIXED_SIZE_V4, Record, decode_record
from ...store.message_store import MessageStore
from ...store.slices import Slices
from ..accounts import QueueLook
from ..config import BrokerConfig
from ..groups.offsets import Offsets
from ..timing.timers import Purgatory, WatchedOperation, end_of_wait
from ..topics_and_groups import Topics
from .filters import FilterChoice, Filters, Mask, choice_of, share_of_turn

#: A fetch that has found so much answers, however much it asked to wait for: it keeps that in memory.
HELD_BYTES_MAX: Final = 64 * 1024
#: Told of the answer to one fetch, exactly once.
Done = Callable[[pb.FetchReply], None]


class FetchLimits(NamedTuple):
    """How much an answer may have at most."""

    messages: int
    size_bytes: int


class Fetches:
    """Answers fetches from STORE."""

    def __init__(  # noqa: PLR0913  (it stands between these parts)
        self,
        config: BrokerConfig,
        topics: Topics,
        offsets: Offsets,
        store: MessageStore,
        purgatory: Purgatory,
        now_ms: Callable[[], int],
        filters: Filters,
        renew_lease: Callable[[str, str, int, int], None] | None = None,
    ) -> None:
        """RENEW_LEASE: of group, topic and queue; raises LeaseLost where they are not held under the token."""
        self._config = config
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._filters = filters
        self._renew_lease = renew_lease
        #: Hear of each fetch; return what is told its answer.
        self.on_fetch: list[Callable[[pb.FetchRequest, Done], Done]] = []
        #: How many fetches were asked for.
        self.asked = 0

    def fetch(self, request: pb.FetchRequest, done: Done) -> WatchedOperation | None:
        """Tell DONE the answer, now or later; return the wait, which its owner may cancel, None if it is over."""
        self.asked += 1
        try:
            self._check(request)
            if request.HasField("looked_at"):
                done(self._note(request))
                return None
            for hear in self.on_fetch:
                done = hear(request, done)
            fetch = self._operation(request, done)
        except errors.PocketMQError as error:
            done(pb.FetchReply(fetch_id=request.fetch_id, error=to_wire(error)))
            return None
        if request.group:
            self._offsets.pulled(request.topic, request.group, request.queue, request.offset)
        if request.min_bytes <= 0 or request.max_wait_ms <= 0:
            if isinstance(fetch, FilteredFetch):
                fetch.look_once()
            else:
                fetch.on_deadline()
            return None
        wait_ms = min(request.max_wait_ms, self._config.fetch_wait_max_ms)
        key = (request.topic, request.queue)
        deadline_ms = end_of_wait(self._now_ms(), wait_ms)
        waiting = self._purgatory.complete_or_watch(fetch, key, deadline_ms)
        if waiting is not None and isinstance(fetch, FilteredFetch):
            fetch.watched(self._purgatory, waiting)
        return waiting

    def _operation(self, request: pb.FetchRequest, done: Done) -> _Fetch | FilteredFetch:
        limits = limits_of(request, self._config)
        choice = choice_of(request.filter) if request.HasField("filter") else None
        if choice is None:
            return _Fetch(request, limits, self._store, self._filters, done)
        return FilteredFetch(request, limits, choice, self._store, self._filters, done)

    def _note(self, request: pb.FetchRequest) -> pb.FetchReply:
        """Note for the group what a follower has answered to REQUEST; return what is told to that."""
        told, begin = request.looked_at, request.offset
        low, high = self._store.queue_bounds(request.topic, request.queue)
        count = told.next_offset - begin
        wanted = begin - 1 + np.cumsum(np.array(told.steps, np.int64))
        if not (
            request.group
            and count > 0
            and told.next_offset <= high
            and 0 <= told.filtered_count <= count - len(wanted)
            and 0 not in told.steps
            and (not len(wanted) or wanted[-1] < told.next_offset)
        ):
            raise errors.InvalidArgument(
                f"looked_at of offset {begin} has {len(wanted)} messages and {told.filtered_count} stepped over, up to"
                f" {told.next_offset}: a group is needed, and as many offsets, rising, of a queue that ends at {high}",
                field="looked_at",
                value=told.next_offset,
                limit=high,
            )
        key = (request.group, request.topic, request.queue)
        choice = choice_of(request.filter)
        self._offsets.pulled(request.topic, request.group, request.queue, begin)
        if choice is None:
            self._filters.accounts.look_at_all(key, begin, told.next_offset)
        else:
            look = QueueLook(begin, told.next_offset, wanted, told.filtered_count, 0)
            self._filters.accounts.look(key, look, queue_end=high, filtering=choice.filtering)
        return pb.FetchReply(
            fetch_id=request.fetch_id,
            next_offset=told.next_offset,
            min_offset=low,
            max_offset=high,
        )

    def _check(self, request: pb.FetchRequest) -> None:
        for field in ("offset", "max_messages", "max_bytes", "min_bytes", "max_wait_ms"):
            value = getattr(request, field)
            if value < 0:
                raise errors.InvalidArgument(
                    f"{field} is {value}: must not be negative", field=field, limit=0, value=value
                )
        self._topics.for_reading(request.topic, request.queue)
        if request.lease and self._renew_lease is not None:
            self._renew_lease(request.group, request.topic, request.queue, request.lease)


class _Fetch:
    """One fetch: an operation of the purgatory."""

    __slots__ = (
        "_done",
        "_filters",
        "_limits",
        "_log_offset_enough",
        "_request",
        "_seen",
        "_store",
    )

    def __init__(
        self,
        request: pb.FetchRequest,
        limits: FetchLimits,
        store: MessageStore,
        filters: Filters,
        done: Done,
    ) -> None:
        self._request = request
        self._limits = limits
        self._store = store
        self._filters = filters
        self._done = done
        self._seen: Slices | None = None
        #: While less of the log than that may be seen there cannot be enough: no try is repeated in vain.
        self._log_offset_enough = 0

    def try_complete(self) -> bool:
        request = self._request
        _, high = self._store.queue_bounds(request.topic, request.queue)
        if request.offset == high or self._store.confirmed_offset < self._log_offset_enough:
            return False
        reply = self._read()
        missing_bytes = min(request.min_bytes, self._limits[1]) - len(reply.records)
        missing_messages = self._limits[0] - (reply.next_offset - request.offset)
        stuck = not reply.records and reply.next_offset > request.offset  # stepped over a hole
        is_full = reply.next_offset < reply.max_offset  # the next record does not fit in any more
        is_over = is_full or stuck or reply.error.name
        if missing_bytes > 0 and missing_messages > 0 and not is_over:
            growth = min(missing_bytes, missing_messages * FIXED_SIZE_V4)
            self._log_offset_enough = self._store.confirmed_offset + growth
            return False
        self._answer(reply)
        return True

    def on_deadline(self) -> None:
        self._answer(self._read())

    def _answer(self, reply: pb.FetchReply) -> None:
        request, seen = self._request, self._seen
        if request.group and seen is not None:
            if len(seen):
                self._filters.traffic.delivered(
                    request.group, request.topic, len(seen), len(seen.records)
                )
            key, end = (request.group, request.topic, request.queue), seen.next_offset
            if reply.lost_count:
                look = QueueLook(request.offset, end, seen.queue_offsets, 0, seen.lost)
                self._filters.accounts.look(key, look, queue_end=seen.max_offset)
            else:
                self._filters.accounts.look_at_all(key, request.offset, end)
        self._done(reply)

    def _read(self) -> pb.FetchReply:
        reply, self._seen = read_once(self._store, self._request, self._limits)
        return reply


def limits_of(request: pb.FetchRequest, config: BrokerConfig) -> FetchLimits:
    """Return how many messages and bytes the answer to REQUEST may have."""
    messages = min(request.max_messages or config.fetch_messages_max, config.fetch_messages_max)
    size = min(request.max_bytes or config.fetch_bytes_default, config.fetch_bytes_max)
    return FetchLimits(messages, size)


def read_once(
    store: MessageStore, request: pb.FetchRequest, limits: FetchLimits
) -> tuple[pb.FetchReply, Slices | None]:
    """Return the answer that STORE has for REQUEST, which has no filter, now; and what was seen, None for an error."""
    try:
        found = store.read_queue(
            request.topic,
            request.queue,
            request.offset,
            limits.messages,
            limits.size_bytes,
            check_crcs=request.check_crcs,
        )
    except errors.QueueNotFound:
        return _never_written(request), None
    except errors.PocketMQError as error:
        return _failed(request, store, error), None
    reply = pb.FetchReply(
        fetch_id=request.fetch_id,
        records=found.records,
        next_offset=found.next_offset,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        lost_count=found.lost,
    )
    return reply, found


def _failed(
    request: pb.FetchRequest, store: MessageStore, error: errors.PocketMQError
) -> pb.FetchReply:
    """Return the answer that the queue cannot be read because of ERROR."""
    low, high = store.queue_bounds(request.topic, request.queue)
    return pb.FetchReply(
        fetch_id=request.fetch_id, min_offset=low, max_offset=high, error=to_wire(error)
    )


def _never_written(request: pb.FetchRequest) -> pb.FetchReply:
    """Return the answer for a queue that the topic has and the store has nothing of: it is empty."""
    reply = pb.FetchReply(fetch_id=request.fetch_id)
    if request.offset != 0:
        error = errors.OffsetOutOfRange(
            f"offset {request.offset} of {request.topic}/{request.queue} lies outside 0 to 0",
            offset=request.offset,
            min_offset=0,
            max_offset=0,
        )
        reply.error.CopyFrom(to_wire(error))
    return reply


# --- a fetch with a filter


class FilteredFetch:
    """One fetch: an operation of the purgatory."""

    def __init__(
        self,
        request: pb.FetchRequest,
        limits: FetchLimits,
        choice: FilterChoice,
        store: MessageStore,
        filters: Filters,
        done: Done,
    ) -> None:
        self._request = request
        self._limits = limits
        self._choice = choice
        self._store = store
        self._filters = filters
        self._done = done
        self._next = request.offset
        self._found: list[bytes] = []
        self._found_bytes = self._found_count = self._stepped = self._lost = 0
        self._looked = False
        #: Is there a record that does not fit in any more?
        self._is_full = False
        #: Does a later turn look on? Then nothing else does.
        self._goes_on = False
        self._watch: tuple[Purgatory, WatchedOperation] | None = None

    def watched(self, purgatory: Purgatory, waiting: WatchedOperation) -> None:
        """Hear that PURGATORY watches this fetch as WAITING."""
        self._watch = purgatory, waiting

    def try_complete(self) -> bool:
        if self._goes_on or self._next == self._end():
            return False
        if not self._filters.has_turn:
            self._goes_on = True
            self._filters.go_on(self._look_on)
            return False
        before = self._next
        error = self._look()
        if error is not None or self._is_enough():
            self._answer(error)
            return True
        if before < self._next != self._end():
            self._goes_on = True
            self._filters.go_on(self._look_on)
        return False

    def on_deadline(self) -> None:
        self._answer(None if self._looked or not self._filters.has_turn else self._look())

    def look_once(self) -> None:
        """Look at the next messages, in this turn or a later one, and answer."""
        if self._filters.has_turn:
            self.on_deadline()
        else:
            self._filters.go_on(self._look_late)

    def _look_late(self) -> bool:
        self.on_deadline()
        return True

    def _look_on(self) -> bool:
        self._goes_on = False
        return self._watch is not None and self._watch[0].try_again(self._watch[1])

    def _end(self) -> int:
        return self._store.queue_bounds(self._request.topic, self._request.queue)[1]

    def _is_enough(self) -> bool:
        request, limits = self._request, self._limits
        enough = min(max(request.min_bytes, 1), limits.size_bytes, HELD_BYTES_MAX)
        return self._is_full or self._found_bytes >= enough or self._found_count >= limits.messages

    def _look(self) -> pb.FetchReply | None:
        """Look at the next messages; return the answer that says why that cannot be."""
        self._looked = True
        request, limits = self._request, self._limits
        room_bytes = limits.size_bytes - self._found_bytes
        try:
            seen = self._store.read_queue(
                request.topic,
                request.queue,
                self._next,
                min(limits.messages - self._found_count, self._choice.records_max),
                min(room_bytes, self._choice.bytes_max),
                self._choice.candidates,
                check_crcs=request.check_crcs,
            )
        except errors.QueueNotFound:
            return _never_written(request)
        except errors.PocketMQError as error:
            return None if self._found else _failed(request, self._store, error)
        if self._found and len(seen.records) > room_bytes:
            self._is_full = True
        else:
            self._take(seen)
        return None

    def _take(self, seen: Slices) -> None:
        self._filters.spend(share_of_turn(self._choice, seen))
        wanted = self._choice.wanted(seen)
        count = int(wanted.sum())
        stepped = seen.turned_down + len(seen) - count
        request = self._request
        if request.group:
            look = QueueLook(
                self._next, seen.next_offset, seen.queue_offsets[wanted], stepped, seen.lost
            )
            self._filters.accounts.look(
                (request.group, request.topic, request.queue),
                look,
                queue_end=seen.max_offset,
                filtering=self._choice.filtering,
            )
        if count:
            found = _kept(seen, wanted)
            self._found.append(found)
            self._found_bytes += len(found)
            self._found_count += count
        self._stepped += stepped
        self._lost += seen.lost
        self._next = seen.next_offset

    def _answer(self, error: pb.FetchReply | None) -> None:
        if error is not None:
            self._done(error)
            return
        request = self._request
        if request.group and self._found:
            self._filters.traffic.delivered(
                request.group, request.topic, self._found_count, self._found_bytes
            )
        low, high = self._store.queue_bounds(request.topic, request.queue)
        self._done(
            pb.FetchReply(
                fetch_id=request.fetch_id,
                records=b"".join(self._found),
                next_offset=self._next,
                min_offset=low,
                max_offset=high,
                filtered_count=self._stepped,
                lost_count=self._lost,
            )
        )


def _kept(seen: Slices, wanted: Mask) -> bytes:
    """Return the records of SEEN that are WANTED, joined."""
    if wanted.all():
        return seen.records
    ends = np.cumsum(seen.sizes)
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    bounds = np.concatenate((np.zeros(1, np.int64), ends))[edges].tolist()
    pieces = map(slice, bounds[::2], bounds[1::2])
    return b"".join(map(memoryview(seen.records).__getitem__, pieces))


# ---------------------------------------------------------------- finding single messages


T = TypeVar("T")

#: Bytes of one answer: the newest that fit, at least one.
_ANSWER_BYTES: Final = 16 * 1024 * 1024
_END_OF_TIME: Final = (1 << 63) - 1
LOOKUPS_MAX: Final = 16
WAITING_MAX: Final = 1_000


class Lookups:
    """Answers look-ups from STORE. CHECK_TOPIC raises TopicNotFound."""

    def __init__(self, check_topic: Callable[[str], object], store: MessageStore) -> None:
        self._check_topic = check_topic
        self._store = store
        self._places = asyncio.Semaphore(LOOKUPS_MAX)
        self._asked = 0

    async def lookup(self, request: pb.LookupRequest) -> pb.LookupReply:
        """Return the records asked for, the newest ones, oldest first; `more` tells that there may be others.

        Raises InvalidArgument or TopicNotFound; nothing found is an empty answer.
        """
        which = request.WhichOneof("by")
        if which is None or not getattr(request, which):
            raise errors.InvalidArgument(
                "by: give a key, a message id or a tag to look for", field="by"
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
            # Not an offset id: perhaps a unique one, which the index of a topic knows.
        if found is not None and self._is(found, request):
            return pb.LookupReply(records=found)
        if request.topic:
            self._check_topic(request.topic)
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
        most = LOOKUPS_MAX + WAITING_MAX
        if self._asked >= most:
            raise errors.Overloaded(
                f"{self._asked} look-ups are under way or wait, the limit is {most}: try again later",
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
        found: list[bytes] = []  # The newest first.
        found_bytes = 0
        looked_up = self._store.looked_up(
            request.topic,
            text,
            begin_ms=request.begin_ms,
            end_ms=request.end_ms or _END_OF_TIME,
            kind=kind,
        )
        while True:
            try:
                data = next(looked_up)
            except StopIteration as end:
                return _answer(found, limit, more=end.value)
            if data is None:
                await asyncio.sleep(0)
            elif _bears(data, request.topic, text, kind):
                found.append(data)
                found_bytes += len(data)
                if len(found) > limit or found_bytes > _ANSWER_BYTES:
                    return _answer(found, limit, more=True)


def in_turns(
    steps: Generator[None, None, T],
    done: Callable[[T], object],
    fail: Callable[[errors.PocketMQError], object],
) -> None:
    """Go through STEPS, one in each turn of the loop, the first at once; tell DONE what they come to.

    What steps or DONE raise is raised if that is at once, and told to FAIL later.
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
    """Return what STEPS come to, in this turn: where they are known to be few, or nothing is served yet."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


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
            raise errors.InvalidArgument(
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
    except errors.InvalidRecord:
        return None


def _keys(record: Record) -> list[str]:
    keys = record.properties.get(KEYS, "").split(KEY_SEPARATOR)
    return [*keys, record.properties.get(UNIQ_KEY, "")]
