"""BatchSequence of idempotent sending, against what a broker would make of them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from pocketmq.client import Queue
from pocketmq.client.producing.sequences import BatchSequence, SequenceAllocator

ONE, OTHER = Queue("orders", "a", 0), Queue("orders", "a", 1)


def test_numbers_of_a_queue_follow_each_other() -> None:
    sequences = SequenceAllocator(7)

    given = [sequences.allocate(ONE, 3), sequences.allocate(OTHER, 1), sequences.allocate(ONE, 2)]

    assert given == [BatchSequence(0, 0), BatchSequence(0, 0), BatchSequence(0, 3)]


def test_only_the_last_numbers_can_be_given_back() -> None:
    sequences = SequenceAllocator(7)
    first, second = sequences.allocate(ONE, 3), sequences.allocate(ONE, 2)

    assert not sequences.release(ONE, first, 3)
    assert sequences.release(ONE, second, 2)
    assert not sequences.release(ONE, second, 2)
    assert sequences.allocate(ONE, 1) == second


def test_a_new_epoch_begins_at_zero_and_leaves_other_queues_alone() -> None:
    sequences = SequenceAllocator(7)
    old, other = sequences.allocate(ONE, 3), sequences.allocate(OTHER, 3)

    sequences.bump_epoch(ONE)

    assert sequences.allocate(ONE, 1) == BatchSequence(1, 0)
    assert sequences.allocate(OTHER, 1) == BatchSequence(0, 3)
    assert not sequences.release(ONE, old, 3)
    assert not sequences.is_current(ONE, old)
    assert sequences.is_current(OTHER, other)
    assert sequences.latest_epoch == 1


@given(st.lists(st.tuples(st.sampled_from(["give", "back", "anew"]), st.integers(1, 5))))
def test_what_is_kept_has_no_gaps(steps: list[tuple[str, int]]) -> None:
    sequences = SequenceAllocator(7)
    kept: list[tuple[BatchSequence, int]] = []
    for step, count in steps:
        if step == "give":
            kept.append((sequences.allocate(ONE, count), count))
        elif step == "anew":
            sequences.bump_epoch(ONE)
        elif kept and sequences.release(ONE, *kept[-1]):
            kept.pop()

    epoch, following = 0, 0
    for numbers, count in kept:
        assert numbers.epoch >= epoch
        if numbers.epoch > epoch:
            following = 0
        assert numbers.first == following
        epoch, following = numbers.epoch, following + count
