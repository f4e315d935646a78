"""Delivers messages of the delay levels, each at the millisecond at which it is due.

Level n waits in queue n − 1 of SCHEDULE_TOPIC_XXXX. All messages of a level wait equally long, so its queue is in the
order of delivery times, and one offset is its progress. The queue entries have the times. Queues of levels that the
settings no longer have are delivered at the times in their entries.

Due messages are delivered oldest first across all levels, at equal times in the order of the log. One turn of the event
loop delivers up to CHUNK_MESSAGES and CHUNK_BYTES, so that a backlog does not stop sends. Then a timer waits for the
next one, for at least `pause_ms`, because single deliveries cost much more. Copies that the store refuses (full,
failed) are retried after RETRY_MS, before any other.

Source: store-format.md §7.1, Apache's ScheduleMessageService.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from ...proto.clock import STEP_MIN_MS, Clock, ahead_ms
from ...proto.errors import PocketMQError
from ...proto.record_run import Longs, RunColumns, parse_run, starts_of
from ...proto.topics import SCHEDULE_TOPIC
from ...store.commit_log import store_time_ms
from ...store.format.agreement import Entries, QueueName
from ...store.format.queues import ADDRESS_MAX
from ...store.message_store import MessageStore
from ..messages.appender import Appends
from ..timing.timers import Timers
from ..timing.turns import Turns
from .deliveries import TRY_AGAIN, DelayedDeliveries
from .progress import LevelProgress

logger = logging.getLogger(__name__)

#: Entries that are known ahead.
ENTRIES_MAX: Final = 500
#: What is delivered in one turn of the loop.
CHUNK_MESSAGES: Final = ENTRIES_MAX
CHUNK_BYTES: Final = 1024 * 1024
#: When the store is asked again that could not take copies.
RETRY_MS: Final = 100
#: When it is tried again after a bug.
_BUG_RETRY_MS: Final = 10_000
_LEVELS: Final = QueueName(SCHEDULE_TOPIC)
#: The delay of a level that there is no more is not known: no time in its queue counts as one of a wrong clock.
_ANY_DELAY_MS: Final = 1 << 50
#: When messages came is known to such a part of their level's delay.
_MARKS: Final = 64


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Records under way; PASSED: how many entries of each level are done with when they are delivered.

    last: where the last of them lies in the log.
    """

    records: bytes
    columns: RunColumns
    passed: list[tuple[Level, int]]
    last: int

    def without(self, done: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> _Chunk:
        """Return the chunk without the records that are DONE."""
        return _Chunk(self.records, self.columns.take(~done), self.passed, self.last)


class LevelDeliveries:
    """Delivers the levels of STORE. `start` on a running loop; `stop` before the store is closed.

    PROGRESS is saved by whoever calls its `save`, and exactly by `stop`. TIMERS go by CLOCK, the messages' time.
    """

    def __init__(
        self,
        store: MessageStore,
        timers: Timers,
        clock: Clock,
        deliveries: DelayedDeliveries,
        appends: Appends,
        progress: LevelProgress,
        *,
        pause_ms: int = 0,
    ) -> None:
        """PAUSE_MS: two deliveries are so far apart, and messages so much late at most, if the clock passes by itself
        (0 for one that is moved by hand)."""
        self._store = store
        self._turns = Turns(timers, clock, self._step)
        self._clock = clock
        self._deliveries = deliveries
        self._progress = progress
        self._pause_ms = pause_ms
        self._not_before_ms = 0
        self._levels = [
            Level(number, delay_ms, 0) for number, delay_ms in _delays_ms(store).items()
        ]
        #: What lies behind this in the log came since the start.
        self._own_from = 0
        #: Where the record lies that was delivered last.
        self._delivered_last = -1
        #: What could not be delivered yet.
        self._failed: _Chunk | None = None
        #: Was it told that the levels wait?
        self._waits = False
        self._running = False
        for level in self._levels:
            appends.listen(SCHEDULE_TOPIC, level.queue, partial(self._on_append, level))

    @property
    def waiting(self) -> int:
        """Return how many messages wait."""
        count = 0
        for level in self._levels:
            _, end = self._store.queue_bounds(SCHEDULE_TOPIC, level.queue)
            count += max(0, end - level.offset)
        return count

    def oldest_log_offset(self) -> int | None:
        """Return where in the log the oldest message that waits begins; None if none does."""
        offsets = [int(level.log_offsets[0]) for level in self._levels if len(level.log_offsets)]
        return min(offsets, default=None)

    def start(self) -> None:
        """Begin where the last broker stopped, with what is overdue."""
        self._running = True
        self._own_from = self._store.max_log_offset
        for level in self._levels:
            # Without its queue a position means nothing.
            there = self._store.queues.get(SCHEDULE_TOPIC, level.queue) is not None
            level.offset = self._progress.offset(level.number) if there else 0
            self._read_level(level)
            if there:
                self._progress.reached(level.number, level.offset)
        self._turns.follow_wall()
        self._turns.soon()

    async def stop(self) -> None:
        """Deliver nothing any more; have what was delivered on the device, and note exactly what that was."""
        if not self._running:
            return
        self._running = False
        self._turns.stop()
        await self._progress.save_exactly()

    # --- turns of the loop

    def _on_append(self, level: Level) -> None:
        """Wake in time for what has arrived; behind other messages of its level it comes when these are done."""
        if not self._running:
            return
        level.arrivals.note(self._clock.now_ms(), self._store.max_log_offset)
        if len(level.due_ms):
            return
        try:
            self._read_level(level)
        except PocketMQError as error:
            self._fail(error)
            self._turns.by(self._clock.now_ms() + RETRY_MS)
            return
        self._progress.reached(level.number, level.offset)
        next_ms = level.next_ms(ahead_ms(self._clock))
        if next_ms is None or self._failed is not None or self._turns.comes_next:
            return
        self._turns.by(max(next_ms, self._not_before_ms))

    def _step(self) -> None:
        """Deliver a chunk of what is due, and see to it that the rest follows at its time."""
        if not self._running:
            return
        now_ms = self._clock.now_ms()
        # Read together: what is due at `now_ms` is so by the wall clock, to the millisecond.
        ahead = self._clock.unix_ms() - now_ms
        try:
            self._read_again()
            chunk = self._failed or self._gather(now_ms, ahead)
            if chunk is None or self._deliver(chunk):
                self._go_on(now_ms, ahead, paused=chunk is not None)
            else:
                self._turns.at(now_ms + RETRY_MS)
        except PocketMQError as error:
            self._fail(error)
            self._turns.at(now_ms + RETRY_MS)
        except Exception:  # The edge of the loop: a bug must not stop all levels for good.
            logger.exception("delay levels wait")
            self._turns.at(now_ms + _BUG_RETRY_MS)

    def _read_again(self) -> None:
        """Read the entries that could not be read before."""
        for level in self._levels:
            if level.unread:
                self._read_level(level)
                self._progress.reached(level.number, level.offset)

    def _go_on(self, now_ms: int, ahead: int, *, paused: bool) -> None:
        """Deliver what is due at NOW_MS in the next turn, and what is due later when it is, but after a pause."""
        instants = [level.next_ms(ahead) for level in self._levels]
        next_ms = min((instant for instant in instants if instant is not None), default=None)
        if paused:
            self._not_before_ms = now_ms + self._pause_ms
        if next_ms is None:
            return
        if next_ms <= now_ms:
            self._turns.soon()
        else:
            self._turns.at(max(next_ms, self._not_before_ms))

    # --- one chunk

    def _gather(self, now_ms: int, ahead: int) -> _Chunk | None:
        """Return what is to be delivered next; None if nothing is due."""
        due: list[tuple[Level, Longs]] = []
        for level in self._levels:
            times = self._due_times(level, now_ms, ahead)
            if len(times):
                due.append((level, times))
        if not due:
            return None
        counts = [len(times) for _, times in due]
        places = np.repeat(np.arange(len(due)), counts)
        log_offsets, sizes = (
            np.concatenate([getattr(level, name)[: len(times)] for level, times in due])
            for name in ("log_offsets", "sizes")
        )
        order = np.lexsort((log_offsets, np.concatenate([times for _, times in due])))
        order = order[:CHUNK_MESSAGES]
        fitting = int(np.searchsorted(np.cumsum(sizes[order]), CHUNK_BYTES, "right"))
        order = order[: max(fitting, 1)]
        # Times rise along a queue, so what is taken of a level are its first entries.
        taken = np.bincount(places[order], minlength=len(due)).tolist()
        passed = [(level, count) for (level, _), count in zip(due, taken, strict=True) if count]
        return self._read(log_offsets[order], sizes[order], passed)

    def _due_times(self, level: Level, now_ms: int, ahead: int) -> Longs:
        """Return the times of the leading entries of LEVEL that are due, all of them that a chunk may hold."""
        next_ms = level.next_ms(ahead)
        if next_ms is None or next_ms > now_ms:
            return nothing()
        times = level.instants(ahead)
        count = int(np.searchsorted(times, now_ms, "right"))
        if count == len(times) < CHUNK_MESSAGES and level.more(self._store):
            self._read_level(level)
            times = level.instants(ahead)
            count = int(np.searchsorted(times, now_ms, "right"))
        return times[:count]

    def _read_level(self, level: Level) -> None:
        level.read(self._store, self._clock.now_ms(), ahead_ms(self._clock), self._own_from)

    def _read(self, log_offsets: Longs, sizes: Longs, passed: list[tuple[Level, int]]) -> _Chunk:
        # Where records of a queue were lost, recovery has their entries tell of the next one: that comes once.
        fresh = np.diff(log_offsets, prepend=self._delivered_last) != 0
        log_offsets, sizes = log_offsets[fresh], sizes[fresh]
        if not len(sizes):
            return _Chunk(b"", parse_run(b"", nothing()), passed, self._delivered_last)
        entries = Entries(passed[0][0].offset, log_offsets, sizes, np.zeros_like(sizes))
        records, rows = self._store.read_records(entries, _LEVELS)
        columns = parse_run(records, starts_of(sizes[rows]))
        return _Chunk(records, columns, passed, int(log_offsets[-1]))

    def _deliver(self, chunk: _Chunk) -> bool:
        """Deliver CHUNK and move on; or keep what has to be tried again, and return false."""
        if len(chunk.columns):
            outcome = self._deliveries.deliver(chunk.records, chunk.columns)
            if outcome.error is not None:
                self._fail(outcome.error)
                self._failed = chunk.without(outcome.states != TRY_AGAIN)
                return False
        if self._waits:
            logger.info("delay levels go on")
        self._failed, self._waits = None, False
        self._delivered_last = chunk.last
        for level, count in chunk.passed:
            level.pass_over(count)
            level.unread |= not len(level.due_ms)
            self._progress.reached(level.number, level.offset, count)
        self._read_again()
        return True

    def _fail(self, error: PocketMQError) -> None:
        if not self._waits:
            logger.warning("delay levels wait: %s", error.message)
        self._waits = True


def _delays_ms(store: MessageStore) -> dict[int, int]:
    """Return the delays of the levels, and of those whose queues STORE has from earlier settings."""
    delays = dict(enumerate(store.config.delay_levels_ms, start=1))
    queues = [queue for topic, queue in store.queue_names() if topic == SCHEDULE_TOPIC]
    return dict.fromkeys((queue + 1 for queue in queues), _ANY_DELAY_MS) | delays


# --- one level


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
    shows; log_offsets, sizes. An entry further ahead than the level's delay counts as due, as with Apache: a clock that
    was ahead wrote it. A message that arrived in this run of the broker waits for the level's delay at most, whatever
    the store stamped it with, also if the clock was set back. AHEAD_MS: how far the wall clock is ahead of instants.
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
        _, end = store.queue_bounds(SCHEDULE_TOPIC, self.queue)
        parts = [(nothing(), nothing(), nothing())]
        count = 0
        while count < ENTRIES_MAX and at < end:
            part = queue.entries(at, min(ENTRIES_MAX - count, end - at))
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
