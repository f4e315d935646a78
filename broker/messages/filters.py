"""Filters at work: which queue entries must be read, which of their records match; and scanning in steps.

Tags     the queue entry has the hash of a message's tag: only entries with a matching hash are read, and of these only
         records with a matching tag are delivered ("Aa" and "BB" have the same hash)
SQL      every record is read, a few at a time; only the properties in the expression are decoded. How many are read in
         one turn depends on the cost of the expression per record and per byte

If the code of an entry is not a hash, its record is always read: in SCHEDULE_TOPIC_XXXX the code is a time, and stores
of Apache RocketMQ with extended queues have an address there. All this is pure.

A fetch may have to scan many messages of which few match. The number of messages that are scanned per turn of the event
loop is limited for all fetches together. One fetch continues per turn, the one that has waited longest, so that sends
and other fetches run in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ...proto.byte_ranges import bytes_at, java_hashes
from ...proto.clock import Clock
from ...proto.errors import InvalidFilter
from ...proto.filters.expressions import parse_tags, tag_expression
from ...proto.filters.normal_form import canonical_sql, normalised
from ...proto.filters.sql_evaluation import CACHED_MAX, compiled
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import TAGS
from ...proto.property_ranges import PropertyRanges
from ...proto.record_run import Longs, as_bytes, parse_run, starts_of
from ...store.slices import Slices
from ..consume_stats import ConsumeStats
from ..metrics.traffic import TrafficCounts
from ..queue_stats import Filtering, filtering_of
from ..timing.timers import Timers
from ..timing.turns import StepScheduler

Mask = NDArray[np.bool_]

_INT_MIN: Final = -(1 << 31)
_INT_MAX: Final = (1 << 31) - 1

#: The share of a turn that an SQL filter may use, and its cost in ns: each record, each test of it,
#: each lookup of a property, each byte of a value that is searched, and of the property string. The
#: costs are rather too high.
_TURN_NS: Final = 10_000_000
_RECORD_NS: Final = 1_000
_TEST_NS: Final = 600
_NAME_NS: Final = 500
_SEARCHED_BYTE_NS: Final = 3.0
_SPLIT_BYTE_NS: Final = 0.25
_SQL_RECORDS_MAX: Final = 2_000


#: Up to this number of tags, each is searched in all records at once; beyond it, each record's tag
#: is looked up, 1 µs per record.
_SOUGHT_TAGS_MAX: Final = 256
_MANY_TAGS_RECORDS_MAX: Final = 5_000

#: Bytes of records that are scanned in one turn; one record may be larger.
LOOKED_AT_BYTES_MAX: Final = 1024 * 1024
#: Continues a scan; returns False if it has nothing more to do.
LookOn = Callable[[], bool]


class FilterChoice(Protocol):
    """A filter at work."""

    #: How many records one turn of the event loop scans.
    records_max: int
    bytes_max: int
    #: Identity of the filter in statistics.
    filtering: Filtering

    def candidates(self, tags_codes: Longs) -> Mask:
        """Return for queue entries with TAGS_CODES whether their records must be read."""
        ...

    def wanted(self, seen: Slices) -> Mask:
        """Return for the records in SEEN whether they match."""
        ...


class TagChoice:
    """Matches messages with one of TAGS."""

    #: A few array operations scan all of them.
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
    """Matches messages for which EXPRESSION is true."""

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
    """Return the share of the limit of one turn that scanning SEEN with CHOICE uses."""
    return max(len(seen) / choice.records_max, len(seen.records) / choice.bytes_max)


def _no_hashes(tags_codes: Longs) -> Mask:
    return (tags_codes < _INT_MIN) | (tags_codes > _INT_MAX)


def _properties(seen: Slices) -> PropertyRanges:
    return PropertyRanges(seen.records, parse_run(seen.records, starts_of(seen.sizes)))


def choice_of(wire: pb.Filter) -> FilterChoice | None:
    """Return the filter for WIRE; None: every message matches. Raises InvalidFilter. The latest ones are cached."""
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
    normalised(pb.Filter(kind=kind))  # Raises an error that lists the valid kinds.
    raise InvalidFilter(f"filter kind {kind} is not supported", field="kind", value=kind)


# --- turns of the loop


class Filters:
    """Continues scans in later turns of the event loop. TIMERS use CLOCK, a virtual clock stops until all scans are
    done.

    consume_stats, traffic: where deliveries are recorded.
    """

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        consume_stats: ConsumeStats | None = None,
        traffic: TrafficCounts | None = None,
    ) -> None:
        self.consume_stats = ConsumeStats() if consume_stats is None else consume_stats
        self.traffic = TrafficCounts() if traffic is None else traffic
        self._turns = StepScheduler(timers, clock, self._turn)
        #: Scans that wait for a turn, one per fetch.
        self._going_on: deque[LookOn] = deque()
        self._spent = 0.0

    @property
    def has_turn(self) -> bool:
        """Return whether more may be scanned in this turn of the event loop."""
        return self._spent < 1

    def spend(self, share: float) -> None:
        """Count SHARE of this turn's limit as used; the last scan may exceed the limit."""
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._spent += share

    def _begin_turn(self) -> None:
        self._spent = 0.0

    def go_on(self, look_on: LookOn) -> None:
        """Call LOOK_ON in a later turn, after the scans that came before."""
        self._going_on.append(look_on)
        self._turns.soon()

    def _turn(self) -> None:
        while self.has_turn and self._going_on and not self._going_on.popleft()():
            pass
        if self._going_on:
            self._turns.soon()

    def stop(self) -> None:
        """Stop all scans."""
        self._going_on.clear()
        self._turns.stop()
