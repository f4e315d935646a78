"""What a broker asks of its replica while that is master in one epoch.

The replica passes a new `Mastership` to the broker for each epoch. All is called on the event loop, and nothing here
waits. A broker without replicas has no mastership.

    `check_master`        in the turn that answers anything: stored, read or committed must be answered as master
    `when_still_master`   before it answers that something is missing
    `check_open`          when a request arrives: nothing new is taken during a transfer of leadership
    `check_acks`          before an append with acks="replicas"
    `appended`            in the turn of each append
    `when_acknowledged`   to answer acks="replicas"
    `on_confirm`          for long polls: the store's readers show only confirmed messages (`Reader.confirm`)
    `producers`           the table of idempotent producers, as the replica had it when it followed
    `on_end`              to be fenced in the very turn in which the epoch ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ...proto.errors import PocketMQError
from ..producers.producers import Producers
from .state_source import StatePart, StateSource

#: Called once: with the number of replicas that have it, and None; or with 0 and the reason.
Acknowledged = Callable[[int, PocketMQError | None], None]
#: Called once: with None, or with the reason why not.
Told = Callable[[PocketMQError | None], None]


class Mastership(Protocol):
    """What a broker asks of the replica that it serves for, while that is master in EPOCH."""

    @property
    def replica_id(self) -> int:
        """The number of the replica in its set, from 1 on."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch in which it is master, from 1 on."""
        ...

    @property
    def producers(self) -> Producers | None:
        """The idempotent producers in the log, for the broker to continue with; None: it must read them there."""
        ...

    @property
    def in_sync(self) -> int:
        """How many replicas are in sync, the master among them: for those who look at the broker."""
        ...

    def check_master(self) -> None:
        """Raise MasterFenced unless an answer may be given as master in this very turn: epoch and lease hold."""
        ...

    def when_still_master(self, told: Told) -> None:
        """Call TOLD once the metadata store has said, to a later request, that the session has not ended.

        So no other master was elected before this call. The lease cannot tell: the store may end a session early.
        TOLD may get MasterFenced instead, or Overloaded.
        """
        ...

    def check_open(self) -> None:
        """Raise MasterFenced unless a new request may be taken: `check_master`, and no transfer has started."""
        ...

    def check_acks(self, min_in_sync: int = 0) -> None:
        """Raise NotEnoughReplicas if too few are in sync for acks="replicas": fewer than the set's least, or the
        MIN_IN_SYNC that a topic has of its own. Asked before anything is stored."""
        ...

    def appended(self, end: int) -> None:
        """Note, in the turn of each append, that the log ends at END now, with a complete record."""
        ...

    def when_acknowledged(self, end: int, tell: Acknowledged) -> None:
        """Call TELL once all in sync have acknowledged the log before END. It may be called at once.

        Instead TELL may get NotEnoughReplicasAfterAppend or MasterFenced: another replica may be master by now. Waiters
        left at the end of the epoch need no call: the broker fails them itself.
        """
        ...

    def on_confirm(self, tell: Callable[[int], None]) -> None:
        """TELL, from now on, each time that the confirm offset has risen; the store's readers know it already."""
        ...

    def on_end(self, tell: Callable[[PocketMQError], None]) -> None:
        """TELL, once, that it is over, and why: the store is to be left alone from that turn on."""
        ...

    def replicate(self, parts: Iterable[StatePart], log_end: Callable[[], int]) -> StateSource:
        """Replicate PARTS, the broker's tables, from now on; LOG_END returns the end of its log.

        Return what reports when all in sync have something. No replica enters the in-sync set before this, nor without
        these tables.
        """
        ...
