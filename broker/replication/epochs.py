"""The epochs of a log: which master began to write where, and up to where two logs are therefore the same.

An epoch has one master, which begins it once, at one offset of one log. So two logs that both have the entry (epoch,
start) are equal up to start, and beyond it as far as both go on in that epoch: what follows in the same epoch was
written once. That is KIP-101 with KIP-279's correction, and Apache RocketMQ's `findConsistentPoint`.

Bounds: `EPOCHS_MAX` entries; the oldest go first. Values are immutable.
"""

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
    """Epochs of one log, ascending by epoch and by start."""

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
        """Return them with EPOCH begun at START, the end of the log, in place of those without a record.

        An entry at START or beyond it has no record. It has to go, not the new one: records of EPOCH would pass for
        those of the older epoch, of which another log may have different ones at the same offsets.
        """
        if epoch <= self.last:
            raise ValueError(f"epoch {epoch} was begun after epoch {self.last}")
        kept = (one for one in self._entries if one.start < start)
        return Epochs((*kept, EpochStart(epoch, start)))

    def cut(self, end: int) -> Epochs:
        """Return those that a log which ends at END has; one that begins there is known, if without a record."""
        return Epochs(one for one in self._entries if one.start <= end)

    def end_of(self, epoch: int, log_end: int) -> int:
        """Return where EPOCH, which is one of them, ends in a log that ends at LOG_END."""
        return next((start for other, start in self._entries if other > epoch), log_end)


def consistent_end(
    leader: Epochs, leader_end: int, follower: Epochs, follower_end: int
) -> int | None:
    """Return up to where the follower's log is the leader's: it is to be cut there. None: nothing tells.

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
