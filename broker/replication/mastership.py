"""The interface of a broker to its replica while that is master in one epoch.

The replica passes a new `Mastership` to the broker for each epoch. All methods are called on the event loop, and none
waits. A broker without replicas has no mastership.

    `check_master`        in the turn that sends an answer of the master
    `when_still_master`   before an answer that something is missing
    `check_open`          when a request arrives: nothing new is accepted during a transfer of leadership
    `check_acks`          before an append with acks="replicas"
    `appended`            in the turn of each append
    `when_acknowledged`   to answer acks="replicas"
    `on_confirm`          for long polls: the store's readers show only confirmed messages (`Reader.confirm`)
    `producers`           the table of idempotent producers, as the replica had it when it followed
    `on_end`              to fence the broker in the turn in which the epoch ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ...proto.errors import PocketMQError
from ..producers.producers import Producers
from .state_source import StatePart, StateSource

#: Called once: with the number of replicas that have it, and None; or with 0 and the reason.
Acknowledged = Callable[[int, PocketMQError | None], None]
#: Called once: with None, or with the error.
Told = Callable[[PocketMQError | None], None]


class Mastership(Protocol):
    """The leadership of a replica in EPOCH, as its broker uses it."""

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
        """The idempotent producers in the log; None: the broker must read them from the log."""
        ...

    @property
    def in_sync(self) -> int:
        """The number of replicas in sync, including the master, for display."""
        ...

    def check_master(self) -> None:
        """Raise MasterFenced unless an answer may be sent as master in this turn: epoch and lease are valid."""
        ...

    def when_still_master(self, told: Told) -> None:
        """Call TOLD once the metadata store has confirmed, to a later request, that the session has not ended.

        So no other master was elected before this call. The lease is not enough: the store may end a session early.
        TOLD may be called with MasterFenced or Overloaded instead.
        """
        ...

    def check_open(self) -> None:
        """Raise MasterFenced unless a new request may be accepted: `check_master`, and no transfer has started."""
        ...

    def check_acks(self, min_in_sync: int = 0) -> None:
        """Raise NotEnoughReplicas if too few replicas are in sync for acks="replicas".

        The limit is the set's min_in_sync, or the MIN_IN_SYNC of the topic if that is higher. Call this before anything
        is stored.
        """
        ...

    def appended(self, end: int) -> None:
        """Record, in the turn of each append, that the log ends at END now, with a complete record."""
        ...

    def when_acknowledged(self, end: int, tell: Acknowledged) -> None:
        """Call TELL once all replicas in sync have acknowledged the log before END; perhaps at once.

        TELL may get NotEnoughReplicasAfterAppend or MasterFenced instead: another replica may be master by now. Waiters
        that are left at the end of the epoch are not called: the broker fails them itself.
        """
        ...

    def on_confirm(self, tell: Callable[[int], None]) -> None:
        """Call TELL each time that the confirm offset has risen, after the store's readers know it."""
        ...

    def on_end(self, tell: Callable[[PocketMQError], None]) -> None:
        """Call TELL once when the leadership has ended, with the reason: from that turn on, the store must not be
        changed.
        """
        ...

    def replicate(self, parts: Iterable[StatePart], log_end: Callable[[], int]) -> StateSource:
        """Replicate PARTS, the broker's tables, from now on. LOG_END returns the end of its log.

        Returns the source, which reports when all replicas in sync have a change. No replica joins the in-sync set
        before this call, nor without these tables.
        """
        ...
