"""The upkeep of a store in the background: what goes to the device when, damage looked for, old files deleted.

The log, the queues with the index, and the checkpoint go to the device each at its interval. Two threads: the log's
(group commit waits for it) and one for everything else, so that thousands of queue files never delay an
acknowledgement. The checkpoint follows Apache 5.5.0: the log's time moves with each flush of the log, the queues' time
and offset only with a thorough flush every 60 s and not at a stop, the index's with each full index file. Java's
recovery reads it, and starts the earlier, the less it says. Not thread-safe: the store's owner calls `tick`; results
come back through `call_owner`.

The scrubber: the log read and compared in the background, so that damage is found before somebody needs the message.

It goes through one log file after the other, at `scrub_bytes_per_s`, and through each once a day; the one that was
verified longest ago comes first. Every record has to stand where it says, to fit its CRC, and to have its entry, with
its place and its tags code: a filter goes by that, and steps over a message whose code is wrong. What is damaged goes
where readers bring it (damage.py); what cannot be read is told. Reading and comparing is done on a thread, a piece at a
time; queues are compared by the owner, some in each turn of its loop.

When each file was verified last stands in `<root>/pocketmq/scrubbed.json`:

    {"version": 1, "files": {"<name in commitlog/>": {"verified_ms": …, "size_bytes": …, "damaged": …}}}

`damaged` counts what was found in that reading. Without it all is verified again. The kernel's page cache serves what
it holds, as it does for every reader: what changed on the device below it is found once its pages were let go. Entries
of batch queues are compared by their places, and told. Index and timer files are not looked at, nor are the times in
entries of delay levels (`pocketmq inspect STORE verify` does).

Retention: what to delete when, and when to refuse writes; and doing so. The decision is pure, told the time, the usage
and the files: whole log files only, the oldest first, never the newest, at most so many a round, and none behind the
first that has not expired. A file expires RETENTION after its last change. Expired files go in the delete hour (local
time), or at any hour while the disk is fuller than `disk_expire_percent`. Above `disk_force_percent` the oldest go
whatever their age; above `disk_refuse_percent` writes are refused as well. Not what consumers have read counts, but a
message that waits for its time keeps its file (`kept_back`), unless the disk forces it out. Queues, index and timer log
follow the log.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto import record_run
from ..proto.errors import StoreError, StoreFull
from ..proto.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SYS_PREPARED, decode_record
from ..proto.topics import RECORD_SIZE_MAX, SCHEDULE_TOPIC
from .config import StoreConfig
from .consume_queue import BatchConsumeQueue
from .damage import Damages, LostEntries
from .disk import Disk, Mapping, write_error
from .files import CommitLog, MappedFile, Syncable
from .flush import CallOwner, Flusher, FlushJob, GroupCommit
from .format.log_and_queues import BLANK_SIZE, MAGIC_AT, MAGIC_PATTERN, size_and_magic
from .index_file import IndexFile
from .log_writer import LogWriter
from .parts import StoreHealth, StoreParts, by_queue
from .recovery.derive import VerifiedSnapshot
from .timers.store import TimerStore

logger = logging.getLogger(__name__)


class _Saved:
    """Saving what was verified, as something that a flusher does behind what it tells of."""

    def __init__(self, verified: VerifiedSnapshot, disk: Disk, folder: str) -> None:
        self._verified = verified
        self._disk = disk
        self._folder = folder

    def sync(self) -> None:
        try:
            self._verified.save(self._disk, self._folder)
        except StoreFull as error:  # Then the next recovery reads more; nothing is lost.
            logger.warning("not noted as verified", extra={"reason": error.message})


class _InPlace:
    """Seeing that what was synced is still the file of its name, as something that a flusher does behind the sync."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping

    def sync(self) -> None:
        self._mapping.check()


class Background:
    """The flushing of one store. `group` is the log's group commit."""

    def __init__(
        self,
        parts: StoreParts,
        health: StoreHealth,
        writer: LogWriter,
        snapshot: Callable[[], VerifiedSnapshot],
        timers: TimerStore,
        on_flushed: list[Callable[[int], None]],
    ) -> None:
        """SNAPSHOT returns what a recovery could rely on if all that is there now were on the device.

        Those of ON_FLUSHED, whoever they are by then, are called with each new flushed offset of the log.
        """
        self._snapshot = snapshot
        self._config = parts.config
        self._health = health
        self._log, self._queues, self._index = parts.log, parts.queues, parts.index
        self._writer = writer
        self._dispatcher = parts.dispatcher
        self._timers = timers
        self._checkpoint = parts.checkpoint
        self._disk = parts.disk
        self.log_flusher = Flusher("pocketmq-flush-log")
        self._rest_flusher = Flusher("pocketmq-flush-queues")
        on_flushed.append(self._note_log)
        self.group = GroupCommit(
            self._collect_log,
            self.log_flusher,
            flushed_offset=self._log.max_offset,
            on_flushed=on_flushed,
            on_failed=health.fail,
        )
        self._collected_ms = 0
        self._verified: VerifiedSnapshot | None = None
        self._remembered_end = -1
        #: Is the present state to be noted as soon as queues and index have all that the log has?
        self._to_remember = False
        self._rest_busy = False
        self._checkpoint_late = False
        self._queues_due_ms = self._thorough_due_ms = self._checkpoint_due_ms = 0

    def expect_flush(self, verified: VerifiedSnapshot | None) -> None:
        """Nothing is surely on the device. Once all that is there now is, save VERIFIED."""
        self.group.doubt(self._log.min_offset)
        self._verified = verified

    def remember(self) -> None:
        """Note the present state as verified once it is on the device, so that a recovery need not read it again."""
        end = self._log.max_offset
        is_whole = self._writer.dispatched_offset == end and not self._dispatcher.index_lags
        if self._verified is None and is_whole and end != self._remembered_end:
            self._verified = self._snapshot()
            self._remembered_end = end
        self._to_remember = not is_whole

    def forget(self) -> None:
        """Queues went: what was to be noted is no longer so, what is there now will be."""
        self._verified = None
        self._remembered_end = -1
        self.remember()

    def start(self, call_owner: CallOwner) -> None:
        """Start both threads; CALL_OWNER runs a function in the owner's thread (`loop.call_soon_threadsafe`)."""
        self.group.start(call_owner)
        self.log_flusher.start()
        self._rest_flusher.start()

    def stop(self) -> None:
        """End both threads, after what was submitted; a failure counts at once, its report may still be on its way."""
        self.log_flusher.stop()
        self._rest_flusher.stop()
        if error := self.log_flusher.error or self._rest_flusher.error:
            self.group.fail(error)

    def tick(self, now_ms: int) -> None:
        """Begin whatever is due at NOW_MS, an instant of a clock that is never set back."""
        if self._health.failure is not None:
            return
        try:
            self._check_in_place()
        except StoreError as error:
            self.group.fail(error)
            return
        self.group.flush_up_to(self._log.max_offset)
        if self._rest_busy:
            return
        parts: list[Syncable] = []
        landed: list[Callable[[], None]] = []
        if now_ms >= self._queues_due_ms:
            self._queues_due_ms = now_ms + self._config.flush_queues_interval_ms
            parts += self._queues_due(now_ms, landed)
        if now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + self._config.flush_checkpoint_interval_ms
            parts += self._checkpoint_due()
            parts += self._timers.take_parts(self.group.flushed_offset)
        if parts:
            self._submit_rest(parts, landed)

    def _check_in_place(self) -> None:
        """Raise DiskFailure if the log's newest file was deleted, replaced or cut: nothing may be promised of it."""
        last = self._log.files.last
        if last is not None:
            last.mapping.check()

    def _queues_due(self, now_ms: int, landed: list[Callable[[], None]]) -> list[Syncable]:
        """Return the queues' and full index files' parts; LANDED gets what to note once they are on the device."""
        parts = self._queues.take_dirty()
        if self._to_remember:
            self.remember()
        if now_ms >= self._thorough_due_ms and not self._dispatcher.index_lags:
            # The first minute has to pass, as in Apache's broker.
            first = self._thorough_due_ms == 0
            self._thorough_due_ms = now_ms + self._config.flush_queues_thorough_interval_ms
            if not first:
                landed.append(self._note_queues())
                self.remember()
        if self._verified is not None and self.group.flushed_offset >= self._verified.log_end:
            parts += self._index.take_dirty() if self._index is not None else []
            parts.append(_Saved(self._verified, self._disk, self._config.own_folder))
            self._verified = None
        for file in self._index.take_full() if self._index is not None else []:
            parts.append(file)
            landed.append(self._note_index(file))
        return parts

    def _checkpoint_due(self) -> list[Syncable]:
        try:
            written = self._checkpoint.write()
        except StoreFull as error:  # An older checkpoint is as true: recovery begins earlier.
            if not self._checkpoint_late:
                logger.warning("checkpoint not written", extra={"reason": error.message})
            self._checkpoint_late = True
            return []
        self._checkpoint_late = False
        return [self._checkpoint] if written else []

    def _note_queues(self) -> Callable[[], None]:
        offset, time_ms = self._writer.last_log_offset, self._writer.last_store_ms
        values = self._checkpoint.values

        def note() -> None:
            if offset is not None:
                values.note_queues(offset, time_ms)

        return note

    def _note_index(self, file: IndexFile) -> Callable[[], None]:
        def note() -> None:
            self._checkpoint.values.note_index(file.header.end_ms)

        return note

    def _submit_rest(self, parts: list[Syncable], landed: list[Callable[[], None]]) -> None:
        self._rest_busy = True

        def finished(error: StoreError | None) -> None:
            self._rest_busy = False
            if error is not None:
                self.group.fail(error)
                return
            for note in landed:
                note()

        def done(error: StoreError | None) -> None:
            self.group.call_owner(lambda: finished(error))

        self._rest_flusher.submit(FlushJob(parts, done))

    def _collect_log(self) -> tuple[int, list[Syncable]]:
        self._collected_ms = self._writer.last_store_ms
        parts, last = self._log.take_dirty(), self._log.files.last
        if last is not None:
            parts.append(_InPlace(last.mapping))
        return self._log.max_offset, parts

    def _note_log(self, flushed_offset: int) -> None:
        """The log is on the device up to what was collected last: one sync is under way at a time."""
        self._checkpoint.values.note_log(self._collected_ms)

    def flush_everything(self) -> None:
        """Bring log, queues and index to the device now, in this thread; or raise what failed."""
        end, parts = self._collect_log()
        for part in parts:
            part.sync()
        for part in self._queues.take_dirty():
            part.sync()
        if self._index is not None:
            self._index.sync()
        self.group.reached(end)
        self._timers.flush()


# ---------------------------------------------------------------- the scrubber

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
    numbers: record_run.Longs
    log_offsets: record_run.Longs
    codes: record_run.Longs


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
        queued = np.flatnonzero(~wrong & (columns.sys_flag & SYS_PREPARED == 0))
        self.queues = _numbers(record_run.as_bytes(data), columns, queued)
        self.next_at = self.at + end
        is_whole = end + BLANK_SIZE <= len(data)
        self.is_last = is_whole and size_and_magic(data, end)[1] == MAGIC_BLANK

    def _look_on(self, data: bytes) -> None:
        """No record begins here: find the end of the file, or the next record."""
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
    codes = record_run.tags_codes(array, record_run.PropertyRanges(array, columns))
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
            start = piece.file.start + piece.at
            self._damages.found_no_records(start, piece.file.start + piece.next_at)
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


# ---------------------------------------------------------------- retention


@dataclass(frozen=True, slots=True)
class Decision:
    """How many of the oldest log files to delete now, why, and whether writes are to be refused.

    forced: the disk is so full that nothing keeps a file.
    """

    delete_files: int
    reason: str
    refuse_writes: bool
    forced: bool = False


def decide(
    config: StoreConfig, now_ms: int, modified_ms: Sequence[int], used_percent: int
) -> Decision:
    """Decide for log files last changed at MODIFIED_MS, oldest file first, on a disk that is USED_PERCENT full."""
    refuse = used_percent > config.disk_refuse_percent
    candidates = modified_ms[:-1]
    if used_percent > config.disk_force_percent:
        count = min(len(candidates), config.clean_files_max)
        return Decision(count, f"the disk is {used_percent} % full", refuse, forced=True)
    reason = _reason_to_delete_expired(config, now_ms, used_percent)
    if reason is None:
        return Decision(0, "not the hour", refuse)
    return Decision(_expired(config, now_ms, candidates), reason, refuse)


def kept_back(decision: Decision, ends: Sequence[int], needed_from: int | None) -> Decision:
    """Return DECISION without the files, of log offsets up to ENDS, that hold something from NEEDED_FROM on."""
    if decision.forced or needed_from is None:
        return decision
    free = sum(end <= needed_from for end in ends[: decision.delete_files])
    return replace(decision, delete_files=free)


def _reason_to_delete_expired(config: StoreConfig, now_ms: int, used_percent: int) -> str | None:
    if local_hour(now_ms) == config.delete_hour:
        return "expired"
    if used_percent > config.disk_expire_percent:
        return f"expired, and the disk is {used_percent} % full"
    return None


def _expired(config: StoreConfig, now_ms: int, modified_ms: Sequence[int]) -> int:
    count = 0
    for changed_ms in modified_ms[: config.clean_files_max]:
        if changed_ms + config.retention_ms > now_ms:
            break
        count += 1
    return count


def local_hour(now_ms: int) -> int:
    """Return the hour of the day, 0 to 23, in the machine's time zone."""
    return datetime.fromtimestamp(now_ms / 1000).hour


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One round: how many files went, and where the log begins now."""

    log_files: int
    queue_files: int
    index_files: int
    min_log_offset: int
    timer_files: int = 0


class Cleaner:
    """Deletes what the settings no longer want. Not thread-safe: the store's owner calls it."""

    def __init__(self, parts: StoreParts, health: StoreHealth, timers: TimerStore) -> None:
        self._config = parts.config
        self._disk = parts.disk
        self._health = health
        self._timers = timers
        self._log, self._queues, self._index = parts.log, parts.queues, parts.index

    def clean(self, now_ms: int, needed_from: Callable[[], int | None]) -> Cleaned:
        """Do one round: decide by age and usage, delete, and refuse or take writes again.

        NEEDED_FROM tells the lowest log offset of a message that waits for something; None if none does. Raises
        StoreError: then what is not deleted yet is so in a later round.
        """
        used = self._used_percent()
        changed = self._changed_ms()
        decision = decide(self._config, now_ms, changed, used)
        self._health.set_full(self._full_reason(used) if decision.refuse_writes else None)
        if decision.delete_files:
            ends = [file.end for file in self._log.files.files]
            decision = kept_back(decision, ends, needed_from())
        gone = self._log.files.delete_leading(decision.delete_files)
        if gone:
            logger.info(
                "log files deleted",
                extra={
                    "count": gone,
                    "reason": decision.reason,
                    "min_offset": self._log.min_offset,
                },
            )
        return self._follow(gone)

    def delete_before(self, offset: int) -> int:
        """Delete the files that lie before OFFSET, never the newest; return how many. Raises StoreError."""
        gone = self._log.files.delete_leading(
            sum(file.end <= offset for file in self._log.files.files[:-1])
        )
        if gone:
            self._follow(gone)
        return gone

    def _changed_ms(self) -> list[int]:
        """Return when each file of the log was written to last."""
        try:
            return [self._disk.modified_ms(file.path) for file in self._log.files.files]
        except OSError as error:
            raise write_error(error, "look at files of", self._config.log_folder) from error

    def _used_percent(self) -> int:
        """Return the usage of the log's or the queues' file system, whichever is fuller."""
        paths = {self._config.path, self._config.log_folder}
        return max(
            (self._disk.usage(path).used_percent for path in paths if self._disk.exists(path)),
            default=0,
        )

    def _full_reason(self, used: int) -> str:
        limit = self._config.disk_refuse_percent
        return (
            f"the disk of {self._config.path} is {used} % full, the limit for writing is {limit} %: free some"
            " space, shorten store.retention_ms, or raise store.disk_refuse_percent"
        )

    def _follow(self, log_files: int) -> Cleaned:
        least = self._log.min_offset
        queue_files = self._queues.delete_expired(least)
        index_files = 0 if self._index is None else self._index.delete_expired(least)
        timer_files = self._timers.delete_expired(least)
        return Cleaned(log_files, queue_files, index_files, least, timer_files)
