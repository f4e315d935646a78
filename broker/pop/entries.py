"""Messages that a group has begun with, and not finished: one entry each, with its lane and its lease."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from ..timing_wheel import Timer
from .changes import PopKey

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


class Lease:
    """The lease of ENTRIES; it is over once it has no live one."""

    __slots__ = ("attempt_id", "deadline_ms", "ends_ms", "entries", "live", "owner", "timer")

    def __init__(self, entries: Sequence[Entry], deadline_ms: int, owner: str) -> None:
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
        self.batch: list[Entry] = []
        self.held: deque[Entry] = deque()
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
