"""Messages that a group has begun with, and not finished: one entry each, by queue and offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .changes import PopKey

if TYPE_CHECKING:
    from .lanes import Lane
    from .leases import Lease

#: So many steps are made one by one before the lowest entry is searched for.
_STEPS_MAX: Final = 256


class Entry:
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
        self.lease: Lease | None = None
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
        self.entries: dict[int, Entry] = {}

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
