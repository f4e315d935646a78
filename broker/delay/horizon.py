"""Timed messages whose slot is near: in memory, by the millisecond at which each is due.

A message takes 41 bytes here (ROW); its record is read again when it is due. Rows that come later for the same slot
join as parts of their own, and parts of like size are merged, so that a row is copied O(log n) times. Rows of one
instant leave in the order of the timer log. Pure: it is told what is due when, and returns it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import Longs
from ...store.format.timers import DELETE, NONE, ROLL
from ...store.timers.slot import TimerRecords, TimerSlot
from .progress import SlotNote

#: One pending message: when it is due, where its timer record and its own record are, when it was entered, the hash
#: of its UNIQ_KEY, and whether it is only to be entered anew.
ROW: Final = np.dtype(
    [
        ("due_ms", np.int64),
        ("position", np.int64),
        ("log_offset", np.int64),
        ("write_ms", np.int64),
        ("size", np.int32),
        ("unique_hash", np.int32),
        ("rolled", np.bool_),
    ]
)
Rows: TypeAlias = NDArray[np.void]
NO_ROWS: Final[Rows] = np.zeros(0, ROW)
_NEVER: Final = (1 << 63) - 1


def rows_of(records: TimerRecords) -> Rows:
    """Return RECORDS of the timer log as rows; when they are due and whose they are is still to be found out."""
    rows = np.zeros(len(records), ROW)
    rows["position"] = records.positions
    rows["log_offset"] = records.log_offsets
    rows["write_ms"] = records.write_ms
    rows["size"] = records.sizes
    rows["rolled"] = (records.magics & ROLL) != 0
    return rows


class DueRows:
    """Rows by due time; those of one instant by their position in the timer log."""

    def __init__(self) -> None:
        #: Each sorted; every one more than twice as long as the next.
        self._parts: list[Rows] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def next_due_ms(self) -> int | None:
        """When the first one is due."""
        return min((int(part["due_ms"][0]) for part in self._parts), default=None)

    def add(self, rows: Rows) -> None:
        if not len(rows):
            return
        self._parts.append(_in_order(rows))
        parts = self._parts
        while len(parts) > 1 and len(parts[-2]) <= 2 * len(parts[-1]):
            last = parts.pop()
            parts[-1] = _in_order(np.concatenate((parts[-1], last)))

    @property
    def first(self) -> tuple[int, int] | None:
        """When the first one is due, and its position in the timer log."""
        heads = ((int(part["due_ms"][0]), int(part["position"][0])) for part in self._parts)
        return min(heads, default=None)

    def take(self, now_ms: int) -> Rows:
        """Take out what is due at NOW_MS, and return it in order."""
        taken: list[Rows] = []
        kept: list[Rows] = []
        for part in self._parts:
            count = int(np.searchsorted(part["due_ms"], now_ms, "right"))
            if count:
                taken.append(part[:count])
            if count < len(part):
                kept.append(part[count:])
        self._parts = kept
        if not taken:
            return NO_ROWS
        return taken[0] if len(taken) == 1 else _in_order(np.concatenate(taken))

    def with_hashes(self, hashes: Longs) -> Rows:
        """Return the rows whose UNIQ_KEY has one of HASHES."""
        found = [part[np.isin(part["unique_hash"], hashes)] for part in self._parts]
        return np.concatenate(found) if found else NO_ROWS

    def remove(self, positions: Longs) -> int:
        """Take out the rows at POSITIONS of the timer log; return how many there were."""
        before = len(self)
        parts = [part[~np.isin(part["position"], positions)] for part in self._parts]
        self._parts = [part for part in parts if len(part)]
        return before - len(self)

    def rows(self) -> Rows:
        return np.concatenate(self._parts) if self._parts else NO_ROWS


def noted(rows: Rows, note: SlotNote) -> NDArray[np.bool_]:
    """Return which of ROWS of one slot NOTE says to be delivered."""
    earlier = rows["due_ms"] < note.due_ms
    earlier |= (rows["due_ms"] == note.due_ms) & (rows["position"] < note.position)
    found: NDArray[np.bool_] = earlier & (rows["position"] <= note.last)
    return found


def delivered_of(rows: Rows, begun: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which of ROWS of one slot were delivered, by what `TimerStore.begun` has of it."""
    newest, due_ms = begun
    found: NDArray[np.bool_] = (rows["log_offset"] <= newest) & (rows["due_ms"] < due_ms)
    return found


def _in_order(rows: Rows) -> Rows:
    due_ms, positions = rows["due_ms"], rows["position"]
    if len(rows) == 1:
        return rows
    return rows[np.lexsort((positions, due_ms))]


class LoadedSlot:
    """One slot: what of it waits in memory, and what is still to be read of its chain.

    slot_ms: its time;  last: the newest record of its chain that was looked at;  newest: where the newest message that
    was looked at begins in the log;  keys: whom its recalls mean;
    begun: was anything of it delivered?  recalls, recalled: of each real topic, how many were read and taken out.
    """

    def __init__(self, slot_ms: int) -> None:
        self.slot_ms = slot_ms
        self.last = self.newest = NONE
        self.keys: set[bytes] = set()
        self.recalls = Counter[str]()
        self.recalled = Counter[str]()
        self.begun = False
        #: Was all of it in memory once (or as much as may be), so that it can be delivered from?
        self.ready = False
        #: The chain while it is being followed; then its recalls, and then its messages, that are not in memory yet.
        self._reader: TimerSlot | None = None
        self.markers = NO_ROWS
        self.unread = NO_ROWS
        self.waiting = DueRows()
        #: Taken out of `waiting` and not delivered yet, in order.
        self.due = NO_ROWS

    # --- reading the chain

    @property
    def is_loading(self) -> bool:
        return self._reader is not None or len(self.markers) > 0 or len(self.unread) > 0

    def read(self, found: TimerSlot) -> None:
        """Begin to read FOUND: what was entered into the slot behind `last`."""
        self._reader = found

    def follow(self, limit: int) -> bool:
        """Follow the chain on through some LIMIT records; return whether it is known now."""
        reader = self._reader
        if reader is None:
            return True
        if not reader.read(limit):
            return False
        self._reader = None
        self.last = max(self.last, reader.last)
        records = reader.records()
        rows = rows_of(records)
        self.newest = max(self.newest, int(rows["log_offset"].max(initial=NONE)))
        markers = (records.magics & DELETE) != 0
        markers &= ~rows["rolled"]
        self.markers, self.unread = rows[markers], rows[~markers]
        return True

    def pass_markers(self, count: int) -> None:
        """Take the next COUNT recalls, which were read, off what is to be read."""
        self.markers = self.markers[count:]

    def next_unread(self, limit: int) -> Rows:
        """Take the next messages, LIMIT at most, off what is to be read."""
        rows, self.unread = self.unread[:limit], self.unread[limit:]
        return rows

    def give_back(self, rows: Rows) -> None:
        """Put ROWS, which were taken last and could not be read, back in front of what is to be read."""
        self.unread = np.concatenate((rows, self.unread))

    # --- what waits

    @property
    def in_memory(self) -> int:
        return len(self.waiting) + len(self.due)

    @property
    def remaining(self) -> int:
        """Return how many of it, as far as known, are still to be delivered."""
        return self.in_memory + len(self.unread)

    @property
    def is_drained(self) -> bool:
        """Is everything that was entered so far delivered?"""
        return self.ready and not self.is_loading and not self.in_memory

    def next_due_ms(self) -> int | None:
        """When the next one is to be delivered; None: none waits in memory."""
        return int(self.due["due_ms"][0]) if len(self.due) else self.waiting.next_due_ms

    def note(self) -> SlotNote:
        """Return what may be noted as delivered: what was looked at and comes before the first one that waits.

        Only of a slot that is ready, and not being read further.
        """
        first = self.waiting.first
        if len(self.due):
            head = int(self.due["due_ms"][0]), int(self.due["position"][0])
            first = head if first is None else min(head, first)
        return SlotNote(self.last, *(first or (_NEVER, 0)))

    def take_due(self, now_ms: int) -> Rows:
        """Return what is due at NOW_MS, in order; `settle` says what of it was delivered."""
        if not len(self.due):
            self.due = self.waiting.take(now_ms)
        return self.due

    def settle(self, count: int, left: Longs) -> None:
        """Of the first COUNT rows that are due all were delivered but those at the positions LEFT."""
        chunk, self.due = self.due[:count], self.due[count:]
        if len(left):
            chunk = chunk[np.isin(chunk["position"], left)]
            self.due = np.concatenate((chunk, self.due))
            self.begun |= len(chunk) < count
        else:
            self.begun = True

    def with_hashes(self, hashes: Iterable[int]) -> Rows:
        """Return the rows in memory whose UNIQ_KEY has one of HASHES."""
        wanted = np.array(list(hashes), np.int64)
        due = self.due[np.isin(self.due["unique_hash"], wanted)]
        return np.concatenate((due, self.waiting.with_hashes(wanted)))

    def remove(self, positions: Longs) -> None:
        """Take the rows at POSITIONS of the timer log out of memory: they were recalled."""
        self.waiting.remove(positions)
        self.due = self.due[~np.isin(self.due["position"], positions)]

    def pending_positions(self) -> Longs:
        """Return where the timer records of all that is still to be delivered are, rising; the chain is known."""
        assert self._reader is None, "follow the chain to its end first"
        parts = (self.due, self.waiting.rows(), self.unread, self.markers)
        return np.sort(np.concatenate([part["position"] for part in parts]))
