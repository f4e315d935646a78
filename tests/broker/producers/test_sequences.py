"""The table of producers against a naive list of what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pocketmq.broker.producers.run_numbers import RunNumbers
from pocketmq.broker.producers.sequences import (
    GAPS_MAX,
    RUNS_KEPT,
    Key,
    Numbered,
    ProducerSequences,
    StoredRun,
)
from pocketmq.proto.errors import (
    OutOfOrderSequence,
    PocketMQError,
    ProducerFenced,
    StoreFull,
    UnknownProducer,
)

KEY: Key = (7, "T", 0)
DAY_MS = 86_400_000
FULL = StoreFull("no room")


def numbers(first: int, count: int, epoch: int = 0) -> RunNumbers:
    return RunNumbers(7, epoch, first, count)


class Appending:
    """A table, and the log offsets that its runs would get."""

    def __init__(self, limit: int = 100) -> None:
        self.table = ProducerSequences(limit, DAY_MS)
        self.end = 0
        self.now_ms = 1_000

    def take(self, first: int, count: int, *, epoch: int = 0, key: Key = KEY) -> Numbered:
        """Judge a run and reserve it if something of it is new."""
        run = self.table.judge(key, numbers(first, count, epoch), self.now_ms)
        if not run.is_repeat:
            self.table.reserve(run, self.now_ms)
        return run

    def store(self, run: Numbered) -> None:
        one = run.numbers
        offsets = None
        if run.rows is not None:
            offsets = np.full(one.count, -1, np.int64)
            offsets[run.rows] = self.end + np.arange(len(run.rows))
        begin, self.end = self.end, self.end + one.count
        stored = StoredRun(one.first, one.count, begin, self.end, self.now_ms, begin, offsets)
        self.table.stored(run, stored)

    def send(self, first: int, count: int, *, epoch: int = 0, key: Key = KEY) -> int:
        """Send a run in a turn of its own; return how many of its records were repeats."""
        run = self.take(first, count, epoch=epoch, key=key)
        if not run.is_repeat:
            self.store(run)
        self.table.end_turn()
        return run.repeated_count


def test_runs_that_follow_each_other_are_new() -> None:
    sent = Appending()

    assert [sent.send(0, 3), sent.send(3, 1), sent.send(4, 10)] == [0, 0, 0]


def test_a_run_that_comes_again_is_a_repeat() -> None:
    sent = Appending()
    sent.send(0, 3)
    sent.send(3, 4)

    assert sent.send(3, 4) == 4
    assert sent.send(0, 3) == 3
    assert sent.send(7, 1) == 0


def test_the_places_of_the_last_runs_are_kept() -> None:
    sent = Appending()
    for first in range(0, 20, 2):
        sent.send(first, 2)

    sequence = sent.table.get(KEY)

    assert sequence is not None
    assert [run.first for run in sequence.runs] == list(range(20 - 2 * RUNS_KEPT, 20, 2))
    assert sent.send(0, 2) == 2, "older ones are repeats all the same"


def test_a_gap_names_what_was_expected() -> None:
    sent = Appending()
    sent.send(0, 3)

    with pytest.raises(OutOfOrderSequence) as raised:
        sent.take(5, 2)

    assert (raised.value.details["expected"], raised.value.details["given"]) == ("3", "5")


def test_an_unknown_producer_begins_with_number_0() -> None:
    sent = Appending()

    with pytest.raises(UnknownProducer):
        sent.take(1, 1)


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_anew() -> None:
    sent = Appending()
    sent.send(0, 3)

    assert sent.send(0, 3, epoch=1) == 0
    with pytest.raises(ProducerFenced):
        sent.take(3, 1, epoch=0)
    with pytest.raises(OutOfOrderSequence):
        sent.take(3, 1, epoch=2)
    assert sent.send(3, 1, epoch=1) == 0


def test_a_run_may_follow_another_of_its_turn() -> None:
    sent = Appending()

    runs = [sent.take(0, 3), sent.take(3, 2)]

    assert sent.table.follows(KEY, numbers(5, 1))
    assert not sent.table.follows(KEY, numbers(3, 2)), "it repeats what is not stored yet"
    assert not sent.table.follows(KEY, numbers(0, 1, epoch=1))
    for run in runs:
        sent.store(run)
    sent.table.end_turn()
    assert sent.send(3, 2) == 2


def test_what_follows_a_run_that_failed_is_refused_with_it() -> None:
    sent = Appending()
    sent.send(0, 2)
    first, second = sent.take(2, 2), sent.take(4, 2)

    sent.table.failed(first, FULL)

    assert sent.table.refusal(second) is FULL
    sent.table.end_turn()
    with pytest.raises(OutOfOrderSequence):
        sent.take(4, 2)
    assert sent.send(2, 2) == 0


def test_a_failed_first_run_of_an_epoch_leaves_the_old_one() -> None:
    sent = Appending()
    sent.send(0, 2)

    sent.table.failed(sent.take(0, 2, epoch=1), FULL)
    sent.table.end_turn()

    assert sent.send(0, 2) == 2
    assert sent.send(2, 2) == 0


def test_of_a_run_that_is_stored_in_part_the_rest_is_new() -> None:
    sent = Appending()
    sent.table.failed(sent.take(0, 6), FULL)
    offsets = np.array([10, -1, -1, 13, -1, -1], np.int64)
    sent.table.note(KEY, 0, StoredRun(0, 6, 10, 14, 1_000, -1, offsets))
    sent.table.end_turn()

    with pytest.raises(OutOfOrderSequence) as raised:
        sent.take(6, 1)
    assert raised.value.details["expected"] == "1"
    again = sent.take(0, 6)
    assert again.rows is not None
    assert again.rows.tolist() == [1, 2, 4, 5]
    sent.store(again)
    sent.table.end_turn()

    assert sent.send(0, 6) == 6
    assert sent.send(6, 1) == 0


def test_a_run_may_be_cut_up_anew_when_it_comes_again() -> None:
    sent = Appending()
    sent.send(0, 4)

    assert sent.send(2, 5) == 2
    assert sent.send(0, 7) == 7


def test_what_was_lost_does_not_stand_in_the_way_but_is_stored_when_it_comes() -> None:
    table = ProducerSequences(10, DAY_MS)
    table.note(KEY, 0, StoredRun(0, 2, 0, 2, 1_000, 0))
    table.note(KEY, 0, StoredRun(5, 2, 5, 7, 1_000, 5))

    table.settle()

    assert table.judge(KEY, numbers(7, 1), 1_000).rows is None
    assert table.judge(KEY, numbers(2, 3), 1_000).rows is None


def test_of_a_producer_whose_past_is_unknown_nothing_older_is_a_repeat() -> None:
    table = ProducerSequences(10, DAY_MS)
    table.note(KEY, 0, StoredRun(5, 2, 5, 7, 1_000, 5), complete=False)
    table.settle()

    assert table.judge(KEY, numbers(5, 2), 1_000).is_repeat
    with pytest.raises(UnknownProducer):
        table.judge(KEY, numbers(4, 2), 1_000)
    with pytest.raises(UnknownProducer):
        table.judge(KEY, numbers(0, 2), 1_000)


def test_the_least_recently_used_is_forgotten_first() -> None:
    sent = Appending(limit=2)
    keys: list[Key] = [(7, "T", queue) for queue in range(3)]
    sent.send(0, 1, key=keys[0])
    sent.send(0, 1, key=keys[1])
    sent.send(0, 1, key=keys[0])  # A repeat is a use.

    sent.send(0, 1, key=keys[2])

    assert len(sent.table) == 2
    assert sent.table.crowded_out == 1
    with pytest.raises(UnknownProducer):
        sent.take(1, 1, key=keys[1])
    assert sent.send(1, 1, key=keys[0]) == 0


def test_an_idle_producer_is_forgotten() -> None:
    sent = Appending()
    sent.send(0, 1)
    sent.now_ms += DAY_MS - 1
    assert sent.table.forget_idle(sent.now_ms) == 0

    sent.now_ms += 1

    with pytest.raises(UnknownProducer):
        sent.take(1, 1)
    assert len(sent.table) == 0


@pytest.mark.slow
def test_so_many_gaps_that_they_are_not_kept_make_the_past_unknown() -> None:
    table = ProducerSequences(10, DAY_MS)
    offsets = np.arange(2 * GAPS_MAX + 10, dtype=np.int64)
    offsets[1::2] = -1
    table.note(KEY, 0, StoredRun(0, len(offsets), 0, 9_999, 1_000, -1, offsets))

    with pytest.raises(UnknownProducer):
        table.judge(KEY, numbers(0, 4), 1_000)


class TableModel(RuleBasedStateMachine):
    """One queue: runs that follow, repeat, overlap, leave gaps, fail, and several in one turn."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = Appending()
        self.epoch = 0
        #: Numbers of this epoch that are stored, each once.
        self.stored: list[int] = []
        self.turn: list[Numbered] = []

    @property
    def next(self) -> int:
        return len(self.stored)

    def _expectation(self, first: int, count: int) -> type[PocketMQError] | int:
        """Return what must become of a run: an error, or how many of its records are repeats."""
        if first > self.next:
            return UnknownProducer if self.sent.table.get(KEY) is None else OutOfOrderSequence
        return min(count, self.next - first)

    @rule(back=st.integers(-3, 12), count=st.integers(1, 6), fails=st.booleans())
    def send(self, back: int, count: int, fails: bool) -> None:
        first = max(0, self.next - back)
        expected = self._expectation(first, count)
        if not isinstance(expected, int):
            with pytest.raises(expected):
                self.sent.take(first, count, epoch=self.epoch)
            return
        run = self.sent.take(first, count, epoch=self.epoch)
        assert run.repeated_count == expected
        if run.is_repeat:
            return
        if fails:
            self.sent.table.failed(run, FULL)
        else:
            self.sent.store(run)
            self.stored += range(self.next, first + count)
        self.sent.table.end_turn()

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=5), fails_at=st.integers(0, 8))
    def send_in_one_turn(self, counts: list[int], fails_at: int) -> None:
        first, runs = self.next, []
        for count in counts:
            assert self.sent.table.follows(KEY, numbers(first, count, self.epoch))
            runs.append(self.sent.take(first, count, epoch=self.epoch))
            first += count
        assert not self.sent.table.follows(KEY, numbers(first - 1, 1, self.epoch))
        for index, run in enumerate(runs):
            refusal = self.sent.table.refusal(run)
            assert (refusal is not None) == (index > fails_at)
            if index >= fails_at:
                self.sent.table.failed(run, refusal or FULL)
            else:
                self.sent.store(run)
                self.stored += range(self.next, run.numbers.end)
        self.sent.table.end_turn()

    @rule(stored=st.lists(st.booleans(), min_size=1, max_size=6))
    def send_torn(self, stored: list[bool]) -> None:
        """An append fails that has stored some of its records; then the run comes again until it is stored."""
        first = self.next
        self.sent.table.failed(self.sent.take(first, len(stored), epoch=self.epoch), FULL)
        offsets = np.where(stored, self.sent.end + np.arange(len(stored)), -1).astype(np.int64)
        if any(stored):
            part = StoredRun(
                first, len(stored), self.sent.end, self.sent.end + 9, 1_000, -1, offsets
            )
            self.sent.table.note(KEY, self.epoch, part)
        self.sent.table.end_turn()
        assert self.sent.send(first, len(stored), epoch=self.epoch) == sum(stored)
        self.stored += range(first, first + len(stored))

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.stored = []
        assert self.sent.send(0, 1, epoch=self.epoch) == 0
        self.stored = [0]
        with pytest.raises(ProducerFenced):
            self.sent.take(0, 1, epoch=self.epoch - 1)

    @invariant()
    def every_number_is_stored_once_and_known(self) -> None:
        assert self.stored == list(range(self.next))
        sequence = self.sent.table.get(KEY)
        if sequence is not None and sequence.epoch == self.epoch:
            assert (sequence.next, sequence.expected) == (self.next, self.next)
            assert sequence.missing == ()
            assert len(sequence.runs) <= RUNS_KEPT


TestTableModel: Any = TableModel.TestCase
TestTableModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
