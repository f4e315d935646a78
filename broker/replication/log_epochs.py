"""The epochs of a log: where each begins, and up to where two logs agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Self

from ...proto.gen import pocketmq_v1_pb2 as pb

EPOCHS_MAX: Final = 4_096


class EpochStart(NamedTuple):
    """A master began EPOCH at the log offset START."""

    epoch: int
    start: int


class Epochs:
    """The epochs of one log, ascending by epoch and by start: which master started to write where. Immutable.

    An epoch has one master, which starts it once, at one offset of one log. So two logs that both have the entry
    (epoch, start) are equal up to start, and beyond it as far as both continue in that epoch. This is KIP-101 with
    KIP-279's correction, and Apache RocketMQ's `findConsistentPoint`. Limit: EPOCHS_MAX entries, the newest.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries = tuple(entries)[-EPOCHS_MAX:]

    @classmethod
    def of_wire(cls, entries: Iterable[pb.EpochStart]) -> Self:
        """Return those that a frame brought; frames.py has checked them."""
        return cls(EpochStart(one.epoch, one.start) for one in entries)

    def to_wire(self) -> list[pb.EpochStart]:
        return [pb.EpochStart(epoch=epoch, start=start) for epoch, start in self._entries]

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Epochs) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(self._entries)

    def __repr__(self) -> str:
        return f"Epochs({[tuple(one) for one in self._entries]})"

    @property
    def last(self) -> int:
        """The newest epoch; 0: there is none."""
        return self._entries[-1].epoch if self._entries else 0

    @property
    def first_start(self) -> int:
        """Where the oldest epoch begins; what is below it, if anything, is older than the set. -1: there is none."""
        return self._entries[0].start if self._entries else -1

    def begin(self, epoch: int, start: int) -> Epochs:
        """Return them with EPOCH started at START, the end of the log, in place of those without a record.

        An entry at START or beyond it has no record. It must go, not the new one: records of EPOCH would count as those
        of the older epoch, of which another log may have different ones at the same offsets.
        """
        if epoch <= self.last:
            raise ValueError(f"epoch {epoch} was started after epoch {self.last}")
        kept = (one for one in self._entries if one.start < start)
        return Epochs((*kept, EpochStart(epoch, start)))

    def cut(self, end: int) -> Epochs:
        """Return those that a log which ends at END has; one that begins there is known, if without a record."""
        return Epochs(one for one in self._entries if one.start <= end)

    def at(self, offset: int) -> EpochStart | None:
        """Return the newest that begins at OFFSET or before, else the oldest; None: there is none."""
        older = [one for one in self._entries if one.start <= offset]
        return older[-1] if older else next(iter(self._entries), None)

    def epoch_before(self, end: int) -> int:
        """Return the epoch in which the byte before END was written; 0: it is older than the set."""
        return max((one.epoch for one in self._entries if one.start < end), default=0)

    def end_of(self, epoch: int, log_end: int) -> int:
        """Return where EPOCH, which is one of them, ends in a log that ends at LOG_END."""
        return next((start for other, start in self._entries if other > epoch), log_end)


def consistent_end(
    leader: Epochs, leader_end: int, follower: Epochs, follower_end: int
) -> int | None:
    """Return where the follower's log must be cut: up to there it equals the leader's. None: this is unknown.

    The newest epoch that both have, with the same start, decides; one that only one of them knows says nothing. Logs
    that were both empty when the set was made have at least that in common.
    """
    if follower_end == 0:
        return 0
    known = set(leader.cut(leader_end))
    mine = follower.cut(follower_end)
    for entry in reversed(list(mine)):
        if entry in known:
            return min(
                leader.end_of(entry.epoch, leader_end), mine.end_of(entry.epoch, follower_end)
            )
    if mine.first_start == 0 == leader.first_start:
        return 0
    return None
