"""What one producer has stored in one queue: its latest epoch, and which numbers of it, but for a few gaps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from ...proto.errors import PocketMQError, ProducerUnknown, SequenceBroken
from ...proto.record_run import Longs
from .numbers import RunNumbers

GAPS_MAX: Final = 1_000
#: The numbers below a mark that are missing: a few intervals [begin, end), rising and apart.
Gaps: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """COUNT records from number FIRST on that lie in the log before END_OFFSET; the first at LOG_OFFSET.

    They follow each other in their queue from QUEUE_OFFSET on; or they lie scattered, then LOG_OFFSETS says where each
    is, −1 for one that is not stored.
    """

    first: int
    count: int
    log_offset: int
    end_offset: int
    store_ms: int
    queue_offset: int = -1
    log_offsets: Longs | None = None

    @property
    def end(self) -> int:
        """Return the number that follows the last."""
        return self.first + self.count

    def intervals(self) -> list[tuple[int, int]]:
        """Return which numbers are stored, as intervals."""
        if self.log_offsets is None:
            return [(self.first, self.end)]
        return intervals(self.first + np.flatnonzero(self.log_offsets >= 0))


class Sequence:
    """What one producer has stored in one queue, in its latest EPOCH.

    known_from: nothing is known of numbers below;  next: behind the highest that is stored;  missing: between these
    two;  settled: what is missing below is lost for good, and does not stand in the way of new runs;  end_offset: all
    of it lies in the log before;  used_ms: when it was used last;  runs: the last ones, oldest first.
    """

    __slots__ = (
        "end_offset",
        "epoch",
        "error",
        "known_from",
        "missing",
        "next",
        "pending",
        "reserved",
        "reserved_epoch",
        "runs",
        "settled",
        "used_ms",
    )

    def __init__(self, epoch: int, used_ms: int) -> None:
        self.used_ms = used_ms
        self.end_offset = 0
        #: Has this turn brought runs that will be appended at its end? Why did one fail?
        self.pending = False
        self.error: PocketMQError | None = None
        self.begin(epoch)

    def begin(self, epoch: int) -> None:
        """Begin EPOCH, in which nothing is stored yet."""
        self.epoch = self.reserved_epoch = epoch
        self.known_from = self.next = self.settled = 0
        self.missing: Gaps = ()
        self.runs: tuple[StoredRun, ...] = ()
        #: What the next run of this turn follows; −1: something is missing.
        self.reserved = 0

    @property
    def expected(self) -> int:
        """Return the number that a new run begins with."""
        return next((low for low, _ in self.missing if low >= self.settled), self.next)

    def end_turn(self) -> None:
        """Nothing is reserved any more."""
        self.pending, self.error = False, None
        self.reserved_epoch = self.epoch
        self.reserved = self.next if self.expected == self.next else -1

    def is_stored(self, begin: int, end: int) -> bool:
        """Are all numbers [BEGIN, END) stored?"""
        if begin < self.known_from or end > self.next:
            return False
        return all(high <= begin or end <= low for low, high in self.missing)

    def new_rows(self, numbers: RunNumbers) -> Longs | None:
        """Return which records of a run of this epoch are not stored; None: no record of it is.

        Raises ProducerUnknown and SequenceBroken.
        """
        if numbers.first < self.known_from:
            raise unknown(numbers, f"what it sent before number {self.known_from} is forgotten")
        rows = np.arange(numbers.first, numbers.end)
        new = rows >= self.next
        for low, high in self.missing:
            new |= (rows >= low) & (rows < high)
        if new.any() and numbers.first > self.expected:
            raise broken(numbers, self.expected)
        return None if new.all() else np.flatnonzero(new).astype(np.int64)

    def add(self, stored: StoredRun) -> None:
        """Count what was STORED."""
        for begin, end in stored.intervals():
            if begin > self.next:
                self.missing += ((self.next, begin),)
            self.next = max(self.next, end)
            if self.missing:
                self.missing = without(self.missing, begin, end)
        self.end_offset = max(self.end_offset, stored.end_offset)
        if len(self.missing) > GAPS_MAX:  # Then it is not told any more what of it is stored.
            self.missing, self.known_from = (), self.next


def unknown(numbers: RunNumbers, why: str) -> ProducerUnknown:
    """Return the error that a run with these NUMBERS is answered with, and WHY."""
    return ProducerUnknown(
        f"producer {numbers.producer_id:x}: the run begins with number {numbers.first} of its queue, but {why}, so that"
        " a repeat cannot be told: begin a new epoch with number 0, which may store again what was not acknowledged",
        field="first_sequence",
        value=numbers.first,
    )


def broken(numbers: RunNumbers, expected: int) -> SequenceBroken:
    """Return the error that a run with these NUMBERS is answered with, where EXPECTED was to come."""
    return SequenceBroken(
        f"producer {numbers.producer_id:x}: the run begins with number {numbers.first} of its queue in epoch"
        f" {numbers.epoch}, expected was {expected}: send what is between first",
        field="first_sequence",
        limit=expected,
        value=numbers.first,
        expected=expected,
        given=numbers.first,
    )


def without(gaps: Gaps, begin: int, end: int) -> Gaps:
    """Return GAPS without the numbers [BEGIN, END)."""
    left: list[tuple[int, int]] = []
    for low, high in gaps:
        left += [(a, b) for a, b in ((low, min(high, begin)), (max(low, end), high)) if a < b]
    return tuple(left)


def intervals(present: Longs) -> list[tuple[int, int]]:
    """Return the intervals of the rising numbers PRESENT."""
    if not len(present):
        return []
    breaks = np.flatnonzero(np.diff(present) != 1)
    begins = np.concatenate((present[:1], present[breaks + 1])).tolist()
    ends = (np.concatenate((present[breaks], present[-1:])) + 1).tolist()
    return list(zip(begins, ends, strict=True))
