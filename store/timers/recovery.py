"""Opens the timers of a store: the end of their log, the content of the slots, and where entering and reading resume.

It follows RocketMQ's recovery without its losses: slots are found however long the broker was down, and counts are
corrected. The log is read from one file before the checkpoint's position (after a clean stop: from the position). It
ends at the first invalid record, or one whose message the commit log lacks. Slots get missing records and lose records
that the log lacks. Entering resumes after the message of the last record.

A missing wheel is rebuilt from the timer log. A timer log shorter than the checkpoint says is rebuilt from the timer
topic. Without a checkpoint, everything of the last week in the wheel counts as not delivered, and without any file the
topic is read from its beginning; RocketMQ does the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...proto.facts import Facts
from ...proto.record import QUEUE_OFFSET_AT
from ...proto.record_run import Longs
from ...proto.topics import TIMER_TOPIC
from ..commit_log import CommitLog
from ..consume_queue import ConsumeQueue
from ..disk import Disk
from ..files import MappedFile
from ..format.timer_log import RECORD, RECORD_SIZE, is_blank, sound_rows
from ..format.timer_wheel import SLOTS, WHEEL_SIZE
from ..health import StoreHealth
from ..parts import StoreParts
from .entry import replay
from .files import TimerLog, TimerRing
from .reentry import enter_again
from .store import TimerStore

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 16
#: RocketMQ's rule: the oldest slot that is checked is half a turn minus this number of slots old.
_YOUNGER: Final = 60
#: RocketMQ's rule: how far back in the queue a message is searched whose queue offset differs from that in its record.
_STEPS_BACK_MAX: Final = 20_000


def open_timers(
    parts: StoreParts,
    health: StoreHealth,
    now_ms: Callable[[], int],
    *,
    clean: bool,
    cut_ms: int | None = None,
) -> TimerStore:
    """Load and recover the timers of a store whose log and queues are recovered; CLEAN: it was stopped cleanly.

    CUT_MS: the log was cut after a record that was stored at this time: later deliveries are repeated.
    Raises StoreMismatch (a file of the log has a wrong length or name), StoreFull, DiskFailure.
    """
    timers = TimerStore(parts, health, now_ms)
    _Recovery(timers, parts, now_ms(), clean=clean, cut_ms=cut_ms).run()
    for file in timers.log.files.files:
        file.mapping.forget(0, file.size)
    return timers


@dataclass(slots=True)
class _End:
    """The end of the log, and the end of its possible records; LOST: some of those between are needed."""

    end: int
    sound_end: int
    lost: bool = False


class _Recovery:
    """The recovery of one store's timers.

    A message of the timer topic was delivered if its latest possible slot is before the read time: that of its
    TIMER_OUT_MS, or of the time at which it was stored. A message that was rolled is in the topic twice: of those with
    the same UNIQ_KEY and TIMER_OUT_MS only the one with the most TIMER_ROLL_TIMES is entered.
    """

    def __init__(
        self,
        timers: TimerStore,
        parts: StoreParts,
        now_ms: int,
        *,
        clean: bool,
        cut_ms: int | None,
    ) -> None:
        self._cut_ms = cut_ms
        self._timers = timers
        self._log: TimerLog = timers.log
        self._ring: TimerRing = timers.ring
        self._commit_log: CommitLog = parts.log
        self._queue: ConsumeQueue | None = parts.queues.get(TIMER_TOPIC, 0)
        self._parts = parts
        self._known = timers.checkpoint.written
        self._clean = clean
        self._mark = RebuildMark(parts.disk, parts.config.own_folder)
        self._now_time = now_ms // timers.precision_ms

    def run(self) -> None:
        disk, path = self._parts.disk, self._parts.config.timer_wheel_path
        there = disk.exists(path)
        if not there and not self._log.files.files and self._known.is_empty:
            self._begin()
            return
        whole = there and disk.size(path) == WHEEL_SIZE and not self._mark.stands
        self._ring.create()
        if not whole:
            logger.warning("timer wheel rebuilt %s", Facts(path=path))
            self._mark.set()
            self._ring.clear()
        self._ring.load(self._read_time())
        self._recover_log(whole=whole)
        if self._mark.stands and self._timers.flush(all_of_it=True):
            self._mark.remove()

    def _begin(self) -> None:
        """Start empty: all messages of the topic, if there are any, are entered."""
        self._ring.begin(self._now_time)
        if self._queue is not None:
            self._timers.go_on_at(self._queue.min_offset)
            if self._queue.min_offset < self._queue.max_offset:
                logger.warning(
                    "timers rebuilt without wheel, log and checkpoint, all scheduled messages are delivered again %s",
                    Facts(count=self._queue.max_offset - self._queue.min_offset),
                )

    def _read_time(self) -> int:
        """Return the oldest slot that may be pending."""
        read_ms = self._known.last_read_ms
        if self._cut_ms is not None:
            read_ms = min(read_ms, self._cut_ms)
        time = read_ms // self._timers.precision_ms
        if 0 < time <= self._now_time + self._timers.roll_window_slots:
            return time
        logger.warning(
            "timer checkpoint missing or in the future: messages of the last week may be delivered twice %s",
            Facts(read_ms=self._known.last_read_ms),
        )
        return max(1, self._now_time - SLOTS // 2 + _YOUNGER)

    def _recover_log(self, *, whole: bool) -> None:
        begin = self._first_file()
        found = self._find_end(begin)
        self._log.files.truncate(found.end)
        behind = self._known.log_flushed > found.sound_end or found.lost
        behind = behind or self._cut_ms is not None
        self._timers.go_on_at(self._queue_offset(found.end))
        if behind:
            self._enter_again()
            return
        start = self._drop_beyond(found.end) if whole else self._log.min_offset
        start = min(start, self._trusted(begin))
        for file in self._log.files.files:
            if file.end > start:
                self._replay(file, max(0, start - file.start) // RECORD_SIZE)

    def _trusted(self, begin: int) -> int:
        """Return the position up to which the wheel certainly has the log, whose records were checked from BEGIN on."""
        if self._clean or not self._log.files.files:
            return self._known.log_flushed
        return self._log.files.files[begin].start

    def _first_file(self) -> int:
        """Return the index of the first file to read."""
        size = self._log.files.file_size
        begin = self._known.log_flushed - (0 if self._clean else size)
        starts = [file.start for file in self._log.files.files]
        return max(0, int(np.searchsorted(starts, begin, "right")) - 1)

    def _find_end(self, begin: int) -> _End:
        """Check the records from file BEGIN on."""
        files = self._log.files.files
        if not files:
            return _End(0, 0)
        log_end = self._commit_log.max_offset
        end = files[begin].start
        cut: int | None = None
        lost = False
        for file in files[begin:]:
            count, whole = sound_count(self._log, file, self._scan_from(file))
            end = file.start + count * RECORD_SIZE
            rows = RECORD.columns(file.view, count)
            inside = rows["log_offset"].astype(np.int64) + rows["message_size"] <= log_end
            if cut is not None or not inside.all():
                bad = 0 if cut is not None else int(inside.argmin())
                cut = file.start + bad * RECORD_SIZE if cut is None else cut
                lost = lost or bool(inside[bad:].any())
            if not whole:
                break
        if cut is not None:
            return _End(cut, end, lost)
        return _End(end - self._torn(end), end)

    def _scan_from(self, file: MappedFile) -> int:
        """Return the number of the first record of FILE to check: those before the checkpoint are trusted."""
        known = self._known.log_flushed
        if not self._clean or not file.start <= known <= file.end:
            return 0
        return min((known - file.start) // RECORD_SIZE, self._log.file_records)

    def _torn(self, end: int) -> int:
        """Return the size of the last record if a power cut tore it: then its message differs from its fields."""
        at = end - RECORD_SIZE
        if at < self._known.log_flushed or self._queue is None or not self._log.holds(at):
            return 0
        log_offset, size = self._message_of(at)
        gone = log_offset < self._commit_log.min_offset
        return 0 if gone or self._number_of(log_offset, size) is not None else RECORD_SIZE

    def _message_of(self, position: int) -> tuple[int, int]:
        row = self._log.rows_at(np.array([position], np.int64))
        return int(row["log_offset"][0]), int(row["message_size"][0])

    def _queue_offset(self, end: int) -> int:
        """Return where entering resumes."""
        if self._queue is None:
            return 0
        offset = self._known.queue_offset
        if end > self._log.min_offset and self._log.holds(end - RECORD_SIZE):
            number = self._number_of(*self._message_of(end - RECORD_SIZE))
            offset = max(offset, 0 if number is None else number + 1)
        return min(max(offset, self._queue.min_offset), self._queue.max_offset)

    def _number_of(self, log_offset: int, size: int) -> int | None:
        """Return the queue offset of the message at LOG_OFFSET; None if the timer topic has none of SIZE there."""
        data = self._commit_log.read(log_offset, size) if size > 0 else None
        if data is None or self._commit_log.record_size(log_offset) != size:
            return None
        assert self._queue is not None, "checked by the caller"
        written = int.from_bytes(data[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big")
        first = max(self._queue.min_offset, written - _STEPS_BACK_MAX)
        while first <= min(written, self._queue.max_offset - 1):
            offsets = self._queue.entries(first, written - first + 1)[0]
            if not len(offsets):
                return None
            found = np.flatnonzero(offsets == log_offset)
            if len(found):
                return first + int(found[-1])
            first += len(offsets)
        return None

    def _drop_beyond(self, end: int) -> int:
        """Empty the slots that point beyond END; return the position from which on the log defines their content."""
        times: Longs = self._ring.pending_times()
        firsts, lasts, _ = self._ring.get_many(times)
        bad = np.flatnonzero((lasts >= end) | (firsts >= end) | (firsts < 0) | (lasts < firsts))
        start = end
        for row in bad.tolist():
            self._ring.empty(int(times[row]))
            first = int(firsts[row])
            start = min(start, first if 0 <= first < end else 0)
        return start

    def _replay(self, file: MappedFile, begin: int) -> None:
        rows = self._log.file_rows(file)
        for at in range(begin, len(rows), _CHUNK):
            part = rows[at : at + _CHUNK]
            numbers = np.flatnonzero(sound_rows(part))
            positions = file.start + (at + numbers) * RECORD_SIZE
            replay(self._ring, part[numbers], positions, self._timers.precision_ms)

    def _enter_again(self) -> None:
        """Enter every undelivered message again, because the log lost records."""
        logger.warning(
            "timer log lost records: rebuilt from the messages of the timer topic %s",
            Facts(end=self._log.max_offset, checkpoint=self._known.log_flushed),
        )
        self._mark.set()
        self._log.files.delete_all()
        self._ring.clear()
        enter_again(self._timers, self._parts, self._now_time * self._timers.precision_ms)


def sound_count(log: TimerLog, file: MappedFile, begin: int) -> tuple[int, bool]:
    """Return how many leading records of FILE are valid (those before BEGIN are), and whether the log continues."""
    rows = RECORD.columns(file.view, log.file_records)
    for at in range(begin, len(rows), _CHUNK):
        part = rows[at : at + _CHUNK]
        sound = sound_rows(part) & (part["message_size"] > 0) & (part["log_offset"] >= 0)
        if not sound.all():
            count = at + int(sound.argmin())
            return count, _is_blank(file, count)
    return len(rows), _is_blank(file, len(rows))


def _is_blank(file: MappedFile, count: int) -> bool:
    """Return whether a blank follows COUNT records."""
    at = count * RECORD_SIZE
    return is_blank(file.view, at, file.size - at)


class RebuildMark:
    """The file PATH that exists while wheel or log are rebuilt: the result of an interruption must not be used."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/timers-rebuilding"

    @property
    def stands(self) -> bool:
        return self._disk.exists(self._path)

    def set(self) -> None:
        self._disk.make_folders(self._folder)
        self._disk.write_atomically(self._path, b"timer log and wheel are being made again\n")

    def remove(self) -> None:
        if self.stands:
            self._disk.delete(self._path)
            self._disk.sync_folder(self._folder)
