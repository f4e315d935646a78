"""Entries of scheduled messages: the slot of each, its record in the timer log, and its place in the slot's chain.

RocketMQ's rule (doEnqueue): a message goes to the slot of its TIMER_OUT_MS. If it is due after a roll window or more,
it gets the roll bit and goes one window ahead, or half a window if less than a third would remain. If it is due before
the oldest pending slot, it goes to that slot. A recall has the delete bit, and reduces its slot's count by one.

A slot's records are chained from the newest to the oldest, and read in pages, oldest first. Where they are close
together in the log, the range is scanned at once (about 0.03 µs per record) and the chain only verified. Otherwise it
is followed link by link (0.2 µs). A link that leads forward, out of the log or to no record ends the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import Ints, Longs
from ..config import INT_MAX
from ..format.log_and_queues import Rows
from ..format.timers import DELETE, LINK, NONE, ORDINARY, RECORD, RECORD_SIZE, ROLL, sound_rows
from .files import TimerLog, TimerRing


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerBatch:
    """Consecutive messages of the timer topic, one row each; messages without a valid TIMER_OUT_MS are left out.

    log_offsets, sizes: where they are;  out_ms: TIMER_OUT_MS;  deletes: has it TIMER_DEL_UNIQKEY;
    topic_hashes: String.hashCode of REAL_TOPIC, 0 if none;  next_queue_offset: of the timer topic, after them.
    """

    log_offsets: Longs
    sizes: Ints
    out_ms: Longs
    deletes: NDArray[np.bool_]
    topic_hashes: Ints
    next_queue_offset: int

    def __len__(self) -> int:
        return len(self.log_offsets)

    def take(self, rows: NDArray[np.bool_]) -> TimerBatch:
        """Return the chosen ROWS, up to the same queue offset."""
        return TimerBatch(
            log_offsets=self.log_offsets[rows],
            sizes=self.sizes[rows],
            out_ms=self.out_ms[rows],
            deletes=self.deletes[rows],
            topic_hashes=self.topic_hashes[rows],
            next_queue_offset=self.next_queue_offset,
        )


@dataclass(frozen=True, slots=True)
class Filing:
    """The rule: a unit of PRECISION_MS, a roll window of so many slots, and the oldest slot that waits."""

    precision_ms: int
    roll_window_slots: int
    read_ms: int

    def slot_of(self, out_ms: int, write_ms: int) -> tuple[int, int]:
        """Return the time to file a message of OUT_MS under that is entered at WRITE_MS, and the roll bit or 0."""
        window_ms = self.roll_window_slots * self.precision_ms
        roll = out_ms - write_ms >= window_ms
        if roll:
            near = out_ms - write_ms - window_ms < self.roll_window_slots // 3 * self.precision_ms
            half_ms = self.roll_window_slots // 2 * self.precision_ms
            out_ms = write_ms + (half_ms if near else window_ms)
        return max(out_ms, self.read_ms), ROLL if roll else 0

    def rows(self, batch: TimerBatch, write_ms: int) -> Rows:
        """Return the records of BATCH, entered at WRITE_MS; they are not chained yet."""
        window_ms = self.roll_window_slots * self.precision_ms
        ahead = batch.out_ms - write_ms
        roll = ahead >= window_ms
        slots_ms = batch.out_ms
        if roll.any():
            near = ahead - window_ms < self.roll_window_slots // 3 * self.precision_ms
            half_ms = self.roll_window_slots // 2 * self.precision_ms
            rolled_ms = write_ms + np.where(near, half_ms, window_ms)
            slots_ms = np.where(roll, rolled_ms, slots_ms)
        slots_ms = np.maximum(slots_ms, self.read_ms)
        delays = slots_ms - write_ms
        rows = RECORD.zeros(len(batch))
        rows["size"] = RECORD_SIZE
        rows["magic"] = ORDINARY + roll * ROLL + batch.deletes * DELETE
        # An int of milliseconds covers 24 days: what is longer overdue counts as entered when it was due.
        too_old = np.abs(delays) > INT_MAX
        rows["write_ms"] = np.where(too_old, slots_ms, write_ms)
        rows["delay_ms"] = np.where(too_old, 0, delays)
        rows["log_offset"] = batch.log_offsets
        rows["message_size"] = batch.sizes
        rows["topic_hash"] = batch.topic_hashes
        return rows

    def packed(
        self, batch: TimerBatch, number: int, slot_ms: int, roll: int, write_ms: int, previous: int
    ) -> bytes:
        """Return the record of the message NUMBER of BATCH: the same as one of `rows`, for less work."""
        delay_ms = slot_ms - write_ms
        if abs(delay_ms) > INT_MAX:
            write_ms, delay_ms = slot_ms, 0
        return RECORD.pack(
            RECORD_SIZE,
            previous,
            ORDINARY | roll | (DELETE if batch.deletes[number] else 0),
            write_ms,
            delay_ms,
            int(batch.log_offsets[number]),
            int(batch.sizes[number]),
            int(batch.topic_hashes[number]),
            0,
        )


def times_of(rows: Rows, precision_ms: int) -> Longs:
    """Return the slot of each of ROWS, in units of the precision."""
    times: Longs = (rows["write_ms"].astype(np.int64) + rows["delay_ms"]) // precision_ms
    return times


def signs_of(rows: Rows) -> Longs:
    """Return what each of ROWS adds to its slot's count: 1, or −1 for a recall."""
    signs: Longs = np.where((rows["magic"] & DELETE) != 0, -1, 1).astype(np.int64)
    return signs


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """What the slots of TIMES will hold, all different; END is the latest of them."""

    times: Longs
    firsts: Longs
    lasts: Longs
    counts: Longs

    def put(self, ring: TimerRing) -> None:
        ring.put_many(self.times, self.firsts, self.lasts, self.counts)


def chain(ring: TimerRing, rows: Rows, positions: Longs, precision_ms: int) -> SlotChanges:
    """Chain ROWS, which will be at POSITIONS, to each other and to the content of RING's slots; ROWS are not empty."""
    times = times_of(rows, precision_ms)
    order = np.argsort(times, kind="stable")
    times, places = times[order], positions[order]
    starts = np.flatnonzero(np.concatenate(([True], times[1:] != times[:-1])))
    slots = times[starts]
    firsts, lasts, counts = ring.get_many(slots)
    previous = np.empty(len(rows), np.int64)
    previous[1:] = places[:-1]
    previous[starts] = lasts
    rows["previous"][order] = previous
    ends = np.concatenate((starts[1:], [len(rows)])) - 1
    return SlotChanges(
        slots,
        np.where(firsts == NONE, places[starts], firsts),
        places[ends],
        counts + np.add.reduceat(signs_of(rows)[order], starts),
    )


def replay(ring: TimerRing, rows: Rows, positions: Longs, precision_ms: int) -> None:
    """Enter ROWS of the log, at POSITIONS, into RING, as far as its slots do not have them.

    A record without a predecessor restarts its slot. Slots that are not pending are left alone.
    """
    times = times_of(rows, precision_ms)
    pending = (times >= ring.read_time) & (times <= ring.end_time)
    rows, times, places = rows[pending], times[pending], positions[pending]
    if not len(rows):
        return
    known = ring.get_many(times)[1]
    fresh = places > known
    rows, times, places = rows[fresh], times[fresh], places[fresh]
    if not len(rows):
        return
    order = np.argsort(times, kind="stable")
    rows, times, places = rows[order], times[order], places[order]
    starts = np.flatnonzero(np.concatenate(([True], times[1:] != times[:-1])))
    ends = np.concatenate((starts[1:], [len(rows)])) - 1
    begins = np.where(rows["previous"] == NONE, np.arange(len(rows)), -1)
    begin = np.maximum.reduceat(begins, starts)
    firsts, _, counts = ring.get_many(times[starts])
    anew = (begin >= 0) | (firsts == NONE)
    begin = np.maximum(begin, starts)
    sums = np.concatenate(([0], np.cumsum(signs_of(rows))))
    added = sums[ends + 1] - sums[begin]
    ring.put_many(
        times[starts],
        np.where(anew, places[begin], firsts),
        places[ends],
        np.where(anew, added, counts + added),
    )


# ---------------------------------------------------------------- reading one slot of the timer wheel


#: A stretch is looked through if at least one of so many records in it should be of the slot.
_STRETCH: Final = 12
_NOWHERE: Final = np.array([-2], np.int64)


@dataclass(frozen=True, slots=True)
class TimerRecords:
    """Records of one slot in the order in which they were entered.

    positions: in the timer log;  log_offsets, sizes: of the messages;  magics: bits (ROLL, DELETE of format/timers.py);
    write_ms: when each was entered, floored to the precision;  due_ms: the time that each is filed under.
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
        """Return PIECES end to end."""
        if len(pieces) == 1:
            return pieces[0]
        return cls(*(np.concatenate([getattr(p, name) for p in pieces]) for name in cls.__slots__))

    @classmethod
    def none(cls) -> TimerRecords:
        """Return no records."""
        return cls.of(np.empty(0, np.int64), RECORD.none())


class TimerSlot:
    """One slot at the moment it was looked up: later records are not in it.

    slot_ms: its time;  count: what the wheel says (messages less recalls; the chain may be longer);
    first, last: positions of the oldest and the newest record, −1 for an empty slot;  complete: all was read.

        while not slot.read(2000): …      # let others work
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
        #: Followed: the newest page first; looked through: the oldest first.
        self._pages: list[TimerRecords] = []
        #: What the oldest record of the pages that were looked through is chained to.
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
        """Read on, up to about LIMIT records; return whether the whole slot is read now."""
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

    # --- step by step --------------------------------------------------------------------------------------------

    def _follow(self, limit: int) -> None:
        """Follow the chain through at most LIMIT records."""
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

    # --- at once -------------------------------------------------------------------------------------------------

    def _scan(self, limit: int) -> None:
        """Look through LIMIT records from where the last call stopped."""
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
        """Keep what is chained to the newest record; if the links lead elsewhere, follow them instead."""
        self._scan_at = NONE
        link = self._begin_link
        is_end = link <= self._after or not self._log.holds(link)
        if is_end and self._pages and self._pages[-1].positions[-1] == self.last:
            self._next, self.complete = NONE, True
        else:
            self._pages.clear()
