"""One delay level: its position in its queue, and when what waits there from that on is due. Told the time; no timers.

The queue entries hold the times (the store puts them there), as the wall clock showed them. A message that came in this
run of the broker waits for its level's delay at most, whatever the store stamped it with: when each came is noted.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...proto.clock import STEP_MIN_MS
from ...proto.record_run import Longs
from ...proto.topics import SCHEDULE_TOPIC
from ...store.log_writer import store_time_ms
from ...store.message_store import MessageStore
from ...store.queue_extension import ADDRESS_MAX

logger = logging.getLogger(__name__)

#: Entries that are known ahead.
ENTRIES_MAX: Final = 500
#: When messages came is known to such a part of their level's delay.
_MARKS: Final = 64


def nothing() -> Longs:
    return np.zeros(0, np.int64)


class Arrivals:
    """When the messages of one level that wait came, whatever stamp they have; late by 1/64 of DELAY_MS at most."""

    __slots__ = ("_delay_ms", "_marks", "_over")

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        #: Instant of the first and of the last message, and the end of the log behind that.
        self._marks: deque[tuple[int, int, int]] = deque()
        #: What lies before in the log has waited for its delay.
        self._over = 0

    def note(self, now_ms: int, log_end: int) -> None:
        """Hear that messages came at NOW_MS, which lie before LOG_END in the log."""
        marks = self._marks
        if marks and now_ms - marks[-1][0] <= self._delay_ms // _MARKS:
            marks[-1] = marks[-1][0], now_ms, log_end
            return
        marks.append((now_ms, now_ms, log_end))
        while marks[0][1] + self._delay_ms <= now_ms:
            self._over = marks.popleft()[2]

    def due_ms(self, log_offsets: Longs, now_ms: int) -> Longs:
        """Return when those at LOG_OFFSETS have waited for the delay; NOW_MS is the present."""
        ends = np.array([end for _, _, end in self._marks], np.int64)
        came = np.array([*(last for _, last, _ in self._marks), now_ms], np.int64)
        waited = log_offsets < self._over
        seen = came[np.searchsorted(ends, log_offsets, "right")]
        return np.where(waited, now_ms, seen + self._delay_ms)


@dataclass(slots=True)
class Level:
    """One level: its position, and the queue entries from there on, as far as they are known.

    Entries are one array each: due_ms, by the wall clock; until_ms, the instant at which it is due whatever that
    shows; log_offsets, sizes. AHEAD_MS: how far the wall clock is ahead of instants.
    """

    number: int
    delay_ms: int
    offset: int
    due_ms: Longs = field(default_factory=nothing)
    until_ms: Longs = field(default_factory=nothing)
    log_offsets: Longs = field(default_factory=nothing)
    sizes: Longs = field(default_factory=nothing)
    arrivals: Arrivals = field(init=False)
    #: Could its entries not be read the last time? Then what is known of them is older.
    unread: bool = False

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(self.delay_ms)

    @property
    def queue(self) -> int:
        return self.number - 1

    def read(self, store: MessageStore, now_ms: int, ahead_ms: int, own_from: int) -> None:
        """Read entries from the position on, which moves to where the queue has some.

        NOW_MS is the present; what lies behind OWN_FROM in the log came in this run of the broker. Raises what the
        store raises: then nothing has changed but `unread`.
        """
        known, known_offset = self.until_ms, self.offset
        self.unread = True
        self._read(store)
        self.unread = False
        instants = self.due_ms - ahead_ms
        own = self.log_offsets >= own_from
        latest = np.where(own, self.arrivals.due_ms(self.log_offsets, now_ms), now_ms)
        too_late = np.where(
            own, instants - latest >= STEP_MIN_MS, instants - now_ms > self.delay_ms
        )
        self.until_ms = np.where(too_late, latest, instants)
        if self.offset == known_offset:
            count = min(len(known), len(self.until_ms))
            self.until_ms[:count] = known[:count]

    def _read(self, store: MessageStore) -> None:
        queue = store.queues.get(SCHEDULE_TOPIC, self.queue)
        if queue is None:
            self.log_offsets, self.sizes, self.due_ms = nothing(), nothing(), nothing()
            return
        first = at = self._corrected(queue.min_offset, queue.max_offset)
        parts = [(nothing(), nothing(), nothing())]
        count = 0
        while count < ENTRIES_MAX and at < queue.max_offset:
            part = queue.entries(at, ENTRIES_MAX - count)
            if len(part[0]):
                parts.append(part)
                count, at = count + len(part[0]), at + len(part[0])
            elif count:
                break  # A hole: entries are read up to it, and behind it when they are done.
            else:
                first = at = queue.offset_behind_hole(at)
        log_offsets, sizes, due_ms = map(np.concatenate, zip(*parts, strict=True))
        for row in np.flatnonzero(due_ms <= ADDRESS_MAX).tolist():
            # A Java broker's extension of the entry is gone: as Apache, go by the record.
            stored_ms = store_time_ms(store.log, int(log_offsets[row]))
            due_ms[row] = 0 if stored_ms is None else stored_ms + self.delay_ms
        self.offset, self.log_offsets, self.sizes, self.due_ms = first, log_offsets, sizes, due_ms

    def _corrected(self, low: int, high: int) -> int:
        """Return the position, or the next one to it that the queue has."""
        corrected = max(low, min(self.offset, high))
        if corrected != self.offset:
            logger.warning(
                "position of a delay level was corrected",
                extra={"level": self.number, "from": self.offset, "to": corrected},
            )
        return corrected

    def instants(self, ahead_ms: int) -> Longs:
        """Return when each entry is due, rising."""
        return np.maximum.accumulate(np.minimum(self.due_ms - ahead_ms, self.until_ms))

    def next_ms(self, ahead_ms: int) -> int | None:
        """Return when the next message is due; None if none waits."""
        if not len(self.due_ms):
            return None
        return min(int(self.due_ms[0]) - ahead_ms, int(self.until_ms[0]))

    def more(self, store: MessageStore) -> bool:
        """Has the queue entries behind those that are known?"""
        _, end = store.queue_bounds(SCHEDULE_TOPIC, self.queue)
        return self.offset + len(self.due_ms) < end

    def pass_over(self, count: int) -> None:
        """Move the position behind COUNT messages."""
        self.offset += count
        self.due_ms = self.due_ms[count:]
        self.until_ms = self.until_ms[count:]
        self.log_offsets = self.log_offsets[count:]
        self.sizes = self.sizes[count:]
