"""Entries of scheduled messages: the slot of each, its record in the timer log, and its place in the slot's chain.

RocketMQ's rule (doEnqueue): a message goes to the slot of its TIMER_OUT_MS. If it is due after a roll window or more,
it gets the roll bit and goes one window ahead, or half a window if less than a third would remain. If it is due before
the oldest pending slot, it goes to that slot. A recall has the delete bit, and reduces its slot's count by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import Ints, Longs
from ..config import INT_MAX
from ..format.rows import Rows
from ..format.timer_log import DELETE, NONE, ORDINARY, RECORD, RECORD_SIZE, ROLL
from .files import TimerRing


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerBatch:
    """Consecutive messages of the timer topic, one row each; messages without a valid TIMER_OUT_MS are left out.

    log_offsets, sizes: of the messages;  out_ms: TIMER_OUT_MS;  deletes: does it have TIMER_DEL_UNIQKEY;
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
class TimerAppend:
    """The rule for the slot of a message: PRECISION_MS, a roll window in slots, and the oldest pending slot."""

    precision_ms: int
    roll_window_slots: int
    read_ms: int

    def slot_of(self, out_ms: int, write_ms: int) -> tuple[int, int]:
        """Return the slot time of a message of OUT_MS that is entered at WRITE_MS, and the roll bit or 0."""
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
        # A 32-bit number of ms covers 24 days: longer overdue messages count as entered when they were due.
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
        """Return the record of the message NUMBER of BATCH: the same as one of `rows`, but faster."""
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
    """Return the change of its slot's count for each of ROWS: 1, or −1 for a recall."""
    signs: Longs = np.where((rows["magic"] & DELETE) != 0, -1, 1).astype(np.int64)
    return signs


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """The new content of the slots of TIMES, all different; END is the latest of them."""

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
