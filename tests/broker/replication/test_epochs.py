"""Epochs of a log: what replaces what, and where two logs part."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.replication.log_epochs import EPOCHS_MAX, Epochs, EpochStart, consistent_end


def epochs(*entries: tuple[int, int]) -> Epochs:
    return Epochs(EpochStart(*one) for one in entries)


def test_an_epoch_without_a_record_is_replaced_by_the_next() -> None:
    assert epochs((1, 0), (2, 8)).begin(3, 8) == epochs((1, 0), (3, 8))
    assert epochs((1, 0), (2, 8), (3, 12)).begin(4, 8) == epochs((1, 0), (4, 8))
    assert epochs((1, 0)).begin(2, 8) == epochs((1, 0), (2, 8))


def test_an_epoch_is_begun_once() -> None:
    with pytest.raises(ValueError, match="epoch 2 was started after epoch 2"):
        epochs((2, 0)).begin(2, 8)


def test_the_oldest_go_when_there_are_too_many() -> None:
    many = Epochs(EpochStart(one, one) for one in range(1, EPOCHS_MAX + 1))

    more = many.begin(EPOCHS_MAX + 1, EPOCHS_MAX + 1)

    assert len(more) == EPOCHS_MAX
    assert more.first_start == 2
    assert more.last == EPOCHS_MAX + 1


@pytest.mark.parametrize(
    ("leader", "leader_end", "follower", "follower_end", "common"),
    [
        (epochs((1, 0)), 20, epochs((1, 0)), 12, 12),
        (epochs((1, 0)), 12, epochs((1, 0)), 20, 12),
        # KIP-101: the follower has records of epoch 1 that the master of epoch 2 never had.
        (epochs((1, 0), (2, 8)), 20, epochs((1, 0)), 12, 8),
        # KIP-279: the master does not know the follower's newest epoch: go down, never guess.
        (epochs((1, 0), (3, 8)), 20, epochs((1, 0), (2, 8)), 16, 8),
        (epochs((1, 0), (3, 12)), 20, epochs((1, 0), (2, 8)), 16, 8),
        (epochs((1, 0), (3, 4)), 20, epochs((1, 0), (2, 8)), 16, 4),
        # An entry beyond the end says nothing: the log lost it.
        (epochs((1, 0), (2, 8), (3, 16)), 20, epochs((1, 0), (2, 8), (3, 16)), 12, 12),
        # Both began empty in the set.
        (epochs((2, 0)), 20, epochs((1, 0)), 12, 0),
        (epochs((2, 4)), 20, epochs((1, 4)), 12, None),
        (epochs((1, 0)), 20, epochs(), 0, 0),
        (epochs((1, 0)), 20, epochs(), 8, None),
        (epochs((1, 0)), 20, epochs((1, 4)), 8, None),
    ],
)  # fmt: skip
def test_two_logs_are_the_same_up_to_the_lesser_end_of_their_newest_common_epoch(
    leader: Epochs, leader_end: int, follower: Epochs, follower_end: int, common: int | None
) -> None:
    assert consistent_end(leader, leader_end, follower, follower_end) == common


class Log:
    """A log that knows which epoch each of its records is of."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.epochs = Epochs()


@given(st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 3), st.booleans()), max_size=12))
def test_logs_that_are_cut_by_epochs_are_the_same_up_to_there(
    history: list[tuple[str, int, bool]],
) -> None:
    """Masters take turns at will, and write; sometimes the other follows, cut as it has to be. Never more is cut than
    the logs part at, when each epoch of either is known."""
    logs = {"A": Log(), "B": Log()}
    for epoch, (who, count, follows) in enumerate(history, 1):
        master, other = logs[who], logs["B" if who == "A" else "A"]
        master.epochs = master.epochs.begin(epoch, len(master.records))
        master.records += [(epoch, number) for number in range(count)]
        if not follows:
            continue

        common = consistent_end(
            master.epochs, len(master.records), other.epochs, len(other.records)
        )

        pairs = zip(master.records, other.records, strict=False)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        if same is None:
            same = min(len(master.records), len(other.records))
        assert common is not None
        assert common == same
        other.records[common:] = master.records[common : common + 1]
        other.epochs = master.epochs.cut(len(other.records))
