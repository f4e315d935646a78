"""Messages in flight of one queue and group: an entry each, their lease, and the order of a message group.

`PopLeases` (leases.py) grants leases. The event loop owns all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from ..timing.timing_wheel import Timer
from .deliveries import PopKey

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
