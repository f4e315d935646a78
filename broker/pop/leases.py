"""Leases: for how long delivered messages stay invisible to other consumers.

All messages of one receive share a lease and its timer. A message whose invisible duration is changed gets its own. A
lease with automatic renewal ends only when its owner was silent for RENEWED_MS, or after RENEWED_MAX_MS. Only when the
timer fires, the lease checks for signs of life.

Leases use the time of messages. Whether clients are alive is decided by the machine's time. The event loop owns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from .deliveries import PopKey

#: How long a lease with automatic renewal continues after the last sign of life of its owner.
RENEWED_MS: Final = 60_000
#: Maximum duration of a lease with automatic renewal.
RENEWED_MAX_MS: Final = 3 * 3_600_000
#: How long it continues after its owner has closed.
_GONE_MS: Final = 1_000
#: Offsets that are tried one by one before the lowest entry is searched.
_STEPS_MAX: Final = 256


class PopEntry:
    """One message: in flight while LEASE is not None, otherwise due or held."""

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
        #: Log offset of its record; -1: not known.
        self.log_offset = log_offset
        #: Number of its deliveries.
        self.attempt = 0
        #: Serial of its latest delivery.
        self.serial = 0
        self.lease: PopLease | None = None
        #: The message group whose order it must keep; None: none.
        self.lane: OrderedQueue | None = None
        #: Whether it is acknowledged, but will be redelivered if an earlier one of its batch is.
        self.acknowledged = False


class PopQueue:
    """One queue for a group: all below `low` is finished; nothing from `next_offset` on was scanned."""

    __slots__ = ("entries", "key", "low", "next_offset")

    def __init__(self, key: PopKey, next_offset: int) -> None:
        self.key = key
        self.low = self.next_offset = next_offset
        #: Entries by offset, all in [low, next_offset).
        self.entries: dict[int, PopEntry] = {}

    def advance_low(self) -> bool:
        """Raise `low` to the lowest entry, or to `next_offset`; return whether it changed."""
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
        """Assert the invariants that hold between calls."""
        assert self.low <= self.next_offset
        assert all(self.low <= offset < self.next_offset for offset in self.entries)
        assert self.low == min(self.entries, default=self.next_offset)


class PopLease:
    """A lease of ENTRIES; it ends when it has no entries left."""

    __slots__ = (
        "attempt_id",
        "deadline_ms",
        "ends_ms",
        "entries",
        "is_suspended",
        "live",
        "owner",
        "timer",
    )

    def __init__(self, entries: Sequence[PopEntry], deadline_ms: int, owner: str) -> None:
        self.entries = entries
        self.live = len(entries)
        self.deadline_ms = deadline_ms
        self.owner = owner
        #: The maximum end of a lease with automatic renewal; 0: no renewal.
        self.ends_ms = 0
        self.attempt_id = ""
        #: Whether it was granted by a suspension.
        self.is_suspended = False
        self.timer: Timer | None = None


class OrderedQueue:
    """One message group of one queue."""

    __slots__ = ("batch", "held", "label", "turn")

    def __init__(self, label: bytes) -> None:
        self.label = label
        self.batch: list[PopEntry] = []
        self.held: deque[PopEntry] = deque()
        #: The latest receive that took messages from it: it may take more.
        self.turn = 0

    @property
    def is_leased(self) -> bool:
        """Return whether a message of the batch is in flight."""
        return any(entry.lease is not None for entry in self.batch)

    def take_back(self) -> None:
        """Move the batch back to the front of the held messages: it is redelivered."""
        self.held.extendleft(reversed(self.batch))
        self.batch.clear()


class PopLeases:
    """All leases, with their timers in TIMERS. WALL_MS returns the machine's time."""

    def __init__(self, timers: Timers, wall_ms: Callable[[], int]) -> None:
        self._timers = timers
        self.wall_ms = wall_ms
        self.now_ms = timers.now_ms
        #: Leases with automatic renewal by owner; and the last sign of life of each of these
        #: owners.
        self._by_owner: dict[str, dict[PopLease, None]] = {}
        self._heard_ms: dict[str, int] = {}

    def grant(
        self,
        entries: Sequence[PopEntry],
        deadline_ms: int,
        owner: str,
        expired: Callable[[PopLease], None],
        *,
        renews_until_ms: int = 0,
    ) -> PopLease:
        """Lease ENTRIES to OWNER until DEADLINE_MS; call LAPSED at the end.

        With RENEWS_UNTIL_MS the lease is renewed while the owner lives, up to this time; it ends when the owner closes.
        """
        lease = PopLease(entries, deadline_ms, owner)
        for entry in entries:
            entry.lease = lease
        if renews_until_ms:
            lease.ends_ms = renews_until_ms
            self._by_owner.setdefault(owner, {})[lease] = None
            self._heard_ms[owner] = self.wall_ms()
        lease.timer = self._timers.at(deadline_ms, partial(self._fire, lease, expired))
        return lease

    def release(self, entry: PopEntry) -> None:
        """Remove ENTRY from its lease, which ends with the last one."""
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

    def _fire(self, lease: PopLease, expired: Callable[[PopLease], None]) -> None:
        if lease.ends_ms:
            now_ms = self.now_ms()
            left_ms = self._heard_ms[lease.owner] + RENEWED_MS - self.wall_ms()
            if left_ms > 0 and now_ms < lease.ends_ms:
                self._move(lease, min(now_ms + left_ms, lease.ends_ms))
                return
        self._forget(lease)
        expired(lease)

    def _move(self, lease: PopLease, deadline_ms: int) -> None:
        assert lease.timer is not None, "set when granted"
        lease.deadline_ms = deadline_ms
        self._timers.reschedule(lease.timer, deadline_ms)

    def unacknowledged(self) -> dict[str, int]:
        """Return the number of messages per owner that are in leases with automatic renewal."""
        return {
            owner: sum(lease.live for lease in leases) for owner, leases in self._by_owner.items()
        }

    def alive(self, owner: str) -> None:
        """Record a sign of life of OWNER: its leases with automatic renewal continue."""
        if owner in self._heard_ms:
            self._heard_ms[owner] = self.wall_ms()

    def gone(self, owner: str) -> None:
        """End the leases of OWNER with automatic renewal in one second."""
        leases = self._by_owner.pop(owner, None)
        if leases is None:
            return
        del self._heard_ms[owner]
        for lease in leases:
            lease.ends_ms = 0
            self._move(lease, min(lease.deadline_ms, self.now_ms() + _GONE_MS))
