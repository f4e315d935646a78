"""The records of one slot of the timer wheel, read from the timer log.

A slot's records are chained from the newest to the oldest, and read in pages, oldest first. Where they are close
together in the log, the range is scanned at once (about 0.03 µs per record) and the chain only verified. Otherwise it
it is followed link by link (0.2 µs). A link that leads forward, out of the log or to no record ends the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...proto.record_run import Ints, Longs
from ..format.rows import Rows
from ..format.timer_log import LINK, NONE, RECORD, RECORD_SIZE, sound_rows
from .files import TimerLog

#: A range is scanned if at least one of this many records in it should belong to the slot.
_STRETCH: Final = 12
_NOWHERE: Final = np.array([-2], np.int64)


@dataclass(frozen=True, slots=True)
class TimerRecords:
    """Records of one slot in the order in which they were entered.

    positions: in the timer log;  log_offsets, sizes: of the messages;  magics: the bits ROLL and DELETE;
    write_ms: when each was entered, rounded down to the precision;  due_ms: the slot time of each.
    """

    positions: Longs
    log_offsets: Longs
    sizes: Ints
    magics: Ints
    write_ms: Longs
    due_ms: Longs

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def of(cls, positions: Longs, rows: Rows) -> TimerRecords:
        """Return the records ROWS at POSITIONS."""
        write_ms = rows["write_ms"].astype(np.int64)
        return cls(
            positions,
            rows["log_offset"].astype(np.int64),
            rows["message_size"].astype(np.int32),
            rows["magic"].astype(np.int32),
            write_ms,
            write_ms + rows["delay_ms"].astype(np.int64),
        )

    @classmethod
    def joined(cls, pieces: Sequence[TimerRecords]) -> TimerRecords:
        """Return PIECES concatenated."""
        if len(pieces) == 1:
            return pieces[0]
        return cls(*(np.concatenate([getattr(p, name) for p in pieces]) for name in cls.__slots__))

    @classmethod
    def none(cls) -> TimerRecords:
        """Return an empty object."""
        return cls.of(np.empty(0, np.int64), RECORD.none())


class TimerSlot:
    """One slot at the moment of its look-up: later records are not in it.

    slot_ms: its time;  count: according to the wheel (messages less recalls; the chain may be longer);
    first, last: positions of the oldest and the newest record, −1 for an empty slot;  complete: was all of it read?

        while not slot.read(2000): …      # let other work run
        for page in slot.pages(): …
    """

    def __init__(
        self,
        log: TimerLog,
        slot_ms: int,
        found: tuple[int, int, int] | None,
        *,
        precision_ms: int,
        after: int = NONE,
    ) -> None:
        """FOUND is the slot in the wheel; only records after the position AFTER are read."""
        self._log = log
        self.slot_ms = slot_ms
        self.first, self.last, self.count = found or (NONE, NONE, 0)
        self._precision_ms = precision_ms
        self._after = after
        self._next = self.last if log.holds(self.last) else NONE
        #: If the chain is followed, the newest page first; if the range is scanned, the oldest first.
        self._pages: list[TimerRecords] = []
        #: The predecessor of the oldest scanned record.
        self._begin_link = NONE
        self._scan_at = self._scan_begin() if self._is_dense() else NONE
        self.complete = self._next == NONE or self._next <= after

    def _scan_begin(self) -> int:
        return max(self.first, self._after + 1, self._log.min_offset)

    def _is_dense(self) -> bool:
        if self._next == NONE or self.first < self._log.min_offset:
            return False
        return self._next - self._scan_begin() <= _STRETCH * RECORD_SIZE * max(self.count, 1)

    def read(self, limit: int) -> bool:
        """Continue reading, up to about LIMIT records; return whether the whole slot is read now."""
        if not self.complete:
            if self._scan_at != NONE:
                self._scan(limit)
            else:
                self._follow(limit)
        return self.complete

    def pages(self) -> list[TimerRecords]:
        """Return the slot's records in pages, the oldest first; only once `complete`."""
        assert self.complete, "read to the end first"
        return self._pages

    def records(self) -> TimerRecords:
        """Return all records of the slot, oldest first; only once `complete`. Joins the pages: 40 ms for a million."""
        return TimerRecords.joined(self.pages()) if self._pages else TimerRecords.none()

    def _follow(self, limit: int) -> None:
        """Follow the chain through up to LIMIT records."""
        position, after = self._next, self._after
        found: list[int] = []
        while position > after and len(found) < limit:
            file = self._log.files.file_at(position)
            if file is None:
                position = NONE
                break
            view, start, end = file.view, file.start, file.position - RECORD_SIZE
            low = max(start, after + 1)
            while position >= low and len(found) < limit:
                at = position - start
                if at > end or at % RECORD_SIZE:
                    position = NONE
                    break
                size, previous = LINK.read(view, at)
                if size != RECORD_SIZE:
                    position = NONE
                    break
                found.append(position)
                position = previous if previous < position else NONE
        positions = np.array(found[::-1], np.int64)
        if found:
            self._pages.append(TimerRecords.of(positions, self._log.rows_at(positions)))
        self._next = position
        if position <= after:
            self._pages.reverse()
            self.complete = True

    def _scan(self, limit: int) -> None:
        """Scan LIMIT records from the end of the last call on."""
        file = self._log.files.file_at(self._scan_at)
        if file is None:
            self._scan_at = NONE
            self._pages.clear()
            return
        begin = -(-(self._scan_at - file.start) // RECORD_SIZE)
        end = min(
            begin + limit, self._log.file_records, (self.last - file.start) // RECORD_SIZE + 1
        )
        rows = self._log.file_rows(file)[begin:end]
        due = rows["write_ms"].astype(np.int64) + rows["delay_ms"]
        mine = np.flatnonzero(
            (due // self._precision_ms * self._precision_ms == self.slot_ms) & sound_rows(rows)
        )
        if len(mine):
            self._keep(file.start + (begin + mine) * RECORD_SIZE, rows[mine])
        at = file.start + end * RECORD_SIZE
        self._scan_at = at if end < self._log.file_records else file.end
        if self._scan_at > self.last:
            self._finish_scan()

    def _keep(self, positions: Longs, rows: Rows) -> None:
        """Add a page of the slot's records; a record that is not chained to the one before it restarts the slot."""
        before = self._pages[-1].positions[-1:] if self._pages else _NOWHERE
        previous = rows["previous"].astype(np.int64)
        breaks = np.flatnonzero(previous != np.concatenate((before, positions[:-1])))
        begin = 0
        if len(breaks):
            begin = int(breaks[-1])
            self._begin_link = int(previous[begin])
            self._pages.clear()
        self._pages.append(TimerRecords.of(positions[begin:], rows[begin:]))

    def _finish_scan(self) -> None:
        """Keep the records chained to the newest one; if the links lead elsewhere, follow them instead."""
        self._scan_at = NONE
        link = self._begin_link
        is_end = link <= self._after or not self._log.holds(link)
        if is_end and self._pages and self._pages[-1].positions[-1] == self.last:
            self._next, self.complete = NONE, True
        else:
            self._pages.clear()
