"""The epochs of a log: where each begins, and up to which offset two logs are equal."""

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
        """Return the epochs of a frame, which frames.py has checked."""
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
        """The start of the oldest epoch; bytes below it are older than the set. -1: there is no epoch."""
        return self._entries[0].start if self._entries else -1

    def begin(self, epoch: int, start: int) -> Epochs:
        """Return the epochs with EPOCH started at START, the end of the log, without epochs that have no record.

        An entry at START or after it has no record. It must be removed: otherwise records of EPOCH would count as those
        of the older epoch, of which another log may have different ones at the same offsets.
        """
        if epoch <= self.last:
            raise ValueError(f"epoch {epoch} was started after epoch {self.last}")
        kept = (one for one in self._entries if one.start < start)
        return Epochs((*kept, EpochStart(epoch, start)))

    def cut(self, end: int) -> Epochs:
        """Return the epochs of the log if it ends at END. One that begins there is kept, though it has no record."""
        return Epochs(one for one in self._entries if one.start <= end)

    def at(self, offset: int) -> EpochStart | None:
        """Return the newest epoch that begins at OFFSET or before, else the oldest; None: there is none."""
        older = [one for one in self._entries if one.start <= offset]
        return older[-1] if older else next(iter(self._entries), None)

    def epoch_before(self, end: int) -> int:
        """Return the epoch in which the byte before END was written; 0: it is older than the set."""
        return max((one.epoch for one in self._entries if one.start < end), default=0)

    def end_of(self, epoch: int, log_end: int) -> int:
        """Return where EPOCH ends in a log that ends at LOG_END."""
        return next((start for other, start in self._entries if other > epoch), log_end)


def consistent_end(
    leader: Epochs, leader_end: int, follower: Epochs, follower_end: int
) -> int | None:
    """Return the offset up to which the follower's log equals the leader's, where it must be cut; None: unknown.

    The newest epoch that both have, with the same start, decides; an epoch that only one of them has does not count.
    Logs that were both empty when the set was created have at least that in common.
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
