"""Filters at work: which queue entries are worth a look, which of their records are wanted, and fetches with a filter.

Tags     the queue entry holds the hash of a message's tag: only entries with a wanted hash are read, and of these
         only records whose tag is a wanted one, letter by letter ("Aa" and "BB" have one hash)
SQL      every record is read, a few at a time; only the properties that the expression names are decoded. How many
         are read in one turn follows from what the expression does with each, and with each byte

An entry whose code is no hash is looked at whatever it is: in SCHEDULE_TOPIC_XXXX it is a time, and stores of Apache
with extended queues keep an address there. All this is pure.

A fetch may be far behind and want little: it looks at some messages a turn, and all together at no more than one may.
One fetch goes on in one turn, the one that has waited longest, so that sends and other fetches have their turns in
between.

A fetch answers once there is enough of what it wants, at most HELD_BYTES_MAX: what was found is kept until then, and
nothing is looked at twice. At the end of the queue it waits for messages to come; those that are not wanted do not end
its wait. When its time is over it answers with what there is, and with how far it has looked, so that the group can
commit beyond what it does not want.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ..proto.byte_ranges import bytes_at
from ..proto.clock import Clock
from ..proto.errors import InvalidFilter, PocketMQError, QueueNotFound
from ..proto.filters.sql.evaluation import CACHED_MAX, compiled
from ..proto.filters.tags import parse_tags, tag_expression
from ..proto.filters.wire import canonical_sql, normalised
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.hash_ranges import java_hashes
from ..proto.properties import TAGS
from ..proto.property_ranges import PropertyRanges
from ..proto.record_run import Longs, as_bytes, parse_run, starts_of
from ..store.message_store import MessageStore
from ..store.slices import Slices
from .accounts.account import Filtering, QueueLook, filtering_of
from .accounts.accounts import Accounts
from .fetch_replies import Done, FetchLimits, failed, never_written
from .timers import Timers, Turns
from .waiting import Purgatory, Waiting

Mask = NDArray[np.bool_]

_INT_MIN: Final = -(1 << 31)
_INT_MAX: Final = (1 << 31) - 1

#: What SQL takes of a turn of the loop, and what it costs: each record, each test of it, each property that is looked
#: up; each byte of a value that is searched, and of the string that a property is looked for in. Rather too much.
_TURN_NS: Final = 10_000_000
_RECORD_NS: Final = 1_000
_TEST_NS: Final = 600
_NAME_NS: Final = 500
_SEARCHED_BYTE_NS: Final = 3.0
_SPLIT_BYTE_NS: Final = 0.25
_SQL_RECORDS_MAX: Final = 2_000


#: Of so many tags each is looked for in all records at once; of more, each record's tag among them, 1 µs a record.
_SOUGHT_TAGS_MAX: Final = 256
_MANY_TAGS_RECORDS_MAX: Final = 5_000

#: Bytes of records that are looked at in one turn; one record may be larger.
LOOKED_AT_BYTES_MAX: Final = 1024 * 1024
#: Looks on; returns False if there is nothing to do any more.
LookOn = Callable[[], bool]
#: A fetch that has found so much answers, however much it asked to wait for: it keeps that in memory.
HELD_BYTES_MAX: Final = 64 * 1024


class FilterChoice(Protocol):
    """A filter at work."""

    #: Records that are looked at in one turn of the loop, and bytes of them.
    records_max: int
    bytes_max: int
    #: Which filter it is, for accounts.
    filtering: Filtering

    def candidates(self, tags_codes: Longs) -> Mask:
        """Tell for queue entries with TAGS_CODES which may be wanted."""
        ...

    def wanted(self, seen: Slices) -> Mask:
        """Tell which of the records that were SEEN are wanted."""
        ...


class TagChoice:
    """Wants messages with one of TAGS."""

    #: A few array operations look at all of them.
    records_max = 20_000
    bytes_max = LOOKED_AT_BYTES_MAX

    def __init__(self, tags: tuple[str, ...]) -> None:
        self._tags = frozenset(tags)
        self.filtering = filtering_of("TAG", tag_expression(tags))
        self._are_sought = len(tags) <= _SOUGHT_TAGS_MAX
        if not self._are_sought:
            self.records_max = _MANY_TAGS_RECORDS_MAX
        self._by_code: dict[int, list[bytes]] = {}
        for tag, code in zip(tags, java_hashes(tags).tolist(), strict=True):
            self._by_code.setdefault(code, []).append(tag.encode())
        self._codes = np.array(sorted(self._by_code), np.int64)

    def candidates(self, tags_codes: Longs) -> Mask:
        if len(self._codes) == 1:
            hashed: Mask = tags_codes == self._codes[0]
        else:
            hashed = np.isin(tags_codes, self._codes)
        return hashed | _no_hashes(tags_codes)

    def wanted(self, seen: Slices) -> Mask:
        found = np.zeros(len(seen), np.bool_)
        if not len(seen):
            return found
        ranges = _properties(seen)
        if not self._are_sought:
            return np.array([tag in self._tags for tag in ranges.texts(TAGS)], np.bool_)
        starts, lengths = ranges.find(TAGS)
        data = as_bytes(seen.records)
        for code, tags in self._by_code.items():
            (rows,) = (seen.tags_codes == code).nonzero()
            for tag in tags if len(rows) else ():
                found[rows] |= (lengths[rows] == len(tag)) & bytes_at(data, starts[rows], tag)
        (odd,) = _no_hashes(seen.tags_codes).nonzero()
        if len(odd):
            texts = ranges.texts(TAGS)
            found[odd] = [texts[row] in self._tags for row in odd.tolist()]
        return found


class SqlChoice:
    """Wants messages for which EXPRESSION is true."""

    def __init__(self, expression: str) -> None:
        self._filter = found = compiled(expression)
        self.filtering = filtering_of("SQL", canonical_sql(expression))
        names = len(found.names)
        record_ns = _RECORD_NS + found.tests * _TEST_NS + names * _NAME_NS
        byte_ns = found.searches * _SEARCHED_BYTE_NS + names * _SPLIT_BYTE_NS
        self.records_max = min(_SQL_RECORDS_MAX, _TURN_NS // record_ns)
        self.bytes_max = int(min(LOOKED_AT_BYTES_MAX, _TURN_NS / (byte_ns or 1)))

    def candidates(self, tags_codes: Longs) -> Mask:
        return np.ones(len(tags_codes), np.bool_)

    def wanted(self, seen: Slices) -> Mask:
        names = self._filter.names
        if not names:
            return np.full(len(seen), self._filter.evaluate(()) is True)
        rows = list(zip(*map(_properties(seen).texts, names), strict=True))
        return np.array(self._filter.matches(rows), np.bool_)


def share_of_turn(choice: FilterChoice, seen: Slices) -> float:
    """Return which part of what CHOICE may look at in one turn SEEN is."""
    return max(len(seen) / choice.records_max, len(seen.records) / choice.bytes_max)


def _no_hashes(tags_codes: Longs) -> Mask:
    return (tags_codes < _INT_MIN) | (tags_codes > _INT_MAX)


def _properties(seen: Slices) -> PropertyRanges:
    return PropertyRanges(seen.records, parse_run(seen.records, starts_of(seen.sizes)))


def choice_of(wire: pb.Filter) -> FilterChoice | None:
    """Return WIRE at work; None: every message is wanted. Raises InvalidFilter. The last ones are kept."""
    if wire.kind == pb.Filter.ALL:
        return None
    return _choice(wire.kind, wire.expression)


@lru_cache(CACHED_MAX)
def _choice(kind: pb.Filter.Kind, expression: str) -> FilterChoice | None:
    if kind == pb.Filter.SQL:
        return SqlChoice(expression)
    if kind == pb.Filter.TAG:
        tags = parse_tags(expression)
        return TagChoice(tags) if tags else None
    normalised(pb.Filter(kind=kind))  # Says which kinds there are.
    raise InvalidFilter(f"filter kind {kind} is not served", field="kind", value=kind)


# --- fetches with a filter


class Filters:
    """Goes on, turn by turn. TIMERS go by CLOCK, which stays where it is while anything is to go on."""

    def __init__(self, timers: Timers, clock: Clock, accounts: Accounts | None = None) -> None:
        self.accounts = Accounts() if accounts is None else accounts
        self._turns = Turns(timers, clock, self._turn)
        #: At most one a fetch that waits.
        self._going_on: deque[LookOn] = deque()
        self._spent = 0.0

    @property
    def has_turn(self) -> bool:
        """May more be looked at in this turn of the loop?"""
        return self._spent < 1

    def spend(self, share: float) -> None:
        """Note that SHARE of what may be looked at in this turn is; the last look may exceed it."""
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._spent += share

    def _begin_turn(self) -> None:
        self._spent = 0.0

    def go_on(self, look_on: LookOn) -> None:
        """Call LOOK_ON in a later turn, after those that came before."""
        self._going_on.append(look_on)
        self._turns.soon()

    def _turn(self) -> None:
        while self.has_turn and self._going_on and not self._going_on.popleft()():
            pass
        if self._going_on:
            self._turns.soon()

    def stop(self) -> None:
        """Go on with nothing any more."""
        self._going_on.clear()
        self._turns.stop()


# ---


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
        self._watch: tuple[Purgatory, Waiting] | None = None

    def watched(self, purgatory: Purgatory, waiting: Waiting) -> None:
        """Hear that PURGATORY watches this fetch as WAITING."""
        self._watch = purgatory, waiting

    def try_complete(self) -> bool:
        if self._goes_on or self._next == self._end():
            return False
        if not self._filters.has_turn:
            self._goes_on = True
            self._filters.go_on(self._look_on)
            return False
        error = self._look()
        if error is not None or self._is_enough():
            self._answer(error)
            return True
        if self._next != self._end():
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
        except QueueNotFound:
            return never_written(request)
        except PocketMQError as error:
            return None if self._found else failed(request, self._store, error)
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
