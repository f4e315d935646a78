"""The scrubber: it reads the whole log once per day and finds damage before a reader needs the message.

It reads one log file after the other, at `scrub_bytes_per_s`, and begins with the file verified longest ago. For each
record it checks the position, the CRC, and the queue entry with its tags code: a filter would skip a message with a
wrong code. A thread reads and checks one piece at a time; the owner compares a few queues per turn of its loop.

Damaged records go to the damage repairer, as from readers (damage.py). Unreadable bytes are logged.

Limits: the kernel's page cache serves pages that it holds, so damage on the disk below it is found later. Entries of
batch queues are compared by position and only logged. Index files, timer files and delivery times of delay levels are
not checked (`pocketmq inspect STORE verify` does this).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto import property_ranges, record_run
from ..proto.errors import StoreError
from ..proto.facts import Facts
from ..proto.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, decode_record
from ..proto.topics import RECORD_SIZE_MAX, SCHEDULE_TOPIC
from .commit_log import CommitLog
from .consume_queue import BatchConsumeQueue
from .damage import DamageRepairer
from .files import MappedFile
from .flush import CallOwner, Flusher, FlushJob
from .format.agreement import is_served, same_tags
from .format.log import BLANK_SIZE, MAGIC_AT, MAGIC_PATTERN, size_and_magic
from .health import StoreHealth
from .parts import StoreParts
from .queue_repair import EntryRepairer
from .rows_by_queue import by_queue
from .scrub_notes import NotesWrite, Scrubbed, ScrubNotes

logger = logging.getLogger(__name__)
#: Bytes read at a time. A larger record is read as a whole.
PIECE_BYTES: Final = 256 * 1024
#: Each file is verified once per day.
ROUND_MS: Final = 86_400_000
#: Queues compared per turn of the owner's loop. The others follow with the next tick.
_QUEUES_AT_ONCE: Final = 64


@dataclass(slots=True)
class _Numbers:
    """Records of one queue, in order: queue offsets, log offsets and tags codes."""

    topic: str
    queue: int
    numbers: record_run.Longs
    log_offsets: record_run.Longs
    codes: record_run.Longs


class _Piece:
    """Reads and checks one piece of FILE, from AT, before END. It runs in the scrubber's thread."""

    def __init__(self, file: MappedFile, at: int, end: int) -> None:
        self.file = file
        self.at = self.next_at = at
        self._end = end
        self.read_bytes = 0
        #: Log offset and size of records with a wrong CRC.
        self.wrong: list[tuple[int, int]] = []
        self.queues: list[_Numbers] = []
        #: Is this the last piece of the file?
        self.is_last = False
        #: Why the bytes from AT up to NEXT_AT are not records.
        self.trouble = ""

    def sync(self) -> None:
        size = min(PIECE_BYTES, self._end - self.at)
        try:
            data = self._read(size)
        except (OSError, StoreError) as error:
            self.trouble, self.next_at = f"read error: {error}", self.at + size
        else:
            self._look(data)
        self.is_last |= self.next_at + record_run.LEAST_SIZE > self._end

    def _read(self, size: int) -> bytes:
        data = self.file.mapping.read(self.at, size)
        if len(data) >= BLANK_SIZE:
            own, magic = size_and_magic(data)
            fits = len(data) < own <= min(RECORD_SIZE_MAX, self._end - self.at)
            if fits and magic in (MAGIC_V1, MAGIC_V2):
                data = self.file.mapping.read(self.at, own)
        self.read_bytes = len(data)
        return data

    def _look(self, data: bytes) -> None:
        base = self.file.start + self.at
        starts, end = record_run.walk(data)
        columns = record_run.parse_run(data, starts)
        placed = columns.well_formed & (columns.log_offset == starts + base)
        if not placed.all():
            count = int(placed.argmin())
            end = int(starts[count])
            columns = columns.take(slice(0, count))
        if not len(columns):
            self._look_on(data)
            return
        wrong = record_run.crc_mismatches(data, columns)
        rows = np.flatnonzero(wrong)
        offsets, sizes = columns.log_offset[rows].tolist(), columns.sizes[rows].tolist()
        self.wrong = list(zip(offsets, sizes, strict=True))
        queued = np.flatnonzero(~wrong & is_served(columns.sys_flag))
        self.queues = _numbers(record_run.as_bytes(data), columns, queued)
        self.next_at = self.at + end
        is_whole = end + BLANK_SIZE <= len(data)
        self.is_last = is_whole and size_and_magic(data, end)[1] == MAGIC_BLANK

    def _look_on(self, data: bytes) -> None:
        """Find the end of the file or the next record, because no record begins here."""
        if len(data) < record_run.LEAST_SIZE or size_and_magic(data)[1] == MAGIC_BLANK:
            self.is_last, self.next_at = True, self._end
            return
        self.trouble = "no record can be read there"
        for match in MAGIC_PATTERN.finditer(data, record_run.LEAST_SIZE):
            start = match.start() - MAGIC_AT
            one = record_run.parse_run(data, np.array([start], np.int64))
            if int(one.log_offset[0]) == self.file.start + self.at + start:
                self.next_at = self.at + start
                return
        self.next_at = self.at + max(record_run.LEAST_SIZE, len(data) - record_run.LEAST_SIZE)


def _numbers(
    array: NDArray[np.uint8], columns: record_run.RunColumns, rows: NDArray[np.intp]
) -> list[_Numbers]:
    if not len(rows):
        return []
    codes = property_ranges.tags_codes(array, property_ranges.PropertyRanges(array, columns))
    return [
        _Numbers(topic, queue, columns.queue_offset[own], columns.log_offset[own], codes[own])
        for topic, queue, own in by_queue(array, columns, rows)
    ]


class Scrubber:
    """Scrubs the log of one store. `read_bytes` counts since the store was opened.

    Not thread-safe: the store's owner calls it.
    """

    def __init__(
        self,
        parts: StoreParts,
        health: StoreHealth,
        damages: DamageRepairer,
        lost_entries: EntryRepairer,
        now_ms: Callable[[], int],
    ) -> None:
        """NOW_MS returns the time for the notes. The pace follows the ticks instead."""
        self._disk, self._folder = parts.disk, parts.config.own_folder
        self._log: CommitLog = parts.log
        self._queues = parts.queues
        self._health = health
        self._damages, self._lost_entries = damages, lost_entries
        self._now_ms = now_ms
        self._config = parts.config
        self._flusher = Flusher("pocketmq-scrub")
        self._call_owner: CallOwner = lambda call: call()
        self.notes = ScrubNotes.load(parts.disk, self._folder)
        self.read_bytes = 0
        self._file: MappedFile | None = None
        self._at = self._end = self._damaged = 0
        self._credit_bytes = 0
        self._ticked_ms: int | None = None
        #: No file is due before this time of NOW_MS.
        self._due_ms = 0
        self._busy = self._stopped = False
        self._uncompared: deque[_Numbers] = deque()

    def start(self, call_owner: CallOwner) -> None:
        """Read on a thread from now on; CALL_OWNER as in `MessageStore.start`."""
        self._call_owner = call_owner
        self._flusher.start()

    def stop(self) -> None:
        """End the thread after the current piece."""
        self._stopped = True
        self._flusher.stop()

    def tick(self, now_ms: int) -> None:
        """Continue as far as the pace allows at NOW_MS. Without a thread, read one piece now."""
        elapsed_ms = 0 if self._ticked_ms is None else max(0, now_ms - self._ticked_ms)
        self._ticked_ms = now_ms
        bytes_per_s = self._config.scrub_bytes_per_s
        if not bytes_per_s or self._stopped or self._health.state not in ("open", "full"):
            return
        room = max(PIECE_BYTES, bytes_per_s)
        earned = bytes_per_s * elapsed_ms // 1000
        self._credit_bytes = min(room, self._credit_bytes + earned)
        self._go_on()

    def _go_on(self) -> None:
        """Compare some queues. If none wait, start to read the next piece."""
        for _ in range(min(_QUEUES_AT_ONCE, len(self._uncompared))):
            one = self._uncompared.popleft()
            try:
                self._compare(one)
            except StoreError as error:
                logger.error(
                    "queue entries not compared with the log %s",
                    Facts(
                        reason=error.message,
                        topic=one.topic,
                        queue=one.queue,
                        count=len(one.numbers),
                    ),
                )
        if self._busy or self._uncompared or self._credit_bytes <= 0:
            return
        if self._file is None and not self._choose():
            return
        assert self._file is not None
        piece = _Piece(self._file, self._at, self._end)
        self._busy = True

        def done(_: StoreError | None) -> None:
            self._call_owner(partial(self._landed, piece))

        self._flusher.submit(FlushJob([piece], done))

    def _choose(self) -> bool:
        """Choose the file that was verified longest ago, if that is a day. Drop the notes of deleted files."""
        now_ms = self._now_ms()
        if now_ms < self._due_ms <= now_ms + ROUND_MS:
            return False
        files = {file.name: file for file in self._log.files.files if file.position}
        self.notes.forget_all_but(files)
        if not files:
            return False
        verified = {name: row.verified_ms for name, row in self.notes.files.items()}
        # A time in the future means that the clock was set back: the file is due.
        ages_ms = {name: now_ms - verified.get(name, now_ms + 1) for name in files}
        name = next((name for name, age_ms in ages_ms.items() if age_ms < 0), "")
        if not name:
            name = max(ages_ms, key=ages_ms.__getitem__)
            if ages_ms[name] < ROUND_MS:
                self._due_ms = now_ms + ROUND_MS - ages_ms[name]
                return False
        file = files[name]
        self._file, self._at, self._end, self._damaged = file, 0, file.position, 0
        return True

    def _landed(self, piece: _Piece) -> None:
        """Process the result of PIECE in the owner's thread."""
        self._busy = False
        if self._stopped or self._file is not piece.file:
            return
        self.read_bytes += piece.read_bytes
        self._credit_bytes -= piece.read_bytes
        if piece.file not in self._log.files.files:
            self._file = None  # Retention deleted it.
            return
        for log_offset, size in piece.wrong:
            self._damaged += self._damages.found(log_offset, size)
        if piece.trouble:
            self._damaged += 1
            start = piece.file.start + piece.at
            self._damages.found_no_records(start, piece.file.start + piece.next_at)
            logger.error(
                "damage in the log found %s",
                Facts(
                    reason=piece.trouble,
                    file=piece.file.path,
                    log_offset=piece.file.start + piece.at,
                    size_bytes=piece.next_at - piece.at,
                ),
            )
        self._uncompared.extend(piece.queues)
        self._at = piece.next_at
        if piece.is_last:
            self._finish(piece.file)
        if self._flusher.running:
            self._go_on()

    def _finish(self, file: MappedFile) -> None:
        self.notes.files[file.name] = Scrubbed(self._now_ms(), self._end, self._damaged)
        self._file = None
        self._due_ms = 0
        saving = NotesWrite(self._disk, self._folder, self.notes.text())
        self._flusher.submit(FlushJob([saving], lambda _: None))

    def _compare(self, one: _Numbers) -> None:
        """Repair entries that do not point to the records ONE, or have other tags codes."""
        queue = self._queues.get(one.topic, one.queue)
        if queue is None:
            batches = self._queues.get_batch(one.topic, one.queue)
            if batches is not None:
                self._compare_batches(batches, one)
            return
        begin = int(np.searchsorted(one.numbers, queue.min_offset))
        numbers, offsets, codes = (
            column[begin:] for column in (one.numbers, one.log_offsets, one.codes)
        )
        if not len(numbers) or (np.diff(numbers) != 1).any():
            return  # Renumbered or with gaps: readers check each record.
        first, end = int(numbers[0]), min(int(numbers[-1]) + 1, queue.max_offset)
        at = first
        while at < end:  # File by file.
            there, _, there_codes = queue.entries(at, end - at)
            if not len(there):
                return
            own = slice(at - first, at - first + len(there))
            same = same_tags(there_codes, codes[own], may_be_address=queue.has_extension)
            if (there != offsets[own]).any():
                self._lost_entries.find(queue, at, at + len(there))
            elif one.topic != SCHEDULE_TOPIC and not same.all():
                self._lost_entries.correct_codes(queue, at, at + len(there))
            at += len(there)

    def _compare_batches(self, queue: BatchConsumeQueue, one: _Numbers) -> None:
        """Log records of ONE that no entry of QUEUE points to. A start that reads the whole log adds the entries."""
        there = queue.entries(max(int(one.numbers[0]), queue.min_offset), len(one.numbers))[0]
        served = one.numbers >= queue.min_offset
        lacking = [
            row
            for row in np.flatnonzero(served & ~np.isin(one.log_offsets, there)).tolist()
            if self._is_batch(int(one.log_offsets[row]))
        ]
        if lacking:
            logger.error(
                "batch queue entries contradict the log: stop, delete pocketmq/verified.json and start again, which"
                " reads all of the log %s",
                Facts(
                    topic=one.topic,
                    queue=one.queue,
                    queue_offset=int(one.numbers[lacking[0]]),
                    log_offset=int(one.log_offsets[lacking[0]]),
                    count=len(lacking),
                ),
            )

    def _is_batch(self, log_offset: int) -> bool:
        """Does the record at LOG_OFFSET get an entry in a batch queue?"""
        size = self._log.record_size(log_offset)
        data = None if size is None else self._log.read(log_offset, size)
        return (
            data is not None
            and {"INNER_BASE", "INNER_NUM"} <= decode_record(data).properties.keys()
        )
