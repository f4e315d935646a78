"""The messages that producers have stored per queue: the broker detects duplicates by this table. Pure.

A producer numbers the messages of each queue from 0 on, in each of its epochs. Of a batch [first, first + count)

    first = 0, nothing known of the producer in this queue     new
    first > 0, nothing known, or known only from later on      UnknownProducer: a duplicate could not be detected
    it begins where the last one ended                         new
    everything of it is stored                                 a duplicate: nothing is stored again
    some of it is stored                                       the rest is new (an append was torn, or cut differently)
    something between the last batch and this one is missing   OutOfOrderSequence
    an epoch before the known one                              ProducerFenced
    a later epoch                                              new if first = 0, else OutOfOrderSequence

Batches of one turn of the event loop are appended together at its end. `reserve` counts a future batch, so that the
next one may follow it in the same turn. `stored` and `failed` report the result. A batch that is a duplicate of another
one of the turn, or contradicts it, does not `follow`: the caller appends the turn's batches first.

A forgotten producer gets UnknownProducer. Only a first batch (number 0) whose producer was forgotten between two
attempts is stored twice. Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from ...proto.errors import OutOfOrderSequence, PocketMQError, ProducerFenced, UnknownProducer
from ...proto.record_run import Longs
from .run_numbers import RunNumbers

#: The number of batches that Kafka's brokers remember: more are not in flight.
RUNS_KEPT: Final = 5
#: Limit of log offsets of single records, in all sequences together. Contiguous batches need none.
ROWS_MAX: Final = 1_000_000
#: Limit of intervals of missing numbers of one sequence.
GAPS_MAX: Final = 1_000

#: Producer id, topic, queue.
Key: TypeAlias = tuple[int, str, int]
#: Missing numbers below a mark: a few intervals [begin, end), rising and separate.
Gaps: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """COUNT records from number FIRST on, in the log before END_OFFSET; the first is at LOG_OFFSET.

    They are contiguous in their queue from QUEUE_OFFSET on. Otherwise LOG_OFFSETS has the place of each; −1: not
    stored.
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
        """The number after the last record."""
        return self.first + self.count

    def intervals(self) -> list[tuple[int, int]]:
        """Return which numbers are stored, as intervals."""
        if self.log_offsets is None:
            return [(self.first, self.end)]
        return _intervals(self.first + np.flatnonzero(self.log_offsets >= 0))


class Sequence:
    """The messages that one producer has stored in one queue, in its latest EPOCH.

    Attributes:
        known_from: Numbers below are not known.
        next: The number after the highest stored one.
        missing: Intervals between these two that are not stored.
        settled: Missing numbers below are lost for good, and do not block new batches.
        end_offset: The log offset after the last record.
        used_ms: When it was last used.
        runs: The last batches, oldest first.
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
        #: Whether batches of this turn will be appended at its end; the error of one that failed.
        self.pending = False
        self.error: PocketMQError | None = None
        self.begin(epoch)

    def begin(self, epoch: int) -> None:
        """Start EPOCH, in which nothing is stored yet."""
        self.epoch = self.reserved_epoch = epoch
        self.known_from = self.next = self.settled = 0
        self.missing: Gaps = ()
        self.runs: tuple[StoredRun, ...] = ()
        #: The number with which the next batch of this turn must begin; −1: numbers are missing.
        self.reserved = 0

    @property
    def expected(self) -> int:
        """The number with which a new batch must begin."""
        return next((low for low, _ in self.missing if low >= self.settled), self.next)

    def reserve(self, numbers: RunNumbers) -> None:
        """Record that a batch with NUMBERS will be appended at the end of this turn."""
        self.pending = True
        self.reserved_epoch, self.reserved = numbers.epoch, numbers.end

    def fail(self, error: PocketMQError) -> None:
        """Refuse the following batches of this turn: one was not appended completely, because of ERROR."""
        self.error = error

    def end_turn(self) -> None:
        """Clear all reservations."""
        self.pending, self.error = False, None
        self.reserved_epoch = self.epoch
        self.reserved = self.next if self.expected == self.next else -1

    def is_stored(self, begin: int, end: int) -> bool:
        """Return whether all numbers [BEGIN, END) are stored."""
        if begin < self.known_from or end > self.next:
            return False
        return all(high <= begin or end <= low for low, high in self.missing)

    def new_rows(self, numbers: RunNumbers) -> Longs | None:
        """Return which records of a batch of this epoch are not stored; None: none is stored.

        Raises UnknownProducer and OutOfOrderSequence.
        """
        if numbers.first < self.known_from:
            raise _unknown(numbers, f"its numbers before {self.known_from} are forgotten")
        rows = np.arange(numbers.first, numbers.end)
        new = rows >= self.next
        for low, high in self.missing:
            new |= (rows >= low) & (rows < high)
        if new.any() and numbers.first > self.expected:
            raise _broken(numbers, self.expected)
        return None if new.all() else np.flatnonzero(new).astype(np.int64)

    def add(self, stored: StoredRun) -> None:
        """Add the records STORED."""
        for begin, end in stored.intervals():
            if begin > self.next:
                self.missing += ((self.next, begin),)
            self.next = max(self.next, end)
            if self.missing:
                self.missing = _without(self.missing, begin, end)
        self.end_offset = max(self.end_offset, stored.end_offset)
        if len(self.missing) > GAPS_MAX:  # From now on the lowest numbers are unknown.
            self.missing, self.known_from = (), self.next


@dataclass(slots=True)
class Numbered:
    """A batch that may be stored: ROWS of it; None: all.

    Without rows, it is a duplicate.
    """

    key: Key
    numbers: RunNumbers
    sequence: Sequence | None
    rows: Longs | None

    @property
    def is_repeat(self) -> bool:
        return self.rows is not None and not len(self.rows)

    @property
    def repeated_count(self) -> int:
        """The number of its records that are stored already."""
        return 0 if self.rows is None else self.numbers.count - len(self.rows)


class ProducerSequences:
    """The table with up to LIMIT sequences; beyond it, the least recently used is forgotten.

    A sequence that was not used for EXPIRY_MS counts as unknown.
    """

    def __init__(self, limit: int, expiry_ms: int) -> None:
        self._limit = limit
        self._expiry_ms = expiry_ms
        #: The least recently used is first.
        self._table: dict[Key, Sequence] = {}
        self._turn: list[Sequence] = []
        self._rows = 0
        #: Number of sequences that were forgotten because of the limit.
        self.crowded_out = 0
        #: A counter that changes with each stored batch.
        self.version = 0

    def __len__(self) -> int:
        return len(self._table)

    def items(self) -> Iterator[tuple[Key, Sequence]]:
        """Return all sequences, the least recently used first."""
        return iter(self._table.items())

    def get(self, key: Key) -> Sequence | None:
        """Return the sequence of KEY; None if it is unknown."""
        return self._table.get(key)

    def follows(self, key: Key, numbers: RunNumbers) -> bool:
        """Return whether a batch can be judged before the batches of this turn are appended: it has other numbers."""
        sequence = self._table.get(key)
        if sequence is None or not sequence.pending:
            return True
        return (sequence.reserved_epoch, sequence.reserved) == (numbers.epoch, numbers.first)

    def judge(self, key: Key, numbers: RunNumbers, now_ms: int) -> Numbered:
        """Return which records of a batch that `follows` are to be stored.

        Raises UnknownProducer, ProducerFenced, OutOfOrderSequence.
        """
        sequence = self._table.get(key)
        if sequence is not None and self._is_idle(sequence, now_ms):
            self._forget(key)
            sequence = None
        if sequence is None:
            if numbers.first:
                raise _unknown(numbers, "the producer is not known here")
            return Numbered(key, numbers, None, None)
        if (sequence.reserved_epoch, sequence.reserved) == (numbers.epoch, numbers.first):
            return Numbered(key, numbers, sequence, None)
        if numbers.epoch < sequence.epoch:
            raise ProducerFenced(
                f"producer {numbers.producer_id:x} has sent in epoch {sequence.epoch} already: epoch {numbers.epoch}"
                " has ended, stop the producer that uses it",
                field="producer_epoch",
                limit=sequence.epoch,
                value=numbers.epoch,
            )
        if numbers.epoch > sequence.epoch:
            if numbers.first:
                raise _broken(numbers, 0)
            return Numbered(key, numbers, sequence, None)
        run = Numbered(key, numbers, sequence, sequence.new_rows(numbers))
        if run.is_repeat:
            self._touch(key, sequence, now_ms)
        return run

    def reserve(self, run: Numbered, now_ms: int) -> None:
        """Record that RUN will be appended at the end of this turn."""
        sequence = run.sequence
        if sequence is None:
            sequence = self._table.get(run.key) or Sequence(run.numbers.epoch, now_ms)
            run.sequence = sequence
        self._touch(run.key, sequence, now_ms)
        if not sequence.pending:
            self._turn.append(sequence)
        sequence.reserve(run.numbers)

    def refusal(self, run: Numbered) -> PocketMQError | None:
        """Return the error if RUN must not be appended because a batch before it was not; None: it may."""
        return None if run.sequence is None else run.sequence.error

    def stored(self, run: Numbered, stored: StoredRun) -> None:
        """Record that RUN was appended as STORED."""
        sequence = run.sequence
        assert sequence is not None, "call reserve before"
        if run.numbers.epoch > sequence.epoch:
            self._drop_runs(sequence)
            reserved = sequence.reserved_epoch, sequence.reserved
            sequence.begin(run.numbers.epoch)
            sequence.reserved_epoch, sequence.reserved = reserved
        self._add(sequence, stored)

    def failed(self, run: Numbered, error: PocketMQError) -> None:
        """Record that RUN was not appended completely, because of ERROR.

        The batches after it in the turn get a `refusal`, so that their order is kept. The part of it that is in the log
        (before a disk was full, for example) is added with `note`. Then numbers are missing, and the batch with these
        numbers must precede any new one.
        """
        assert run.sequence is not None, "call reserve before"
        run.sequence.fail(error)

    def end_turn(self) -> None:
        """End the turn: all reserved batches are stored or have failed."""
        for sequence in self._turn:
            sequence.end_turn()
        if self._turn:
            self._turn = []
            while len(self._table) > self._limit:
                self._forget(next(iter(self._table)))
                self.crowded_out += 1

    def note(
        self,
        key: Key,
        epoch: int,
        stored: StoredRun,
        *,
        complete: bool = True,
        used_ms: int | None = None,
    ) -> None:
        """Add records that were found STORED in the log, in the order of the log.

        COMPLETE: a producer that is not known yet has stored nothing before; otherwise that is unknown. USED_MS: when
        it was last used; None: the store time.
        """
        used_ms = stored.store_ms if used_ms is None else used_ms
        sequence = self._table.get(key)
        if sequence is None:
            sequence = Sequence(epoch, used_ms)
            if not complete:
                first = stored.intervals()[0][0]
                sequence.known_from = sequence.next = sequence.settled = first
        if epoch < sequence.epoch:
            return
        if epoch > sequence.epoch:
            self._drop_runs(sequence)
            sequence.begin(epoch)
        self._touch(key, sequence, max(used_ms, sequence.used_ms))
        if not all(sequence.is_stored(begin, end) for begin, end in stored.intervals()):
            self._add(sequence, stored)
        if not sequence.pending:
            sequence.end_turn()
        if not self._turn and len(self._table) > self._limit:
            self._forget(next(iter(self._table)))
            self.crowded_out += 1

    def settle(self) -> None:
        """Count all missing numbers as lost: they do not block new batches."""
        for sequence in self._table.values():
            sequence.settled = sequence.next
            sequence.end_turn()

    def put(self, key: Key, sequence: Sequence) -> None:
        """Add SEQUENCE from a snapshot."""
        runs, sequence.runs = sequence.runs, ()
        self._table[key] = sequence
        for stored in runs:
            self._remember(sequence, stored)
        sequence.end_turn()

    def rebase(self, used: Callable[[int], int]) -> None:
        """Convert the last use of each sequence with USED."""
        for sequence in self._table.values():
            sequence.used_ms = used(sequence.used_ms)

    def forget_idle(self, now_ms: int) -> int:
        """Forget sequences that were not used for `expiry_ms`; return their number."""
        idle = []
        for key, sequence in self._table.items():
            if not self._is_idle(sequence, now_ms):
                break
            idle.append(key)
        for key in idle:
            self._forget(key)
        return len(idle)

    def clear(self) -> None:
        """Forget everything."""
        self._table.clear()
        self._rows = 0

    def _is_idle(self, sequence: Sequence, now_ms: int) -> bool:
        return now_ms - sequence.used_ms >= self._expiry_ms and not sequence.pending

    def _forget(self, key: Key) -> None:
        self._drop_runs(self._table.pop(key))
        self.version += 1

    def _touch(self, key: Key, sequence: Sequence, now_ms: int) -> None:
        self._table.pop(key, None)
        self._table[key] = sequence
        sequence.used_ms = now_ms

    def _add(self, sequence: Sequence, stored: StoredRun) -> None:
        sequence.add(stored)
        self._remember(sequence, stored)
        self.version += 1

    def _remember(self, sequence: Sequence, stored: StoredRun) -> None:
        """Keep the places of STORED, and drop those of an older batch."""
        if stored.log_offsets is not None:
            if self._rows + stored.count > ROWS_MAX:
                return
            self._rows += stored.count
        sequence.runs += (stored,)
        if len(sequence.runs) > RUNS_KEPT:
            self._rows -= _rows_of(sequence.runs[:1])
            sequence.runs = sequence.runs[1:]

    def _drop_runs(self, sequence: Sequence) -> None:
        self._rows -= _rows_of(sequence.runs)
        sequence.runs = ()


def _rows_of(runs: tuple[StoredRun, ...]) -> int:
    return sum(stored.count for stored in runs if stored.log_offsets is not None)


def _unknown(numbers: RunNumbers, why: str) -> UnknownProducer:
    """Return the error of a batch with NUMBERS, with the reason WHY."""
    return UnknownProducer(
        f"producer {numbers.producer_id:x}: the batch begins with number {numbers.first} of its queue, but {why}, so a"
        " duplicate cannot be detected: begin a new epoch with number 0. Unacknowledged messages may be stored twice",
        field="first_sequence",
        value=numbers.first,
    )


def _broken(numbers: RunNumbers, expected: int) -> OutOfOrderSequence:
    """Return the error of a batch with NUMBERS where EXPECTED was expected."""
    return OutOfOrderSequence(
        f"producer {numbers.producer_id:x}: the batch begins with number {numbers.first} of its queue in epoch"
        f" {numbers.epoch}, expected was {expected}: send the missing numbers first",
        field="first_sequence",
        limit=expected,
        value=numbers.first,
        expected=expected,
        given=numbers.first,
    )


def _without(gaps: Gaps, begin: int, end: int) -> Gaps:
    """Return GAPS without the numbers [BEGIN, END)."""
    left: list[tuple[int, int]] = []
    for low, high in gaps:
        left += [(a, b) for a, b in ((low, min(high, begin)), (max(low, end), high)) if a < b]
    return tuple(left)


def _intervals(present: Longs) -> list[tuple[int, int]]:
    """Return the rising numbers PRESENT as intervals."""
    if not len(present):
        return []
    breaks = np.flatnonzero(np.diff(present) != 1)
    begins = np.concatenate((present[:1], present[breaks + 1])).tolist()
    ends = (np.concatenate((present[breaks], present[-1:])) + 1).tolist()
    return list(zip(begins, ends, strict=True))
