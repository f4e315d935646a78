"""The timer store: how RocketMQ loads and recovers it (TimerMessageStore of 5.5.0)."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import Final

from ...proto.topics import TIMER_TOPIC
from ..checkpoints import CHECKPOINT_SIZE, TimerCheckpoint, read_timer_checkpoint
from ..format.timer_log import MESSAGE, MESSAGE_AT, RECORD_SIZE, TimerBlank, TimerRecord, records
from ..format.timer_wheel import SLOTS, WHEEL_SIZE, TimerWheel
from .files import JavaFiles, StartRefused
from .store import JavaReading

#: Slots before the oldest that are left free.
_BLANK_SLOTS: Final = 60
_STEPS_BACK_MAX: Final = 20_000


class JavaTimers:
    """The timer store of STORE."""

    def __init__(self, store: JavaReading) -> None:
        self._store = store
        self._disk = store.disk
        self.wheel = TimerWheel()
        self.checkpoint = TimerCheckpoint()
        folder = posixpath.join(store.root, "timerlog")
        self.log = JavaFiles(store.disk, folder, store.settings.timer_log_file_size)
        self.queue_offset = 0
        #: All slots before this were delivered. RocketMQ continues after it if that is more than a week ago.
        self.handed_on_ms = 0
        self.precision_ms = store.settings.timer_precision_ms

    def open(self) -> None:
        """Open or create checkpoint and wheel, before the store. StartRefused for a wheel of wrong length."""
        path = posixpath.join(self._store.root, "config", "timercheck")
        self._disk.make_folders(posixpath.dirname(path))
        self.checkpoint = read_timer_checkpoint(self._disk, path)
        self._disk.open_map(path, size=CHECKPOINT_SIZE, create=True)
        wheel = posixpath.join(self._store.root, "timerwheel")
        if self._disk.exists(wheel) and self._disk.size(wheel) not in (0, WHEEL_SIZE):
            raise StartRefused
        self.wheel = TimerWheel.parse(self._disk.open_map(wheel, size=WHEEL_SIZE, create=True).view)

    def start(self, now_ms: int, *, metrics_loaded: bool, read_ms: int | None = None) -> None:
        """Load the log and recover; `StartRefused` if the log or the metrics could not be loaded.

        READ_MS: the oldest slot that may have messages, if another recovery has found it. RocketMQ skips slots that are
        overdue for more than a week.
        """
        try:
            loaded = self.log.load()
        except ValueError as error:
            raise StartRefused(f"java.lang.NumberFormatException: {error}") from None
        if not (loaded and metrics_loaded):
            raise StartRefused
        self.recover(now_ms, read_ms)

    def recover(self, now_ms: int, read_ms: int | None) -> None:
        """Find the end of the log, repair the wheel, and compute where reading continues."""
        begin = self.checkpoint.log_flushed
        if self.log.last is not None:
            begin -= self.log.size
        end = self._revise(max(0, begin), check=True)
        self.queue_offset = self._queue_offset(end)
        precision = self.precision_ms
        self.handed_on_ms = self.checkpoint.last_read_ms if read_ms is None else read_ms
        if read_ms is None:
            kept_ms = (SLOTS // 2 - _BLANK_SLOTS) * precision
            read_ms = max(self.handed_on_ms, now_ms // precision * precision - kept_ms)
        first = self.wheel.first_beyond(read_ms // precision, end)
        if first is not None and first < end:
            self._revise(first, check=False)
        self.checkpoint = replace(
            self.checkpoint,
            log_flushed=end,
            last_read_ms=read_ms,
            queue_offset=min(self.queue_offset, self.checkpoint.master_queue_offset),
        )

    def _revise(self, begin: int, *, check: bool) -> int:
        """Enter the records from the file of BEGIN on into the wheel. With CHECK, stop at the first bad one and cut."""
        if not self.log.files:
            return 0
        starts = [number for number, file in enumerate(self.log.files) if begin >= file.start]
        end = 0
        for file in self.log.files[starts[-1] if starts else 0 :]:
            data = file.view if check else file.view[: file.wrote]
            position, stopped = self._revise_file(data, file.start, check)
            end = file.start + position
            if stopped:
                break
        if check:
            self.log.truncate(end)
        return end

    def _revise_file(self, data: memoryview, start: int, check: bool) -> tuple[int, bool]:
        precision = self.precision_ms
        at = 0
        for record in records(data, start):
            at = record.position - start
            if isinstance(record, TimerBlank):
                return at, False
            due = record.write_time_ms + record.delay_ms
            if (check and not record.is_sound) or (record.is_sound and due < 0):
                return at, True
            if record.is_sound:
                self.wheel.set_last(due // precision, record.position)
            at += RECORD_SIZE
        # In Java, a rest that is too short for a record causes an exception, which ends the walk.
        return at, at < len(data)

    def _queue_offset(self, end: int) -> int:
        """Return the queue offset at which reading the timer topic continues."""
        known = self._offset_of_last(end)
        offset = self.checkpoint.queue_offset if known is None else known + 1
        offset = min(offset, self.checkpoint.master_queue_offset)
        queue = self._store.queues.get((TIMER_TOPIC, 0))
        if queue is None:
            return offset
        if offset < queue.min_offset:
            return queue.min_offset
        return min(offset, queue.max_offset)

    def _offset_of_last(self, end: int) -> int | None:
        """Return the queue offset of the message of the last timer record, according to its queue."""
        data = self.log.data(end - (RECORD_SIZE - MESSAGE_AT))
        if data is None or len(data) < MESSAGE.size:
            return None
        log_offset, size = MESSAGE.read(data)
        try:
            message = self._store.message(log_offset, size)
        except ValueError:
            message = None
        if message is None:
            return None
        queue = self._store.queues.get((TIMER_TOPIC, message.queue_id))
        if queue is not None:
            lowest = max(-1, message.queue_offset - _STEPS_BACK_MAX)
            for offset in range(message.queue_offset, lowest, -1):
                unit = next(queue.units(offset), None)
                if unit is not None and unit[1:3] == (log_offset, size):
                    return offset
        return message.queue_offset

    def all_records(self) -> list[TimerRecord | TimerBlank]:
        """Return the present content of the log."""
        found: list[TimerRecord | TimerBlank] = []
        for file in self.log.files:
            found += records(file.view[: file.wrote], file.start)
        return found
