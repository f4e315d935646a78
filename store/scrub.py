"""The scrubber: the log read and compared in the background, so that damage is found before somebody needs the message.

It goes through one log file after the other, at `scrub_bytes_per_s`, and through each once a day; the one that was
verified longest ago comes first. Every record has to stand where it says, to fit its CRC, and to have its entry, with
its place and its tags code: a filter goes by that, and steps over a message whose code is wrong. What is damaged goes
where readers bring it (damage.py); what cannot be read is told. Reading and comparing is done on a
thread, a piece at a time; queues are compared by the owner, some in each turn of its loop.

When each file was verified last stands in `<root>/pocketmq/scrubbed.json`:

    {"version": 1, "files": {"<name in commitlog/>": {"verified_ms": …, "size_bytes": …, "damaged": …}}}

`damaged` counts what was found in that reading. Without the file all is verified again. The kernel's page cache serves
what it holds, as it does for every reader: what changed on the device below it is found once its pages were let go.
Entries of batch queues are compared by their places, and told. Index and timer files are not looked at, nor are the
times in entries of delay levels (`pocketmq inspect STORE verify` does).
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import StoreError
from ..proto.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SYS_PREPARED, decode_record
from ..proto.record_run import (
    LEAST_SIZE,
    Longs,
    PropertyRanges,
    RunColumns,
    as_bytes,
    crc_mismatches,
    parse_run,
    tags_codes,
    walk,
)
from ..proto.topics import RECORD_SIZE_MAX, SCHEDULE_TOPIC
from .commit_log import CommitLog
from .consume_queue import BatchConsumeQueue
from .damage import Damages, LostEntries
from .disk import Disk
from .dispatch import by_queue
from .files import MappedFile
from .flush import CallOwner, Flusher, FlushJob
from .format.log_file import BLANK_SIZE, MAGIC_AT, MAGIC_PATTERN, size_and_magic
from .parts import StoreHealth, StoreParts

logger = logging.getLogger(__name__)

_NAME: Final = "scrubbed.json"
_VERSION: Final = 1
#: What is read at a time; a larger record is read whole.
PIECE_BYTES: Final = 256 * 1024
#: A file is verified again after a day.
ROUND_MS: Final = 86_400_000
#: Queues that are compared in one turn of the owner's loop; the others with the next tick.
_QUEUES_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """When a log file was verified last, up to which size, and how much of it was damaged."""

    verified_ms: int
    size_bytes: int
    damaged: int


@dataclass(slots=True)
class ScrubNotes:
    """What is known of the log files, by name."""

    files: dict[str, Scrubbed] = field(default_factory=dict)

    @classmethod
    def load(cls, disk: Disk, folder: str) -> ScrubNotes:
        """Return what stands in FOLDER; nothing for what cannot be believed."""
        path = os.path.join(folder, _NAME)
        try:
            document = json.loads(disk.read(path)) if disk.exists(path) else {}
            if document.get("version") != _VERSION:
                return cls()
            rows = {str(name): Scrubbed(**row) for name, row in document["files"].items()}
            if not all(isinstance(one.verified_ms, int) for one in rows.values()):
                return cls()
            return cls(rows)
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            logger.warning(
                "not known what was verified when: all is verified again",
                extra={"path": path, "reason": str(error)},
            )
            return cls()

    def forget_all_but(self, names: Container[str]) -> None:
        """Forget the files that are none of NAMES."""
        self.files = {name: row for name, row in self.files.items() if name in names}

    def text(self) -> bytes:
        """Return the file."""
        rows = {name: asdict(row) for name, row in sorted(self.files.items())}
        return json.dumps({"version": _VERSION, "files": rows}, indent=1).encode()


@dataclass(slots=True)
class _Numbers:
    """Records of one queue, in order: their numbers, log offsets and tags codes."""

    topic: str
    queue: int
    numbers: Longs
    log_offsets: Longs
    codes: Longs


class _Piece:
    """Reading and comparing what FILE holds from AT on, before END: something that a flusher does."""

    def __init__(self, file: MappedFile, at: int, end: int) -> None:
        self.file = file
        self.at = self.next_at = at
        self._end = end
        self.read_bytes = 0
        #: Log offset and size of records whose bodies do not fit.
        self.wrong: list[tuple[int, int]] = []
        self.queues: list[_Numbers] = []
        #: Is there nothing more in the file?
        self.is_last = False
        #: Why the bytes from AT up to NEXT_AT are no records.
        self.trouble = ""

    def sync(self) -> None:
        size = min(PIECE_BYTES, self._end - self.at)
        try:
            data = self._read(size)
        except (OSError, StoreError) as error:
            self.trouble, self.next_at = f"they cannot be read: {error}", self.at + size
        else:
            self._look(data)
        self.is_last |= self.next_at + LEAST_SIZE > self._end

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
        starts, end = walk(data)
        columns = parse_run(data, starts)
        placed = columns.well_formed & (columns.log_offset == starts + base)
        if not placed.all():
            count = int(placed.argmin())
            end = int(starts[count])
            columns = columns.take(slice(0, count))
        if not len(columns):
            self._look_on(data)
            return
        wrong = crc_mismatches(data, columns)
        rows = np.flatnonzero(wrong)
        offsets, sizes = columns.log_offset[rows].tolist(), columns.sizes[rows].tolist()
        self.wrong = list(zip(offsets, sizes, strict=True))
        queued = np.flatnonzero(~wrong & (columns.sys_flag & SYS_PREPARED == 0))
        self.queues = _numbers(as_bytes(data), columns, queued)
        self.next_at = self.at + end
        is_whole = end + BLANK_SIZE <= len(data)
        self.is_last = is_whole and size_and_magic(data, end)[1] == MAGIC_BLANK

    def _look_on(self, data: bytes) -> None:
        """No record begins here: find the end of the file, or the next record."""
        if len(data) < LEAST_SIZE or size_and_magic(data)[1] == MAGIC_BLANK:
            self.is_last, self.next_at = True, self._end
            return
        self.trouble = "no record can be read there"
        for match in MAGIC_PATTERN.finditer(data, LEAST_SIZE):
            start = match.start() - MAGIC_AT
            one = parse_run(data, np.array([start], np.int64))
            if int(one.log_offset[0]) == self.file.start + self.at + start:
                self.next_at = self.at + start
                return
        self.next_at = self.at + max(LEAST_SIZE, len(data) - LEAST_SIZE)


def _numbers(
    array: NDArray[np.uint8], columns: RunColumns, rows: NDArray[np.intp]
) -> list[_Numbers]:
    if not len(rows):
        return []
    codes = tags_codes(array, PropertyRanges(array, columns))
    return [
        _Numbers(topic, queue, columns.queue_offset[own], columns.log_offset[own], codes[own])
        for topic, queue, own in by_queue(array, columns, rows)
    ]


class _Saving:
    """Writing the notes, as something that a flusher does."""

    def __init__(self, disk: Disk, folder: str, text: bytes) -> None:
        self._disk, self._folder, self._text = disk, folder, text

    def sync(self) -> None:
        try:
            self._disk.make_folders(self._folder)
            self._disk.write_atomically(os.path.join(self._folder, _NAME), self._text)
        except StoreError as error:  # Then more is verified again; nothing is lost.
            logger.warning("not noted what was verified", extra={"reason": error.message})


class Scrubber:
    """Scrubs the log of one store. `read_bytes`: since it was opened; `notes`: what was verified when.

    Not thread-safe: the store's owner calls it.
    """

    def __init__(
        self,
        parts: StoreParts,
        health: StoreHealth,
        damages: Damages,
        lost_entries: LostEntries,
        now_ms: Callable[[], int],
    ) -> None:
        """NOW_MS is the time that the notes tell; the pace is that of the ticks."""
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
        #: Before then nothing is due; by NOW_MS.
        self._due_ms = 0
        self._busy = self._stopped = False
        self._uncompared: deque[_Numbers] = deque()

    def start(self, call_owner: CallOwner) -> None:
        """Read on a thread from now on; CALL_OWNER as in `MessageStore.start`."""
        self._call_owner = call_owner
        self._flusher.start()

    def stop(self) -> None:
        """End the thread, behind the piece at hand."""
        self._stopped = True
        self._flusher.stop()

    def tick(self, now_ms: int) -> None:
        """Go on by what the pace allows at NOW_MS; without a thread by one piece, here and now."""
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
        """Compare some queues; once there are none, have the next piece read."""
        for _ in range(min(_QUEUES_AT_ONCE, len(self._uncompared))):
            one = self._uncompared.popleft()
            try:
                self._compare(one)
            except StoreError as error:
                logger.error(
                    "queue entries cannot be compared with the log: %s",
                    error.message,
                    extra={"topic": one.topic, "queue": one.queue, "count": len(one.numbers)},
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
        """Begin with the file that was verified longest ago, if that is a day; forget those that are gone."""
        now_ms = self._now_ms()
        if now_ms < self._due_ms <= now_ms + ROUND_MS:
            return False
        files = {file.name: file for file in self._log.files.files if file.position}
        self.notes.forget_all_but(files)
        if not files:
            return False
        verified = {name: row.verified_ms for name, row in self.notes.files.items()}
        # A time in the future is one of a clock that was set back since: it tells nothing.
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
        """Hear what PIECE brought."""
        self._busy = False
        if self._stopped or self._file is not piece.file:
            return
        self.read_bytes += piece.read_bytes
        self._credit_bytes -= piece.read_bytes
        if piece.file not in self._log.files.files:
            self._file = None  # Retention took it.
            return
        for log_offset, size in piece.wrong:
            self._damaged += self._damages.found(log_offset, size)
        if piece.trouble:
            self._damaged += 1
            logger.error(
                "log is damaged: %s",
                piece.trouble,
                extra={
                    "file": piece.file.path,
                    "log_offset": piece.file.start + piece.at,
                    "size_bytes": piece.next_at - piece.at,
                },
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
        saving = _Saving(self._disk, self._folder, self.notes.text())
        self._flusher.submit(FlushJob([saving], lambda _: None))

    def _compare(self, one: _Numbers) -> None:
        """Have entries that do not point to the records ONE, or have other tags codes, be made again."""
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
            return  # Numbered anew, or with others between: readers look at each.
        first, end = int(numbers[0]), min(int(numbers[-1]) + 1, queue.max_offset)
        at = first
        while at < end:  # File by file.
            there, _, there_codes = queue.entries(at, end - at)
            if not len(there):
                return
            own = slice(at - first, at - first + len(there))
            if (there != offsets[own]).any():
                self._lost_entries.find(queue, at, at + len(there))
            elif one.topic != SCHEDULE_TOPIC and (there_codes != codes[own]).any():
                self._lost_entries.correct_codes(queue, at, at + len(there))
            at += len(there)

    def _compare_batches(self, queue: BatchConsumeQueue, one: _Numbers) -> None:
        """Tell of records ONE that no entry of QUEUE points to; a start that reads the whole log makes it again."""
        there = queue.entries(max(int(one.numbers[0]), queue.min_offset), len(one.numbers))[0]
        served = one.numbers >= queue.min_offset
        lacking = [
            row
            for row in np.flatnonzero(served & ~np.isin(one.log_offsets, there)).tolist()
            if self._is_batch(int(one.log_offsets[row]))
        ]
        if lacking:
            logger.error(
                "batch queue entries contradict the log: stop, delete pocketmq/verified.json and start again, then"
                " all of the log is read",
                extra={
                    "topic": one.topic,
                    "queue": one.queue,
                    "queue_offset": int(one.numbers[lacking[0]]),
                    "log_offset": int(one.log_offsets[lacking[0]]),
                    "count": len(lacking),
                },
            )

    def _is_batch(self, log_offset: int) -> bool:
        """Is a record at LOG_OFFSET that gets an entry in a batch queue?"""
        size = self._log.record_size(log_offset)
        data = None if size is None else self._log.read(log_offset, size)
        return (
            data is not None
            and {"INNER_BASE", "INNER_NUM"} <= decode_record(data).properties.keys()
        )
