"""Scheduled messages: the slot of the timer wheel for each, on disk in RocketMQ's format.

Messages of the timer topic are in the commit log. Each has a record in the timer log, chained to the
others of its slot; there is one slot per `timer_precision_ms`, and the wheel has both ends of each chain. The broker
enters messages with `enqueue`, reads slots from `read_ms` on, and reports deliveries with `delivered_up_to`.

After a kill everything that was entered is there (missing records are entered again from the queue), and the read time
is up to two seconds old. After a power cut the same is true for the flushed part of the commit log. The checkpoint
never claims data that is not on disk, so messages may be delivered twice, but are not lost.

Slots span less than two weeks from `read_ms` on. Source: store-format.md §7.2 and RocketMQ's TimerMessageStore.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...proto.errors import CorruptState, DiskFailure, StoreFull
from ...proto.facts import Facts
from ...proto.record_run import Longs
from ...proto.topics import TIMER_TOPIC
from ..checkpoints import TimerCheckpoint, TimerCheckpointFile
from ..disk import Disk
from ..files import Syncable, bytes_of
from ..format.state_tables import DataVersion, TimedCount, parse_timer_metrics, render_timer_metrics
from ..format.timer_log import DELETE, NONE, ORDINARY, RECORD, RECORD_SIZE
from ..health import StoreHealth
from ..parts import StoreParts
from ..state_files import StateFile
from .entry import TimerAppend, TimerBatch, chain, signs_of
from .files import TimerLog, TimerRing
from .slot import TimerSlot

logger = logging.getLogger(__name__)

FILE_NAME: Final = "timermetrics"
#: Interval at which the read time is saved while nothing is delivered.
_IDLE_MS: Final = 60_000
#: Up to this many records, plain Python is faster than numpy.
_FEW: Final = 24


class TimerMetrics:
    """The number of pending scheduled messages of each topic of the store at ROOT: config/timermetrics.

    NOW_MS stamps changes. The counts are only shown, not used for delivery. Changes of the last second before a kill
    may be missing.
    """

    def __init__(self, disk: Disk, root: str, now_ms: Callable[[], int]) -> None:
        """Read the file; if it and its backup do not parse, it counts as empty."""
        self._now_ms = now_ms
        self._file = StateFile(disk, root, FILE_NAME)
        self._counts: dict[str, TimedCount] = {}
        self._version = DataVersion()
        self._changed = False
        try:
            loaded = self._file.load(parse_timer_metrics)
        except CorruptState as error:
            logger.warning(
                "timer metrics unreadable, counts start from zero %s", Facts(reason=error.message)
            )
            return
        if loaded.problem:
            logger.warning("timer metrics repaired %s", Facts(reason=loaded.problem))
        if loaded.value is not None:
            self._version, self._counts = loaded.value

    def add(self, topic: str, count: int) -> int:
        """Add COUNT (negative: delivered or recalled) to the number of messages of TOPIC; return the new number.

        Costs less than a microsecond; the file follows within about a second.
        """
        now_ms = self._now_ms()
        found = self._counts.setdefault(topic, TimedCount(0, now_ms))
        found.count += count
        found.changed_ms = now_ms
        self._version = self._version.next(now_ms)
        self._changed = True
        return found.count

    def replace(self, counts: Mapping[str, int]) -> None:
        """Set the number of pending messages of each topic to COUNTS."""
        for topic, count in counts.items():
            if (more := count - self.count(topic)) != 0:
                self.add(topic, more)

    @property
    def version(self) -> DataVersion:
        """Changes with each change of a count."""
        return self._version

    def count(self, topic: str) -> int:
        """Return the number of pending messages of TOPIC."""
        found = self._counts.get(topic)
        return 0 if found is None else found.count

    def remove(self, topic: str) -> None:
        """Forget TOPIC, which was deleted."""
        if self._counts.pop(topic, None) is not None:
            self._version = self._version.next(self._now_ms())
            self._changed = True

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of pending messages by topic."""
        return {topic: found.count for topic, found in self._counts.items()}

    def take_text(self) -> str | None:
        """Return the new content of the file, if it changed since the last call."""
        if not self._changed:
            return None
        self._changed = False
        return render_timer_metrics(self._version, self._counts)

    def save(self, text: str) -> None:
        """Write TEXT to disk; StoreFull or DiskFailure. The flushing thread may call it."""
        self._file.save(text)


@dataclass(frozen=True, slots=True)
class SlotReservation:
    """A state of the timers that may be written once the commit log is on disk up to `log_end`.

    Up to there are the messages of all records before `timer_end`, and everything delivered before `read_ms`.
    worth_ms: the read time from which writing is worthwhile, if nothing else changed;  always: it is worthwhile anyway.
    """

    log_end: int
    timer_end: int
    queue_offset: int
    read_ms: int
    worth_ms: int
    always: bool = False

    def is_news(self, known: TimerCheckpoint) -> bool:
        """Does it differ from KNOWN enough to be written?"""
        if self.always:
            return True
        if (self.timer_end, self.queue_offset) != (known.log_flushed, known.queue_offset):
            return True
        return known.last_read_ms < self.worth_ms or self.read_ms - known.last_read_ms >= _IDLE_MS

    def values(self, known: TimerCheckpoint, now_ms: int) -> TimerCheckpoint:
        """Return the checkpoint of this state."""
        return known.advanced(self.read_ms, self.timer_end, self.queue_offset, now_ms)


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """Writes VALUES, as a part of a flush job after the data that they are about."""

    file: TimerCheckpointFile
    values: TimerCheckpoint

    def sync(self) -> None:
        try:
            self.file.write(self.values)
        except StoreFull as error:  # An older checkpoint is valid, too: recovery begins earlier.
            logger.warning("timer checkpoint not written %s", Facts(reason=error.message))


@dataclass(frozen=True, slots=True)
class MetricsPart:
    """Writes TEXT to the metrics file, as a part of a flush job."""

    metrics: TimerMetrics
    text: str

    def sync(self) -> None:
        try:
            self.metrics.save(self.text)
        except StoreFull as error:  # Then the file keeps the previous counts.
            logger.warning("timer metrics not written %s", Facts(reason=error.message))


class TimerStore:
    """The timers of one store, created by `recovery.open_timers`.

    read_ms: start of the oldest slot that was not completely delivered, a multiple of the precision (currReadTimeMs in
    RocketMQ);  queue_offset: next message of the timer topic to enter (commitQueueOffset);  metrics: how many messages
    of each topic wait.
    """

    def __init__(self, parts: StoreParts, health: StoreHealth, now_ms: Callable[[], int]) -> None:
        config, disk = parts.config, parts.disk
        self.precision_ms = config.timer_precision_ms
        self.roll_window_slots = config.timer_roll_window_slots
        self.metrics = TimerMetrics(disk, config.path, now_ms)
        self.log = TimerLog(disk, config.timer_log_folder, config.timer_log_file_size_bytes)
        self.ring = TimerRing(disk, config.timer_wheel_path)
        self.checkpoint = TimerCheckpointFile(disk, config.timer_checkpoint_path)
        self.queue_offset = 0
        self._parts = parts
        self._health = health
        self._now_ms = now_ms
        #: The last read time, and the queue offset of the timer topic that had been entered then; None: none.
        self.reached: tuple[int, int] | None = None
        #: Partly delivered slots by their time: log offset of the newest message that was examined, and the due time
        #: up to which all were delivered. The broker maintains it.
        self.begun: dict[int, tuple[int, int]] = {}
        self._claim: SlotReservation | None = None
        self._worth_ms = 0
        self._flushed_offset = 0

    @property
    def read_ms(self) -> int:
        return self.ring.read_time * self.precision_ms

    @property
    def pending(self) -> int:
        """Return the number of pending records in all slots, less recalls."""
        return self.ring.pending

    def count(self, slot_ms: int) -> int:
        """Return the number of pending records in the slot of SLOT_MS, less recalls; 0 for one that has passed."""
        time = slot_ms // self.precision_ms
        found = self.ring.get(time) if time >= self.ring.read_time else None
        return found[2] if found else 0

    def oldest_log_offset(self) -> int | None:
        """Return the log offset of the oldest pending message; None if there is none."""
        times = self.ring.pending_times()
        if not len(times):
            return None
        firsts = self.ring.get_many(times)[0]
        firsts = firsts[(firsts >= self.log.min_offset) & (firsts < self.log.max_offset)]
        return int(self.log.rows_at(firsts)["log_offset"].min()) if len(firsts) else None

    def next_slot(self, from_ms: int) -> int | None:
        """Return the time of the first slot from FROM_MS on that has records; None if there is none."""
        time = self.ring.next_time(-(-from_ms // self.precision_ms))
        return None if time is None else time * self.precision_ms

    def slot(self, slot_ms: int, *, after: int = NONE) -> TimerSlot:
        """Return the slot of SLOT_MS for reading; only records after the position AFTER of the timer log.

        Records may be entered into a slot that is being read. Only a later look-up sees them, with positions after the
        `last` of the earlier one. A record with the delete bit whose message has no TIMER_DEL_UNIQKEY is ignored, and
        so is a record whose message is not in the timer topic.
        """
        time = slot_ms // self.precision_ms
        return TimerSlot(
            self.log,
            time * self.precision_ms,
            self.ring.get(time),
            precision_ms=self.precision_ms,
            after=after,
        )

    def go_on_at(self, queue_offset: int) -> None:
        """Make the message at QUEUE_OFFSET of the timer topic the next one to enter."""
        self.queue_offset = queue_offset

    def enqueue(self, batch: TimerBatch, now_ms: int) -> None:
        """Enter BATCH, which begins at `queue_offset` of the timer topic; all of it or nothing.

        Raises StoreFull if the disk is full, or for a slot too far ahead of the oldest undelivered one for the wheel
        (details `reason` = "behind"): wait and retry. Also DiskFailure, StoreClosed.
        """
        self._health.check_changeable()
        try:
            self._prepare()
            if len(batch) > _FEW:
                self._enter_many(batch, now_ms // self.precision_ms * self.precision_ms)
            elif len(batch):
                self._enter_few(batch, now_ms // self.precision_ms * self.precision_ms)
        except DiskFailure as error:
            self._health.fail(error)
            raise
        self.queue_offset = batch.next_queue_offset

    def _prepare(self) -> None:
        """Create missing files."""
        if not self.ring.is_open:
            self.ring.create()
        self.checkpoint.open()

    def _filing(self) -> TimerAppend:
        return TimerAppend(self.precision_ms, self.roll_window_slots, self.read_ms)

    def _enter_few(self, batch: TimerBatch, write_ms: int) -> None:
        filing = self._filing()
        places = self.log.places(len(batch))
        positions = [at + n * RECORD_SIZE for at, count in places for n in range(count)]
        slots: dict[int, tuple[int, int, int]] = {}
        data = bytearray()
        for number, (position, out_ms) in enumerate(
            zip(positions, batch.out_ms.tolist(), strict=True)
        ):
            slot_ms, roll = filing.slot_of(out_ms, write_ms)
            time = slot_ms // self.precision_ms
            self._check_place(time)
            first, last, count = slots.get(time) or self.ring.get(time) or (position, NONE, 0)
            data += filing.packed(batch, number, slot_ms, roll, write_ms, last)
            slots[time] = first, position, count + (-1 if batch.deletes[number] else 1)
        self.log.append(data, places)
        for time, (first, last, count) in slots.items():
            self.ring.put(time, first, last, count)

    def _enter_many(self, batch: TimerBatch, write_ms: int) -> None:
        rows = self._filing().rows(batch, write_ms)
        places = self.log.places(len(rows))
        changes = chain(self.ring, rows, positions_of(places), self.precision_ms)
        self._check_place(int(changes.times[-1]))
        self.log.append(bytes_of(rows), places)
        changes.put(self.ring)

    def _check_place(self, time: int) -> None:
        if time >= self.ring.end_time:
            raise StoreFull(
                f"slot {time * self.precision_ms} does not fit the timer wheel while slot {self.read_ms} is"
                " undelivered: it spans two weeks. Wait until overdue messages are delivered",
                reason="behind",
                slot_ms=time * self.precision_ms,
                read_ms=self.read_ms,
            )

    def delivered_up_to(self, read_ms: int) -> None:
        """Note that all slots before READ_MS, a multiple of the precision, were delivered; it never decreases."""
        time = read_ms // self.precision_ms
        if time <= self.ring.read_time:
            return
        self.reached = read_ms, _ = time * self.precision_ms, self.queue_offset
        for slot_ms in [slot_ms for slot_ms in self.begun if slot_ms < read_ms]:
            del self.begun[slot_ms]
        if self.ring.pass_to(time):
            self._worth_ms = read_ms

    def replace_slot(self, slot_ms: int, positions: Longs) -> None:
        """Keep only the records at POSITIONS, in this order, as undelivered ones of the slot of SLOT_MS.

        For a stop in the middle of a slot; it waits for the disk. The records are written again as a new chain; for
        none it is `delivered_up_to`. A crash leaves the old chain or the new one: the first new record is written when
        all others, and the commit log with the delivered messages, are on disk.
        StoreFull or DiskFailure: the slot keeps the old chain.
        """
        self._health.check_changeable()
        if not len(positions):
            self.delivered_up_to(slot_ms + self.precision_ms)
            return
        try:
            self._replace(slot_ms // self.precision_ms, positions)
        except DiskFailure as error:
            self._health.fail(error)
            raise

    def _replace(self, time: int, positions: Longs) -> None:
        rows = self.log.rows_at(positions)
        mark, mark_slot = self._mark(int(rows["log_offset"][-1]))
        places = self.log.places(len(rows) + len(mark) // RECORD_SIZE)
        at = positions_of(places)
        rows["previous"][0] = NONE
        rows["previous"][1:] = at[: len(rows) - 1]
        self._write_sealed(rows.tobytes() + mark, places)
        last = int(at[len(rows) - 1])
        self.ring.put(time, int(at[0]), last, int(signs_of(rows).sum()))
        if mark_slot is not None:
            mark_time, first, count = mark_slot
            self.ring.put(mark_time, int(at[-1]) if first == NONE else first, int(at[-1]), count)

    def _write_sealed(self, data: bytes, places: list[tuple[int, int]]) -> None:
        """Append DATA; recovery sees none of it until its first record, which comes last, is on disk."""
        end = self.log.max_offset
        self._sync_commit_log()
        self.log.append(bytes(RECORD_SIZE) + data[RECORD_SIZE:], places)
        try:
            self.log.files.sync()
            at = places[0][0]
            file = self.log.files.file_at(at)
            assert file is not None, "the log was just written"
            file.put(at - file.start, data[:RECORD_SIZE])
        except BaseException:
            self.log.files.truncate(end)
            raise

    def _sync_commit_log(self) -> None:
        """Sync the commit log, independently of its own flusher."""
        files = self._parts.log.files
        self._parts.disk.sync_folder(files.folder)
        for file in files.files:
            if file.end > self._flushed_offset:
                file.mapping.sync()

    def _mark(self, log_offset: int) -> tuple[bytes, tuple[int, int, int] | None]:
        """Return a record without effect, with its slot (time, first, count); nothing if it is not needed.

        RocketMQ resumes in the queue after the message of the last record, so that must be the newest message that was
        entered. The record has the delete bit and is in the slot before the oldest pending one.
        """
        queue = self._parts.queues.get(TIMER_TOPIC, 0)
        newest = self.queue_offset - 1
        if queue is None or not queue.min_offset <= newest < queue.max_offset:
            return b"", None
        offsets, sizes, _ = queue.entries(newest, 1)
        if not len(offsets) or int(offsets[0]) == log_offset:
            return b"", None
        time = self.ring.read_time - 1
        first, last, count = self.ring.get(time) or (NONE, NONE, 0)
        magic, slot_ms = ORDINARY | DELETE, time * self.precision_ms
        place = int(offsets[0]), int(sizes[0])
        return RECORD.pack(RECORD_SIZE, last, magic, slot_ms, 0, *place, 0, 0), (time, first, count)

    def _state(self) -> SlotReservation:
        return SlotReservation(
            log_end=self._parts.log.max_offset,
            timer_end=self.log.max_offset,
            queue_offset=self.queue_offset,
            read_ms=self.read_ms,
            worth_ms=self._worth_ms,
        )

    def take_parts(self, flushed_offset: int) -> list[Syncable]:
        """Return what to sync now, in this order; the checkpoint comes last. Call it about once per second.

        The commit log is on disk up to FLUSHED_OFFSET. Writes changed pages of the wheel to its file.
        """
        parts: list[Syncable] = []
        self._flushed_offset = flushed_offset
        if self.ring.is_open:
            claim = self._claim
            if claim is None or claim.log_end <= flushed_offset:
                self._claim = self._state()
            if claim is not None and claim.log_end <= flushed_offset:
                parts = self._checkpoint_parts(claim)
        text = self.metrics.take_text()
        return parts if text is None else [*parts, MetricsPart(self.metrics, text)]

    def _checkpoint_parts(self, claim: SlotReservation) -> list[Syncable]:
        known = self.checkpoint.written
        if not claim.is_news(known):
            return []
        try:
            self.checkpoint.open()
            self.ring.write_dirty()
        except StoreFull as error:  # An older checkpoint is valid, too: recovery begins earlier.
            logger.warning("timer wheel not written %s", Facts(reason=error.message))
            return []
        values = claim.values(known, self._now_ms())
        return [*self.log.take_dirty(), self.ring, CheckpointPart(self.checkpoint, values)]

    def flush(self, *, all_of_it: bool = False) -> bool:
        """Flush everything to disk now, after the commit log. Raises DiskFailure.

        Return False if the disk was full for some of it. Without ALL_OF_IT only changes are written.
        """
        parts: list[Syncable] = []
        state, known = self._state(), self.checkpoint.written
        said = (known.last_read_ms, known.log_flushed, known.queue_offset)
        is_news = said != (state.read_ms, state.timer_end, state.queue_offset)
        if self.ring.is_open and (is_news or all_of_it):
            parts = self._checkpoint_parts(replace(state, always=True))
        if (text := self.metrics.take_text()) is not None:
            parts.append(MetricsPart(self.metrics, text))
        for part in parts:
            part.sync()
        known = self.checkpoint.written
        said = (known.last_read_ms, known.log_flushed, known.queue_offset)
        return said == (state.read_ms, state.timer_end, state.queue_offset)

    def mark_all_dirty(self) -> None:
        """Mark everything as dirty: after a kill, the last writes may be only in the page cache."""
        self.log.files.mark_dirty()

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files of the timer log whose messages are all before MIN_LOG_OFFSET; return how many."""
        return self.log.delete_expired(min_log_offset)

    def close(self) -> None:
        """Close the files; nothing is written."""
        for part in (self.log, self.ring, self.checkpoint):
            part.close()


def positions_of(places: list[tuple[int, int]]) -> Longs:
    """Return the position of each record at PLACES."""
    parts = [at + np.arange(count, dtype=np.int64) * RECORD_SIZE for at, count in places]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
