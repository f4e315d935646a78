"""Leases: for how long delivered messages stay invisible to other consumers.

All messages of one receive share a lease and its timer. A message whose invisible duration is changed gets its own. A
lease with automatic renewal ends only when its owner was silent for RENEWED_MS, or after RENEWED_MAX_MS. Only when the
timer fires, the lease checks for signs of life.

Leases use the time of messages. Whether clients are alive is decided by the machine's time. The event loop owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ..timing.timers import Timers
from .entries import PopEntry, PopLease

#: How long a lease with automatic renewal continues after the last sign of life of its owner.
RENEWED_MS: Final = 60_000
#: Maximum duration of a lease with automatic renewal.
RENEWED_MAX_MS: Final = 3 * 3_600_000
#: How long it continues after its owner has closed.
_GONE_MS: Final = 1_000


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
