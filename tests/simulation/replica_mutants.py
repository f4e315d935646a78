"""Replicas that break one rule each: a walk that finds nothing with them proves nothing without them.

`mutant(name)` patches the product for as long as its context lasts. The numbers are those of the rules: 1 election,
2 start of an epoch, 3 acknowledgement, 4 change of the set, 5 who enters it, 6 fences, 7 truncation, 8 the lease,
9 the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from pocketmq.broker.replication import frames, replica as replica_module
from pocketmq.broker.replication.in_sync import InSync
from pocketmq.broker.replication.log_epochs import Epochs
from pocketmq.broker.replication.mark import SetMark
from pocketmq.broker.replication.registry import ReplicaSetState
from pocketmq.broker.replication.replica import ReplicaCore
from pocketmq.broker.replication.replica_state import ReplicaRole, Upstream
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .replicas import Plan

_Patches = list[tuple[object, str, object]]


def _elects_anybody() -> _Patches:
    """1: A replica that is not in the set stands."""

    def may_be_candidate(self: ReplicaCore, cell: ReplicaSetState) -> bool:
        return self.has_session and self._me in self.live and not self._set and not self._cutting

    return [(ReplicaCore, "may_be_candidate", may_be_candidate)]


def _follows_while_standing() -> _Patches:
    """1: A candidate goes on to acknowledge to its old master what its log comes to hold."""
    acknowledge = ReplicaCore._acknowledge
    synced = ReplicaCore.log_synced

    def unfollow(self: ReplicaCore, reason: str) -> None:
        if "candidate" in reason:
            self._followed = self._upstream  # type: ignore[attr-defined]
        self._upstream = None

    def log_synced(self: ReplicaCore, at: int, now_ms: int) -> list[Any]:
        effects = synced(self, at, now_ms)
        followed: Upstream | None = getattr(self, "_followed", None)
        if followed and followed.cut:
            acknowledge(self, followed)
        return effects + self._take()

    return [(ReplicaCore, "_unfollow", unfollow), (ReplicaCore, "log_synced", log_synced)]


def _keeps_the_entry_without_a_record() -> _Patches:
    """2: An epoch that begins where the one before did is not noted, as Apache's `appendEntry` has it."""
    begin = Epochs.begin

    def begin_or_not(self: Epochs, epoch: int, start: int) -> Epochs:
        entries = list(self.cut(start))
        if entries and entries[-1].start >= start:
            return Epochs(entries)
        return begin(self, epoch, start)

    def check_begin(begin: pb.FollowBegin) -> None:
        return None

    return [
        (Epochs, "begin", begin_or_not),
        (frames, "check_begin", check_begin),
    ]


def _without_mark() -> _Patches:
    """Neither the mark nor a refusal keeps a replica from losing what others acknowledged wrongly."""
    return [
        (SetMark, "is_reached", lambda self, epochs, end: True),
        (ReplicaCore, "_acknowledged_end", lambda self: 0),
    ]


def _acknowledges_by_the_smaller_set() -> _Patches:
    """3: A set that was proposed counts at once where it is smaller, as in Apache RocketMQ 5.5.0."""

    def maximal_set(self: InSync) -> frozenset[int]:
        proposed = self.proposed_set
        if proposed is None:
            return self.confirmed_set
        return proposed if proposed < self.confirmed_set else proposed | self.confirmed_set

    return [(InSync, "maximal_set", property(maximal_set)), *_without_mark()]


def _acknowledges_by_the_confirmed_set() -> _Patches:
    """3: A set that was proposed does not count until it is confirmed."""
    return [(InSync, "maximal_set", property(lambda self: self.confirmed_set)), *_without_mark()]


def _acknowledges_what_is_written() -> _Patches:
    """3: What is in the memory of followers counts, though it should be on their devices."""
    has = InSync.has

    def has_written(self: InSync, replica: int, *, on_device: bool) -> int:
        return has(self, replica, on_device=False)

    return [(InSync, "has", has_written)]


def _acknowledges_below_the_minimum() -> _Patches:
    """3: `min_in_sync` is not asked for."""
    return [(InSync, "suffices", property(lambda self: True))]


def _forgets_a_proposal() -> _Patches:
    """4: A proposal without an answer is forgotten once the cell is read and still has the old value."""
    ask_again = ReplicaCore._ask_again

    def forget(self: ReplicaCore, now_ms: int) -> None:
        if self.role is ReplicaRole.MASTER and self.in_sync and self._set:
            self._set = None
            self.in_sync.proposed_set = None
            return
        ask_again(self, now_ms)

    return [(ReplicaCore, "_ask_again", forget)]


def _enters_behind() -> _Patches:
    """5: Whoever follows may enter."""
    return [(InSync, "has_enough", lambda self, replica: True)]


def _enters_unsynced() -> _Patches:
    """5: What a replica has in its memory only is enough to enter, where acks need the device."""

    def has_enough(self: InSync, replica: int) -> bool:
        return self.has(replica, on_device=False) >= max(self.confirm, self.start)

    return [(InSync, "has_enough", has_enough)]


def _forgets_the_highest_epoch() -> _Patches:
    """6: The highest epoch seen is gone with the process."""
    init = ReplicaCore.__init__

    def begin(self: ReplicaCore, settings: Any, state: Any) -> None:
        init(self, settings, state)
        self.epoch_seen = 0

    return [(ReplicaCore, "__init__", begin)]


def _does_not_truncate() -> _Patches:
    """7: A follower keeps what its log has beyond the master's."""
    return [(replica_module, "consistent_end", lambda _l, _e, _f, follower_end: follower_end)]


def _truncates_by_length() -> _Patches:
    """7: The lesser end decides, as without epochs."""
    return [
        (replica_module, "consistent_end", lambda _l, leader_end, _f, end: min(leader_end, end))
    ]


def _guesses_at_an_unknown_epoch() -> _Patches:
    """7: A newest epoch that the master does not know is taken for the one before it."""

    def guess(leader: Epochs, leader_end: int, follower: Epochs, follower_end: int) -> int:
        mine = list(follower.cut(follower_end))
        theirs = {one.epoch for one in leader}
        for epoch, start in reversed(mine):
            if epoch in theirs:
                return min(leader.end_of(epoch, leader_end), follower_end)
            if start < leader_end:
                return min(leader_end, follower_end)
        return 0

    return [(replica_module, "consistent_end", guess)]


def _serves_without_a_lease() -> _Patches:
    """8: A master serves until it hears of another."""
    return [(ReplicaCore, "lease_holds", lambda self, now_ms: self._answered_ms is not None)]


def _marks_what_is_written() -> _Patches:
    """9: The mark has what the master has, not what is on the disks of all."""

    def note(self: InSync, everywhere: int) -> None:
        self.synced_everywhere = self.end

    return [(InSync, "_note_synced", note)]


def _compares_ends_only() -> _Patches:
    """9: A log that is long enough passes, whatever it has there."""
    return [(SetMark, "is_reached", lambda self, epochs, end: end >= self.mark.end)]


_SESSIONS: Final = Plan(seed=0, flush_sync=True, emphasis="sessions")
_REGISTRY: Final = Plan(seed=0, flush_sync=True, emphasis="registry")
_RESTARTS: Final = Plan(seed=0, flush_sync=True, emphasis="restarts")
_TWO: Final = Plan(seed=0, min_in_sync=2)
_GOES_BACK: Final = Plan(seed=0, flush_sync=True, goes_back=True, steps=600)

#: Each with the walks that find it soonest; seeds count from that of the plan.
MUTANTS: Final[Mapping[str, tuple[Callable[[], _Patches], Plan]]] = {
    "1 elects anybody": (_elects_anybody, _SESSIONS),
    "1 follows while standing": (_follows_while_standing, _SESSIONS),
    "2 keeps the entry without a record": (_keeps_the_entry_without_a_record, _SESSIONS),
    "3 acknowledges by the smaller set": (_acknowledges_by_the_smaller_set, _REGISTRY),
    "3 acknowledges by the confirmed set": (_acknowledges_by_the_confirmed_set, _REGISTRY),
    "3 acknowledges what is written": (_acknowledges_what_is_written, _TWO),
    "3 acknowledges below the minimum": (_acknowledges_below_the_minimum, _TWO),
    "5 enters behind": (_enters_behind, _SESSIONS),
    "6 forgets the highest epoch": (_forgets_the_highest_epoch, _RESTARTS),
    "7 does not truncate": (_does_not_truncate, _SESSIONS),
    "7 truncates by length": (_truncates_by_length, _SESSIONS),
    "7 guesses at an unknown epoch": (_guesses_at_an_unknown_epoch, _SESSIONS),
    "9 ignores the mark": (_without_mark, _GOES_BACK),
    "9 compares ends only": (_compares_ends_only, _GOES_BACK),
    "9 marks what is written": (_marks_what_is_written, Plan(seed=0, emphasis="power")),
    "8 serves without a lease": (_serves_without_a_lease, Plan(seed=0, timed=True, steps=600)),
}


#: What thousands of walks did not find: the story of one replica does, and of all but "unsynced" the model.
RARE: Final[Mapping[str, Callable[[], _Patches]]] = {
    "3 believes acks of any epoch": lambda: [(InSync, "counts", lambda *_: True)],
    "4 forgets a proposal": _forgets_a_proposal,
    "5 enters below the start": lambda: [
        (InSync, "has_enough", lambda self, one: self.has(one, on_device=True) >= self.confirm)
    ],
    "5 enters unsynced": _enters_unsynced,
    "6 follows an older epoch": lambda: [(ReplicaCore, "is_fenced", lambda self, epoch: False)],
}


@contextmanager
def mutant(name: str) -> Iterator[None]:
    """Have the product break a rule."""
    with ExitStack() as patches:
        for where, attribute, value in (RARE[name] if name in RARE else MUTANTS[name][0])():
            patches.enter_context(patch.object(where, attribute, value))
        yield
