"""Delivers delayed messages: copies of their records, appended to the queues that they were sent to.

A record of SCHEDULE_TOPIC_XXXX or of the timer topic names its real queue in REAL_TOPIC and REAL_QID. Its copy keeps
body, flags, born time and host, and all properties, as in Apache RocketMQ. The copy of a scheduled message also gets
TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS. A rolled message returns to the timer topic, with TIMER_ROLL_TIMES one higher.
The real topic need not exist.

A record that can never be delivered is skipped with a warning: it has no readable real queue; its queue is written only
by the broker (a copy there could return here forever); it is damaged; or the store refuses its content. If the store
cannot append now (full, failed, closed), the caller retries before it delivers anything else of that queue.

Source: store-format.md §7.1, §7.2. In a chunk of several hundred, a record needs about 5 µs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...proto import properties as names
from ...proto.errors import InvalidName, PocketMQError, StoreError
from ...proto.facts import Facts
from ...proto.property_ranges import PropertyRanges
from ...proto.record import SYS_TRANSACTION, Buffer
from ...proto.record_copy import RecordCopier
from ...proto.record_run import Longs, RunColumns, parse_run, starts_of
from ...proto.run import Run
from ...proto.topics import NOT_SENDABLE_TOPICS, PROPERTIES_SIZE_MAX, TIMER_TOPIC, check_topic
from ...store.log_writer import Appended
from ..messages.appender import Appender
from .timed_pages import readable

logger = logging.getLogger(__name__)

#: States of a record after a delivery.
DELIVERED: Final = 0
TRY_AGAIN: Final = 1
SKIPPED: Final = 2

#: TIMER_ENQUEUE_MS of a message that was due before it was entered into the timer log.
NEVER_ENQUEUED: Final = (1 << 63) - 1

_INT_MAX: Final = (1 << 31) - 1
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,10}")
#: Limit of remembered queues; beyond it, all are forgotten and looked up again.
_QUEUES_MAX: Final = 10_000
#: Properties that would be wrong on a copy, and those that a scheduled message gets with new
#: values.
_UNTRUE: Final = (names.PROPERTY_CRC, names.PRODUCER_SEQUENCE)
_ANEW: Final = (names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES)

Flags: TypeAlias = NDArray[np.bool_]
#: A topic and a queue number; or the reason why there is none.
_Target: TypeAlias = tuple[str, int] | str
_BACK: Final = (TIMER_TOPIC, 0)


@dataclass(frozen=True, slots=True)
class TimedStamps:
    """Data of scheduled records that is not in their bytes, one value per record.

    Attributes:
        enqueued_ms: When each was entered into the timer log (NEVER_ENQUEUED).
        rolled: Whether it returns to the timer topic, because it is due later than a roll window.
        dequeued_ms: The present time.
    """

    enqueued_ms: Longs
    rolled: Flags
    dequeued_ms: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """The result of delivering a chunk.

    Attributes:
        states: DELIVERED, TRY_AGAIN or SKIPPED, one per record.
        end_offset: The log offset after the last copy; 0: no copies.
        error: Why some records must be retried; None: none must.
    """

    states: NDArray[np.int8]
    end_offset: int
    error: PocketMQError | None

    @property
    def complete(self) -> bool:
        """Whether no record must be retried."""
        return self.error is None


class DelayedDeliveries:
    """Delivers through APPENDS. The event loop owns it."""

    def __init__(self, appends: Appender) -> None:
        self._appends = appends
        self._targets: dict[tuple[bytes, bytes], _Target] = {}

    def deliver(
        self, records: Buffer, columns: RunColumns, stamps: TimedStamps | None = None
    ) -> Delivered:
        """Append copies of RECORDS, which COLUMNS describe, to their real queues. The order within a queue is kept.

        STAMPS are given for records of the timer topic. Invalid records are skipped; they raise nothing.
        """
        chunk = _Chunk(records, columns, stamps, self._targets)
        groups = list(chunk.groups.values())
        for group in groups:
            chunk.make_copies(group)
        runs = chunk.runs(groups)
        outcomes = self._appends.append(runs) if runs else []
        for group, run, outcome in zip(groups, runs, outcomes, strict=True):
            if isinstance(outcome, PocketMQError) and not _is_transient(outcome) and len(run) > 1:
                self._one_by_one(chunk, group)
            else:
                chunk.note(group.target, group.rows, outcome)
        if len(self._targets) > _QUEUES_MAX:
            self._targets.clear()
        return chunk.delivered()

    def _one_by_one(self, chunk: _Chunk, group: _Group) -> None:
        """Append the records of GROUP one by one: the store refuses the content of some."""
        for row, copy in zip(group.rows, group.copies, strict=True):
            (run,) = chunk.runs([_Group(group.target, [row], [copy])])
            (outcome,) = self._appends.append([run])
            chunk.note(group.target, [row], outcome)


def _is_transient(error: PocketMQError) -> bool:
    """Return whether a retry may succeed."""
    return isinstance(error, StoreError)


@dataclass(slots=True)
class _Group:
    """Records for one queue: their rows in the chunk, and the copies."""

    target: tuple[str, int]
    rows: list[int]
    copies: list[bytes]


class _Chunk:
    """One chunk that is being delivered."""

    def __init__(
        self,
        records: Buffer,
        columns: RunColumns,
        stamps: TimedStamps | None,
        targets: dict[tuple[bytes, bytes], _Target],
    ) -> None:
        columns = readable(columns)
        self._ranges = PropertyRanges(records, columns)
        self._copier = RecordCopier(records, columns)
        self._columns = columns
        self._targets = targets
        self._array = np.frombuffer(records, np.uint8)
        self._states = np.full(len(columns), SKIPPED, np.int8)
        self._end_offset = 0
        self._error: PocketMQError | None = None
        self._real_topics = self._values(names.REAL_TOPIC)
        self._dropped = _UNTRUE if stamps is None else _UNTRUE + _ANEW
        self._odd = self._has_any(self._dropped)
        self._rolled = None if stamps is None or not stamps.rolled.any() else stamps.rolled.tolist()
        self._suffixes = None if stamps is None else _suffixes(stamps)
        #         # A record that was rolled before needs its own properties.
        self._roll_times = None if self._odd is None else self._values(names.TIMER_ROLL_TIMES)
        self.groups = self._grouped(stamps)

    def _values(self, name: str) -> list[bytes | None]:
        """Return the value of property NAME of each record."""
        starts, sizes = self._ranges.find(name)
        data = self._array.data
        return [
            bytes(data[start : start + size]) if size > 0 else None
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]

    def _has_any(self, wanted: Iterable[str]) -> list[bool] | None:
        """Return which records have any of the properties WANTED; None: no record has one."""
        has: Flags = np.zeros(len(self._columns), np.bool_)
        for name in wanted:
            has |= self._ranges.find(name)[1] >= 0
        return has.tolist() if has.any() else None

    def _grouped(self, stamps: TimedStamps | None) -> dict[tuple[str, int], _Group]:
        """Return the records by destination. Records without one are logged and skipped."""
        groups: dict[tuple[str, int], _Group] = {}
        rolled = self._rolled
        sound = self._sound(stamps)
        keys = zip(self._real_topics, self._values(names.REAL_QUEUE_ID), strict=True)
        for row, (topic, queue) in enumerate(keys):
            problem = None if sound is None else sound[row]
            target: _Target = problem or _BACK
            if problem is None and (rolled is None or not rolled[row]):
                target = self._target(topic or b"", queue or b"")
            if isinstance(target, str):
                self._warn(row, target)
            elif target in groups:
                groups[target].rows.append(row)
            else:
                groups[target] = _Group(target, [row], [])
        return groups

    def _sound(self, stamps: TimedStamps | None) -> list[str | None] | None:
        """Return what is wrong with each record, None per record without a problem; None: no record has one."""
        columns = self._columns
        kinds = columns.sys_flag & SYS_TRANSACTION
        well = columns.well_formed & ((kinds == 0) | (kinds == 8))
        markers: Flags = self._ranges.find(names.TIMER_DELETE_KEY)[1] > 0
        if stamps is not None:
            markers &= ~stamps.rolled
        if well.all() and not markers.any():
            return None
        return [
            None
            if good and not marker
            else "it is a recall marker"
            if good
            else "its bytes are not a valid message"
            for good, marker in zip(well.tolist(), markers.tolist(), strict=True)
        ]

    def _target(self, topic: bytes, queue: bytes) -> _Target:
        key = (topic, queue)
        found = self._targets.get(key)
        if found is None:
            self._targets[key] = found = _target(topic, queue)
        return found

    def _warn(self, row: int, problem: str) -> None:
        logger.warning(
            "delayed message skipped %s",
            Facts(
                reason=problem,
                log_offset=int(self._columns.log_offset[row]),
                real_topic=(self._real_topics[row] or b"").decode("utf-8", "replace"),
            ),
        )

    def make_copies(self, group: _Group) -> None:
        """Fill in the copies of GROUP."""
        copier, suffixes = self._copier, self._suffixes
        topic, queue = group.target
        if suffixes is None and self._odd is None:
            group.copies = [
                copier.copy(row, topic=topic, queue_id=queue, properties=copier.properties(row))
                for row in group.rows
            ]
            return
        for row in group.rows:
            properties = self._properties(row)
            if len(properties) > PROPERTIES_SIZE_MAX:
                # With these properties it would be too large: leave them out, and it fits as
                # before.
                properties = copier.properties(row)
            copy = copier.copy(row, topic=topic, queue_id=queue, properties=properties)
            group.copies.append(copy)

    def _properties(self, row: int) -> bytes:
        string = self._copier.properties(row)
        if self._odd is not None and self._odd[row]:
            string = names.without(string, self._dropped)
        if self._suffixes is None:
            return string
        times = 0 if self._roll_times is None else _whole(self._roll_times[row])
        if self._rolled is not None and self._rolled[row]:
            times += 1
        roll = names.encode_pair(names.TIMER_ROLL_TIMES, times) if times else b""
        return names.closed(string) + self._suffixes[row] + roll

    def runs(self, groups: Sequence[_Group]) -> list[Run]:
        """Return GROUPS as batches; their columns are computed in one step."""
        if not groups:
            return []
        copies = [copy for group in groups for copy in group.copies]
        data = b"".join(copies)
        columns = parse_run(data, starts_of([len(copy) for copy in copies]))
        if len(groups) == 1:
            return [_run(groups[0], data, columns)]
        runs = []
        row = begin = 0
        for group in groups:
            rows = slice(row, row + len(group.copies))
            part = columns.take(rows)
            end = begin + int(part.sizes.sum())
            for places in (part.starts, part.body_start, part.topic_start, part.properties_start):
                places -= begin
            runs.append(_run(group, data[begin:end], part))
            row, begin = rows.stop, end
        return runs

    def note(
        self, target: tuple[str, int], rows: list[int], outcome: Appended | PocketMQError
    ) -> None:
        """Record the result of appending ROWS to TARGET."""
        if not isinstance(outcome, PocketMQError):
            self._states[rows] = DELIVERED
            self._end_offset = max(self._end_offset, outcome.end_offset)
        elif _is_transient(outcome):
            self._states[rows] = TRY_AGAIN
            self._error = outcome
        else:
            self._warn(rows[0], f"{target[0]}/{target[1]}: {outcome.message}")

    def delivered(self) -> Delivered:
        return Delivered(self._states, self._end_offset, self._error)


def _run(group: _Group, data: bytes, columns: RunColumns) -> Run:
    topic, queue = group.target
    return Run(topic=topic, queue=queue, records=data, columns=columns)


def _suffixes(stamps: TimedStamps) -> list[bytes]:
    """Return the properties that each copy of a scheduled message gets."""
    dequeued = names.encode_pair(names.TIMER_DEQUEUE_MS, stamps.dequeued_ms)
    made: dict[int, bytes] = {}
    suffixes = []
    for enqueued_ms in stamps.enqueued_ms.tolist():
        suffix = made.get(enqueued_ms)
        if suffix is None:
            made[enqueued_ms] = suffix = (
                names.encode_pair(names.TIMER_ENQUEUE_MS, enqueued_ms) + dequeued
            )
        suffixes.append(suffix)
    return suffixes


def _whole(value: bytes | None) -> int:
    """Return VALUE as a whole number; 0 for anything else."""
    return int(value) if value is not None and _NUMBER.fullmatch(value) else 0


def _target(topic: bytes, queue: bytes) -> _Target:
    """Return the queue in the values of REAL_TOPIC and REAL_QID, or the reason why there is none."""
    try:
        name = check_topic(topic.decode("utf-8", "replace"))
    except InvalidName as error:
        return error.message
    if name in NOT_SENDABLE_TOPICS:
        return f'"{name}" is written by the broker only'
    if not _NUMBER.fullmatch(queue) or not 0 <= int(queue) <= _INT_MAX:
        return f"REAL_QID is {queue[:40]!r}"
    return name, int(queue)
