"""When a message is delivered: at once to its queue, or first to a topic where it waits until it is due. Pure.

DELAY = level > 0                  waits in SCHEDULE_TOPIC_XXXX, queue level − 1; the highest level is the limit
TIMER_DELAY_SEC, TIMER_DELAY_MS    waits in the timer topic, for a time from now
TIMER_DELIVER_MS                   waits in the timer topic, until a time in Unix ms

The first of these properties decides. A message with TIMER_OUT_MS has waited already, and a message for the timer topic
is not delayed there again. REAL_TOPIC and REAL_QID name the queue of a waiting message.

Two points differ from Apache RocketMQ. A message with a delay gets its due time as TIMER_DELIVER_MS, so that it is
delivered to the millisecond. An invalid delay is refused; RocketMQ delivers the message at once.

Source: store-format.md §7.1, §7.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from ..proto import properties as names
from ..proto.errors import InvalidDelay
from ..proto.record_copy import RecordCopier
from ..proto.record_run import Longs
from ..proto.run import Run
from ..proto.time_text import format_duration, format_instant
from ..proto.topics import SCHEDULE_TOPIC, TIMER_TOPIC

#: A delivery time so long ago is refused. A shorter time may have passed since the producer created
#: the message.
LATE_MAX_MS: Final = 60_000

#: What happens to a delivery time in the past.
Past = Literal["refuse", "now"]

#: Each delayed record contains one of these byte strings.
_HINTS: Final = (b"DELAY", b"TIMER_DELIVER")
_TIMES: Final = tuple(name for name in names.ASKING_NAMES if name != names.DELAY)
#: Properties of a waiting record that are replaced or removed.
_REPLACED: Final = (names.REAL_TOPIC, names.REAL_QUEUE_ID, names.PROPERTY_CRC)
_DIGITS_MAX: Final = 18
_SHOWN_MAX: Final = 40  # characters of a bad value

_Flags = NDArray[np.bool_]
_Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """Limits of delays.

    LEVELS_MS: the delays of level 1, 2, …. PRECISION_MS: TIMER_OUT_MS is a multiple of it. DELAY_MAX_MS: how far ahead
    a delivery time may be.
    """

    levels_ms: Sequence[int]
    precision_ms: int
    delay_max_ms: int


@dataclass(frozen=True, slots=True)
class Part:
    """Records of one batch with the same destination, in their order.

    ROWS: their row numbers in the batch. DUE_MS: when each is due; None: at once. The due time of a delay level counts
    from NOW_MS. If the store stamps a record later, it is due later by the same time.
    """

    run: Run
    rows: Longs
    due_ms: Longs | None

    @property
    def by_level(self) -> bool:
        """Return whether they wait in the queue of a delay level."""
        return self.due_ms is not None and self.run.topic == SCHEDULE_TOPIC


def route(
    run: Run,
    rules: DelayLimits,
    now_ms: int,
    *,
    past: Past = "refuse",
) -> list[Part]:
    """Split RUN: first the records without delay, then the delay levels in their order, then scheduled records.

    With PAST "now", a delivery time in the past means no delay.

    Raises:
        InvalidDelay: A value is not a number, a delay is negative, or a delivery time is too far ahead. With PAST
            "refuse" also: the delivery time is before the record was created, or more than LATE_MAX_MS ago.
        MessageTooLarge: The properties exceed their limit.
    """
    if not (run.may_have(_HINTS) and any(run.properties.has(name) for name in names.ASKING_NAMES)):
        return [_whole(run)]
    return _Division(run, rules, now_ms, past).parts()


def _whole(run: Run) -> Part:
    """Return all of RUN as one part without delay."""
    return Part(run, np.arange(len(run)), None)


def select(run: Run, rows: Longs | NDArray[np.intp]) -> Run:
    """Return the records ROWS of RUN as a new batch."""
    starts = run.columns.starts[rows]
    ends = starts + run.columns.sizes[rows]
    data = memoryview(run.records)
    records = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return Run.of(run.topic, run.queue, records)


@overload
def timer_out_ms(due_ms: int, precision_ms: int) -> int: ...
@overload
def timer_out_ms(due_ms: Longs, precision_ms: int) -> Longs: ...
def timer_out_ms(due_ms: int | Longs, precision_ms: int) -> int | Longs:
    """Return TIMER_OUT_MS of a message that is due at DUE_MS: DUE_MS rounded down to a multiple of PRECISION_MS."""
    return (due_ms - 1) // precision_ms * precision_ms


class _Division:
    """One batch that is being split."""

    def __init__(self, run: Run, rules: DelayLimits, now_ms: int, past: Past) -> None:
        self._run = run
        self._rules = rules
        self._now_ms = now_ms
        self._ranges = run.properties
        self._past = past
        self._data = memoryview(run.records)
        self._levels = self._find_levels()
        #: When each is due by a delivery time or a delay; 0: not scheduled.
        self._due_ms, self._relative = self._find_instants()

    def _has(self, name: str) -> _Flags:
        has: _Flags = self._ranges.find(name)[1] > 0
        return has

    def _find_levels(self) -> Longs:
        """Return the delay level of each record; 0: none."""
        levels = np.zeros(len(self._run), np.int64)
        rows = np.flatnonzero(self._has(names.DELAY))
        if len(rows):
            levels[rows] = np.maximum(self._numbers(names.DELAY, rows), 0)
        return levels

    def _find_instants(self) -> tuple[Longs, _Flags]:
        """Return when each record is due (0: not scheduled), and which of them are due by a delay."""
        count = len(self._levels)
        due_ms = np.zeros(count, np.int64)
        relative = np.zeros(count, np.bool_)
        if self._run.topic == TIMER_TOPIC:
            return due_ms, relative
        left: _Flags = (self._levels == 0) & ~self._has(names.TIMER_OUT_MS)
        for name, unit_ms in ((names.TIMER_DELAY_SEC, 1000), (names.TIMER_DELAY_MS, 1)):
            rows = np.flatnonzero(left & self._has(name))
            if len(rows):
                delays = self._numbers(name, rows)
                self._check_delays(name, rows, delays, unit_ms)
                due_ms[rows] = self._now_ms + delays * unit_ms
                relative[rows] = True
                left[rows] = False
        rows = np.flatnonzero(left & self._has(names.TIMER_DELIVER_MS))
        if len(rows):
            due_ms[rows] = instants = self._numbers(names.TIMER_DELIVER_MS, rows)
            self._check_instants(rows, instants)
        due_ms[due_ms <= self._now_ms] = 0
        return due_ms, relative

    def _numbers(self, name: str, rows: _Rows) -> Longs:
        """Return the values of property NAME of ROWS, which all have it."""
        starts, sizes = self._ranges.find(name)
        data = self._data
        numbers = []
        for row, start, size in zip(
            rows.tolist(), starts[rows].tolist(), sizes[rows].tolist(), strict=True
        ):
            text = bytes(data[start : start + size])
            if not text.removeprefix(b"-").isdigit() or size > _DIGITS_MAX:
                self._refuse_text(name, row, text)
            numbers.append(int(text))
        return np.array(numbers, np.int64)

    def _check_delays(self, name: str, rows: _Rows, delays: Longs, unit_ms: int) -> None:
        if (delays < 0).any():
            at = int((delays < 0).argmax())
            delay = int(delays[at])
            fault = f"the delay is {delay * unit_ms} ms: it must not be negative"
            self._refuse(name, int(rows[at]), delay, fault, 0)
        limit = self._rules.delay_max_ms // unit_ms
        if (delays > limit).any():
            at = int((delays > limit).argmax())
            delay = int(delays[at])
            shown = f"delay {format_duration(delay * unit_ms)} is too long"
            self._refuse_far(name, int(rows[at]), delay, shown, limit)

    def _check_instants(self, rows: _Rows, instants: Longs) -> None:
        name = names.TIMER_DELIVER_MS
        limit = self._now_ms + self._rules.delay_max_ms
        if (instants > limit).any():
            at = int((instants > limit).argmax())
            instant_ms = int(instants[at])
            shown = f"delivery time {format_instant(instant_ms)} is too far ahead"
            self._refuse_far(name, int(rows[at]), instant_ms, shown, limit)
        if self._past == "now":
            return
        born_ms = self._run.columns.born_ms[rows]
        # Compare with the broker's clock: the clock of the sender may be wrong.
        passed = (instants <= self._now_ms) & (
            (instants <= born_ms) | (instants < self._now_ms - LATE_MAX_MS)
        )
        if passed.any():
            at = int(passed.argmax())
            instant_ms = int(instants[at])
            fault = (
                f"delivery time {format_instant(instant_ms)} has passed, it is"
                f" {format_instant(self._now_ms)} at the broker. Use a later time, or none"
            )
            self._refuse(name, int(rows[at]), instant_ms, fault, self._now_ms)

    def _refuse_far(self, name: str, row: int, value: int, fault: str, limit: int) -> NoReturn:
        most = format_duration(self._rules.delay_max_ms)
        self._refuse(name, row, value, f"{fault}: the limit is {most} (broker.delay_max_ms)", limit)

    def _refuse(self, name: str, row: int, value: int, fault: str, limit: int) -> NoReturn:
        raise InvalidDelay(
            f"{self._which(row)}{fault}",
            field=name,
            index=row,
            limit=limit,
            value=value,
        )

    def _which(self, row: int) -> str:
        return f"record {row} of the batch: " if len(self._run) > 1 else ""

    def _refuse_text(self, name: str, row: int, text: bytes) -> NoReturn:
        shown = text[:_SHOWN_MAX].decode("utf-8", "replace")
        raise InvalidDelay(
            f"{self._which(row)}{name} is {shown!r}: use a whole number with at most {_DIGITS_MAX} digits",
            field=name,
            index=row,
            value=shown,
        )

    def parts(self) -> list[Part]:
        levels, due_ms = self._levels, self._due_ms
        if not levels.any() and not due_ms.any():
            return [_whole(self._run)]
        parts = []
        prompt = np.flatnonzero((levels == 0) & (due_ms == 0))
        if len(prompt):
            parts.append(Part(select(self._run, prompt), prompt.astype(np.int64), None))
        copier = RecordCopier(self._data, self._run.columns)
        highest = len(self._rules.levels_ms)
        clamped = np.minimum(levels, highest)
        parts += [
            self._level(copier, level, np.flatnonzero(clamped == level))
            for level in np.unique(clamped[clamped > 0]).tolist()
        ]
        timed = np.flatnonzero(due_ms > 0)
        if len(timed):
            parts.append(self._timed(copier, timed))
        return parts

    def _level(self, copier: RecordCopier, level: int, rows: _Rows) -> Part:
        dropped: tuple[str, ...] = _REPLACED + _TIMES
        added = self._real()
        if (self._levels[rows] != level).any():
            # Above the highest level: RocketMQ also sets the property to the highest level.
            dropped += (names.DELAY,)
            added += names.encode_pair(names.DELAY, level)
        queue = level - 1
        strings = self._strings(copier, rows, dropped)
        records = [
            copier.copy(row, topic=SCHEDULE_TOPIC, queue_id=queue, properties=string + added)
            for row, string in zip(rows.tolist(), strings, strict=True)
        ]
        due_ms = np.full(len(rows), self._now_ms + self._rules.levels_ms[queue], np.int64)
        return Part(Run.of(SCHEDULE_TOPIC, queue, records), rows.astype(np.int64), due_ms)

    def _timed(self, copier: RecordCopier, rows: _Rows) -> Part:
        due_ms = self._due_ms[rows]
        relative = self._relative[rows]
        by_delay = bool(relative.any())
        dropped = (*_REPLACED, names.TIMER_OUT_MS)
        strings = self._strings(copier, rows, dropped)
        if by_delay:
            # Only relative delays: a delivery time that the sender set stays in its place.
            theirs = np.flatnonzero(relative)
            anew = self._strings(copier, rows[theirs], (*dropped, names.TIMER_DELIVER_MS))
            for at, string in zip(theirs.tolist(), anew, strict=True):
                strings[at] = string
        made: dict[tuple[int, bool], bytes] = {}
        records = []
        keys = zip(due_ms.tolist(), relative.tolist(), strict=True)
        for row, string, key in zip(rows.tolist(), strings, keys, strict=True):
            added = made.get(key)
            if added is None:
                made[key] = added = self._timed_properties(*key)
            records.append(
                copier.copy(row, topic=TIMER_TOPIC, queue_id=0, properties=string + added)
            )
        return Part(Run.of(TIMER_TOPIC, 0, records), rows.astype(np.int64), due_ms)

    def _timed_properties(self, due_ms: int, by_delay: bool) -> bytes:
        """Return the properties that are added to a record that is due at DUE_MS."""
        out_ms = timer_out_ms(due_ms, self._rules.precision_ms)
        added = names.encode_pair(names.TIMER_OUT_MS, out_ms) + self._real()
        return added + names.encode_pair(names.TIMER_DELIVER_MS, due_ms) if by_delay else added

    def _real(self) -> bytes:
        """Return the properties with the destination of a waiting record."""
        return names.encode_pair(names.REAL_TOPIC, self._run.topic) + names.encode_pair(
            names.REAL_QUEUE_ID, self._run.queue
        )

    def _strings(self, copier: RecordCopier, rows: _Rows, dropped: tuple[str, ...]) -> list[bytes]:
        """Return the property strings of ROWS without the properties DROPPED; more properties can be appended."""
        has: _Flags = np.zeros(len(rows), np.bool_)
        for name in dropped:
            has |= self._ranges.find(name)[1][rows] >= 0
        strings = [copier.properties(row) for row in rows.tolist()]
        if has.any():
            for at in np.flatnonzero(has).tolist():
                strings[at] = names.without(strings[at], dropped)
        return [names.closed(string) for string in strings]
