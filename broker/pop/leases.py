"""Leases: how long deliveries are their receiver's; and the entries that are leased: messages begun with, not finished.

All messages of one receive have one lease, and one timer; a message whose time is changed gets one of its own. A lease
that renews ends only when its owner has not been heard of for RENEWED_MS, or after RENEWED_MAX_MS. Nothing is done
while an owner lives but that the timer, when it fires, asks when it was last heard of.

Leases are in messages' time; whether clients live is told by the machine's. Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ...proto.clock import past_instant
from ..timing.timers import Timer, Timers
from .journal_format import ClockMark, PopKey

#: How long a lease that renews outlasts the last word of its owner.
RENEWED_MS: Final = 60_000
#: And how long it lasts at most.
RENEWED_MAX_MS: Final = 3 * 3_600_000
#: How long after its owner has gone.
_GONE_MS: Final = 1_000
#: So many steps are made one by one before the lowest entry is searched for.
_STEPS_MAX: Final = 256


class PopEntry:
    """One message: in flight while LEASE is not None, due or held back otherwise."""

    __slots__ = (
        "acknowledged",
        "attempt",
        "lane",
        "lease",
        "log_offset",
        "offset",
        "queue",
        "serial",
    )

    def __init__(self, queue: PopQueue, offset: int, log_offset: int = -1) -> None:
        self.queue = queue
        self.offset = offset
        #: Where its record lies; -1: not known.
        self.log_offset = log_offset
        #: How often it was delivered.
        self.attempt = 0
        #: Of its latest delivery.
        self.serial = 0
        self.lease: PopLease | None = None
        #: What it has to keep its order with; None: nothing.
        self.lane: Lane | None = None
        #: It is finished, but comes again if one before it does.
        self.acknowledged = False


class PopQueue:
    """One queue as a group has it: everything below `low` is finished; from `next_offset` on nothing was looked at."""

    __slots__ = ("entries", "key", "low", "next_offset")

    def __init__(self, key: PopKey, next_offset: int) -> None:
        self.key = key
        self.low = self.next_offset = next_offset
        #: By offset, all in [low, next_offset).
        self.entries: dict[int, PopEntry] = {}

    def settle(self) -> bool:
        """Raise `low` to the lowest entry, or to `next_offset`; return whether it rose."""
        entries, low = self.entries, self.low
        if not entries:
            self.low = self.next_offset
            return low != self.next_offset
        for at in range(low, low + _STEPS_MAX):
            if at in entries:
                self.low = at
                return at != low
        self.low = min(entries)
        return True

    def check(self) -> None:
        """Assert what always holds between calls."""
        assert self.low <= self.next_offset
        assert all(self.low <= offset < self.next_offset for offset in self.entries)
        assert self.low == min(self.entries, default=self.next_offset)


class PopLease:
    """The lease of ENTRIES; it is over once it has no live one."""

    __slots__ = ("attempt_id", "deadline_ms", "ends_ms", "entries", "live", "owner", "timer")

    def __init__(self, entries: Sequence[PopEntry], deadline_ms: int, owner: str) -> None:
        self.entries = entries
        self.live = len(entries)
        self.deadline_ms = deadline_ms
        self.owner = owner
        #: When it ends however long its owner lives; 0: it does not renew.
        self.ends_ms = 0
        self.attempt_id = ""
        self.timer: Timer | None = None


class Lane:
    """One message group of one queue."""

    __slots__ = ("batch", "held", "label", "turn")

    def __init__(self, label: bytes) -> None:
        self.label = label
        self.batch: list[PopEntry] = []
        self.held: deque[PopEntry] = deque()
        #: The receive that has taken from it last: it may take more.
        self.turn = 0

    @property
    def is_leased(self) -> bool:
        """Is anything of the batch still somebody's?"""
        return any(entry.lease is not None for entry in self.batch)

    def take_back(self) -> None:
        """Hold the batch again, in front: it comes again."""
        self.held.extendleft(reversed(self.batch))
        self.batch.clear()


class PopLeases:
    """All leases, on TIMERS; WALL_MS tells the machine's time."""

    def __init__(self, timers: Timers, wall_ms: Callable[[], int]) -> None:
        self._timers = timers
        self.wall_ms = wall_ms
        self.now_ms = timers.now_ms
        #: Those that renew, by owner; and when each of these owners was last heard of.
        self._by_owner: dict[str, dict[PopLease, None]] = {}
        self._heard_ms: dict[str, int] = {}

    def grant(
        self,
        entries: Sequence[PopEntry],
        deadline_ms: int,
        owner: str,
        lapsed: Callable[[PopLease], None],
        *,
        renews_until_ms: int = 0,
    ) -> PopLease:
        """Lend ENTRIES to OWNER until DEADLINE_MS; LAPSED is called at the end.

        With RENEWS_UNTIL_MS while it lives, until then at most; and it ends when its owner goes.
        """
        lease = PopLease(entries, deadline_ms, owner)
        for entry in entries:
            entry.lease = lease
        if renews_until_ms:
            lease.ends_ms = renews_until_ms
            self._by_owner.setdefault(owner, {})[lease] = None
            self._heard_ms[owner] = self.wall_ms()
        lease.timer = self._timers.at(deadline_ms, partial(self._fire, lease, lapsed))
        return lease

    def restored_ms(self, mark: ClockMark, kept_ms: int) -> int:
        """Return the instant of this process that was KEPT_MS in an earlier one, whose clocks showed MARK.

        What has passed between the two is told by the wall clock; where that was set back, nothing has.
        """
        return past_instant(self._timers, mark.unix_ms) + kept_ms - mark.now_ms

    def release(self, entry: PopEntry) -> None:
        """Take ENTRY out of its lease, which is over with the last one."""
        lease, entry.lease = entry.lease, None
        if lease is None:
            return
        lease.live -= 1
        if not lease.live:
            self._end(lease)

    def _end(self, lease: PopLease) -> None:
        assert lease.timer is not None, "set when granted"
        self._timers.cancel(lease.timer)
        self._forget(lease)

    def _forget(self, lease: PopLease) -> None:
        if lease.ends_ms:
            owned = self._by_owner[lease.owner]
            del owned[lease]
            if not owned:
                del self._by_owner[lease.owner], self._heard_ms[lease.owner]

    def _fire(self, lease: PopLease, lapsed: Callable[[PopLease], None]) -> None:
        if lease.ends_ms:
            now_ms = self.now_ms()
            left_ms = self._heard_ms[lease.owner] + RENEWED_MS - self.wall_ms()
            if left_ms > 0 and now_ms < lease.ends_ms:
                self._move(lease, min(now_ms + left_ms, lease.ends_ms))
                return
        self._forget(lease)
        lapsed(lease)

    def _move(self, lease: PopLease, deadline_ms: int) -> None:
        assert lease.timer is not None, "set when granted"
        lease.deadline_ms = deadline_ms
        self._timers.reschedule(lease.timer, deadline_ms)

    def owed(self) -> dict[str, int]:
        """Return how many messages each owner has on leases that renew."""
        return {
            owner: sum(lease.live for lease in leases) for owner, leases in self._by_owner.items()
        }

    def alive(self, owner: str) -> None:
        """Hear that OWNER lives: what it has on leases that renew stays its own."""
        if owner in self._heard_ms:
            self._heard_ms[owner] = self.wall_ms()

    def gone(self, owner: str) -> None:
        """Have what OWNER has on leases that renew come again in a second."""
        leases = self._by_owner.pop(owner, None)
        if leases is None:
            return
        del self._heard_ms[owner]
        for lease in leases:
            lease.ends_ms = 0
            self._move(lease, min(lease.deadline_ms, self.now_ms() + _GONE_MS))
