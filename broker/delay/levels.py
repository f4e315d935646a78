"""Delivers messages of the delay levels, each at the millisecond at which it is due.

Level n waits in queue n − 1 of SCHEDULE_TOPIC_XXXX. All messages of a level wait equally long, so its queue is in the
order of delivery times, and one offset is its progress. The queue entries have the times. Queues of levels that the
settings no longer have are delivered at the times in their entries.

Due messages are delivered oldest first across all levels, at equal times in the order of the log. One turn of the event
loop delivers up to CHUNK_MESSAGES and CHUNK_BYTES, so that a backlog does not stop sends. Then a timer waits for the
next one, for at least `pause_ms`, because single deliveries cost much more. Copies that the store refuses (full,
failed) are retried after RETRY_MS, before any other.

Source: store-format.md §7.1; ScheduleMessageService of Apache RocketMQ.
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
from ..messages.appender import Appender
from ..timing.timers import Timers
from ..timing.turns import StepScheduler
from .deliveries import TRY_AGAIN, DelayedDeliveries
from .progress import LevelProgress

logger = logging.getLogger(__name__)

#: Limit of queue entries per level that are read ahead.
ENTRIES_MAX: Final = 500
#: Limits of one delivery, in one turn of the event loop.
CHUNK_MESSAGES: Final = ENTRIES_MAX
CHUNK_BYTES: Final = 1024 * 1024
#: Delay before a retry after the store could not append copies.
RETRY_MS: Final = 100
#: Delay before a retry after an unexpected exception.
_BUG_RETRY_MS: Final = 10_000
_LEVELS: Final = QueueName(SCHEDULE_TOPIC)
#: The delay of a removed level, which is unknown: no due time in its queue is too far ahead.
_ANY_DELAY_MS: Final = 1 << 50
#: Arrival times are known to 1/64 of the delay of their level.
_MARKS: Final = 64


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Records that are being delivered. PASSED: how many entries of each level they and skipped entries make up.

    last: the log offset of the last record
    """

    records: bytes
    columns: RunColumns
    passed: list[tuple[Level, int]]
    last: int

    def without(self, done: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> _Chunk:
        """Return the chunk without the records that are DONE."""
        return _Chunk(self.records, self.columns.take(~done), self.passed, self.last)


class LevelDeliveries:
    """Delivers the levels of STORE. Call `start` on a running loop, and `stop` before the store is closed.

    The caller saves PROGRESS with its `save`; `stop` saves it exactly. TIMERS use CLOCK, the time of messages.
    """

    def __init__(
        self,
        store: MessageStore,
        timers: Timers,
        clock: Clock,
        deliveries: DelayedDeliveries,
        appends: Appender,
        progress: LevelProgress,
        *,
        pause_ms: int = 0,
    ) -> None:
        """PAUSE_MS: the minimum time between two deliveries, by which messages may be late; 0 for a virtual clock."""
        self._store = store
        self._turns = StepScheduler(timers, clock, self._step)
        self._clock = clock
        self._deliveries = deliveries
        self._progress = progress
        self._pause_ms = pause_ms
        self._not_before_ms = 0
        self._levels = [
            Level(number, delay_ms, 0) for number, delay_ms in _delays_ms(store).items()
        ]
        #: Messages after this log offset arrived after the start.
        self._own_from = 0
        #: The log offset of the record that was delivered last.
        self._delivered_last = -1
        #: A chunk that must be retried.
        self._failed: _Chunk | None = None
        #: Whether the log already has a warning that deliveries fail.
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
        """Return the log offset of the oldest message that waits; None if none waits."""
        offsets = [int(level.log_offsets[0]) for level in self._levels if len(level.log_offsets)]
        return min(offsets, default=None)

    def start(self) -> None:
        """Start at the progress of the last broker, with overdue messages first."""
        self._running = True
        self._own_from = self._store.max_log_offset
        for level in self._levels:
            # Without its queue, a stored position is meaningless.
            there = self._store.queues.get(SCHEDULE_TOPIC, level.queue) is not None
            level.offset = self._progress.offset(level.number) if there else 0
            self._read_level(level)
            if there:
                self._progress.reached(level.number, level.offset)
        self._turns.reschedule_on_clock_change()
        self._turns.soon()

    async def stop(self) -> None:
        """Stop delivering; then save the exact progress, once the delivered messages are on disk."""
        if not self._running:
            return
        self._running = False
        self._turns.stop()
        await self._progress.save_exactly()

    def _on_append(self, level: Level) -> None:
        """Set the timer for new messages of LEVEL, unless older messages of the level wait."""
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
        """Deliver a chunk of due messages, and set the timer for the next one."""
        if not self._running:
            return
        now_ms = self._clock.now_ms()
        # Read both clocks in the same step, so that due times in wall-clock time are compared to
        # the millisecond.
        ahead = self._clock.unix_ms() - now_ms
        try:
            self._read_again()
            chunk = self._failed or self._gather(now_ms, ahead)
            if chunk is None or self._deliver(chunk):
                self._schedule_next(now_ms, ahead, paused=chunk is not None)
            else:
                self._turns.at(now_ms + RETRY_MS)
        except PocketMQError as error:
            self._fail(error)
            self._turns.at(now_ms + RETRY_MS)
        except Exception:
            # The outermost call of this work: a bug must not stop all levels forever.
            logger.exception("delivery of delay levels failed, it will be retried")
            self._turns.at(now_ms + _BUG_RETRY_MS)

    def _read_again(self) -> None:
        """Read the entries that could not be read before."""
        for level in self._levels:
            if level.unread:
                self._read_level(level)
                self._progress.reached(level.number, level.offset)

    def _schedule_next(self, now_ms: int, ahead: int, *, paused: bool) -> None:
        """Continue in the next turn if messages are due at NOW_MS, else at the next due time, but after a pause."""
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

    def _gather(self, now_ms: int, ahead: int) -> _Chunk | None:
        """Return the next chunk to deliver; None if nothing is due."""
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
        # Due times rise along a queue, so the chunk has the first entries of each level.
        taken = np.bincount(places[order], minlength=len(due)).tolist()
        passed = [(level, count) for (level, _), count in zip(due, taken, strict=True) if count]
        return self._read(log_offsets[order], sizes[order], passed)

    def _due_times(self, level: Level, now_ms: int, ahead: int) -> Longs:
        """Return the due times of the leading entries of LEVEL that are due, up to one chunk."""
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
        # After lost records, recovery lets several entries of a queue point to the next record:
        # deliver it once.
        fresh = np.diff(log_offsets, prepend=self._delivered_last) != 0
        log_offsets, sizes = log_offsets[fresh], sizes[fresh]
        if not len(sizes):
            return _Chunk(b"", parse_run(b"", nothing()), passed, self._delivered_last)
        entries = Entries(passed[0][0].offset, log_offsets, sizes, np.zeros_like(sizes))
        records, rows = self._store.read_records(entries, _LEVELS)
        columns = parse_run(records, starts_of(sizes[rows]))
        return _Chunk(records, columns, passed, int(log_offsets[-1]))

    def _deliver(self, chunk: _Chunk) -> bool:
        """Deliver CHUNK and advance; or store the records to retry, and return False."""
        if len(chunk.columns):
            outcome = self._deliveries.deliver(chunk.records, chunk.columns)
            if outcome.error is not None:
                self._fail(outcome.error)
                self._failed = chunk.without(outcome.states != TRY_AGAIN)
                return False
        if self._waits:
            logger.info("delivery of delay levels continues")
        self._failed, self._waits = None, False
        self._delivered_last = chunk.last
        for level, count in chunk.passed:
            level.advance(count)
            level.unread |= not len(level.due_ms)
            self._progress.reached(level.number, level.offset, count)
        self._read_again()
        return True

    def _fail(self, error: PocketMQError) -> None:
        if not self._waits:
            logger.warning("delivery of delay levels failed, it will be retried: %s", error.message)
        self._waits = True


def _delays_ms(store: MessageStore) -> dict[int, int]:
    """Return the delays of the levels, and of queues in STORE whose levels the settings no longer have."""
    delays = dict(enumerate(store.config.delay_levels_ms, start=1))
    queues = [queue for topic, queue in store.queue_names() if topic == SCHEDULE_TOPIC]
    return dict.fromkeys((queue + 1 for queue in queues), _ANY_DELAY_MS) | delays


# --- one level


def nothing() -> Longs:
    return np.zeros(0, np.int64)


class Arrivals:
    """When the waiting messages of one level arrived, whatever their stamps; up to 1/64 of DELAY_MS too late."""

    __slots__ = ("_delay_ms", "_marks", "_over")

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        #: Arrival time of the first and of the last message, and the log offset after them.
        self._marks: deque[tuple[int, int, int]] = deque()
        #: Messages before this log offset have waited for their delay.
        self._over = 0

    def note(self, now_ms: int, log_end: int) -> None:
        """Record that messages before LOG_END in the log arrived at NOW_MS."""
        marks = self._marks
        if marks and now_ms - marks[-1][0] <= self._delay_ms // _MARKS:
            marks[-1] = marks[-1][0], now_ms, log_end
            return
        marks.append((now_ms, now_ms, log_end))
        while marks[0][1] + self._delay_ms <= now_ms:
            self._over = marks.popleft()[2]

    def due_ms(self, log_offsets: Longs, now_ms: int) -> Longs:
        """Return when the messages at LOG_OFFSETS have waited for the delay; NOW_MS is the present time."""
        ends = np.array([end for _, _, end in self._marks], np.int64)
        came = np.array([*(last for _, last, _ in self._marks), now_ms], np.int64)
        waited = log_offsets < self._over
        seen = came[np.searchsorted(ends, log_offsets, "right")]
        return np.where(waited, now_ms, seen + self._delay_ms)


@dataclass(slots=True)
class Level:
    """One level: its position, and the queue entries from there that are known.

    Entries are arrays: due_ms, by the wall clock; until_ms, the timer time at which it is due in any case; log_offsets;
    sizes. An entry that is due later than the delay of the level allows counts as due, as in Apache RocketMQ: a wrong
    clock wrote it. A message that arrived since the start of the broker waits no longer than the delay of the level,
    whatever its stamp, also if the clock was set back. AHEAD_MS: wall-clock time minus timer time.
    """

    number: int
    delay_ms: int
    offset: int
    due_ms: Longs = field(default_factory=nothing)
    until_ms: Longs = field(default_factory=nothing)
    log_offsets: Longs = field(default_factory=nothing)
    sizes: Longs = field(default_factory=nothing)
    arrivals: Arrivals = field(init=False)
    #: Whether the last read failed; then the known entries are older.
    unread: bool = False

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(self.delay_ms)

    @property
    def queue(self) -> int:
        return self.number - 1

    def read(self, store: MessageStore, now_ms: int, ahead_ms: int, own_from: int) -> None:
        """Read entries from the position on. The position moves to an existing entry.

        NOW_MS is the present time. Messages after OWN_FROM in the log arrived since the start of the broker. If the
        store raises an error, only `unread` changes.
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
                break  # A gap: entries are read up to it; those after it when these are delivered.
            else:
                first = at = queue.offset_behind_hole(at)
        log_offsets, sizes, due_ms = map(np.concatenate, zip(*parts, strict=True))
        for row in np.flatnonzero(due_ms <= ADDRESS_MAX).tolist():
            # A Java broker does not keep the extension of the entry: use the record, as it does.
            stored_ms = store_time_ms(store.log, int(log_offsets[row]))
            due_ms[row] = 0 if stored_ms is None else stored_ms + self.delay_ms
        self.offset, self.log_offsets, self.sizes, self.due_ms = first, log_offsets, sizes, due_ms

    def _corrected(self, low: int, high: int) -> int:
        """Return the position, or the nearest one that exists in the queue."""
        corrected = max(low, min(self.offset, high))
        if corrected != self.offset:
            logger.warning(
                "position of delay level corrected level=%d from=%d to=%d",
                self.number,
                self.offset,
                corrected,
            )
        return corrected

    def instants(self, ahead_ms: int) -> Longs:
        """Return when each entry is due in timer time, rising."""
        return np.maximum.accumulate(np.minimum(self.due_ms - ahead_ms, self.until_ms))

    def next_ms(self, ahead_ms: int) -> int | None:
        """Return when the next message is due; None if none waits."""
        if not len(self.due_ms):
            return None
        return min(int(self.due_ms[0]) - ahead_ms, int(self.until_ms[0]))

    def more(self, store: MessageStore) -> bool:
        """Return whether the queue has entries after the known ones."""
        _, end = store.queue_bounds(SCHEDULE_TOPIC, self.queue)
        return self.offset + len(self.due_ms) < end

    def advance(self, count: int) -> None:
        """Move the position past COUNT messages."""
        self.offset += count
        self.due_ms = self.due_ms[count:]
        self.until_ms = self.until_ms[count:]
        self.log_offsets = self.log_offsets[count:]
        self.sizes = self.sizes[count:]
