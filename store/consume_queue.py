"""Consume queues: for each message of one topic and queue, in order, where its record is in the log.

Both kinds are sequences of mapped files with entries of equal size (format/queues.py). A plain queue has one entry per
message; its files have 300,000 of them by default. If its first message is not number 0 (older ones were deleted),
pre-blank entries precede it. A batch queue has one entry per *inner batch*, a record that contains many messages. These
queues are read, recovered, and rebuilt from the log, but PocketMQ writes no new batches.

Not thread-safe: the store calls it.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import StoreError
from ..proto.record_run import QUEUE_OFFSET_MAX, Longs
from .disk import Buffer, Disk
from .files import MappedFile, MappedFiles, bytes_of
from .format.queues import ADDRESS_MAX, BATCH_ENTRY, ENTRY, NOT_COMPACTED, PRE_BLANK_SIZE, leading
from .format.rows import RowFormat, Rows
from .queue_extension import QueueExtension

#: The maximum gap before a single message. A larger gap needs two consecutive messages that agree on it.
LONE_GAP_MAX: Final = 1000
#: This many consecutive messages, newer than all others, show that a queue started again with lower numbers.
RESTART_LEAST: Final = 3


#: One number per message.
Column: TypeAlias = Longs | Sequence[int]


class Sum(NamedTuple):
    """The CRC of the first SIZE bytes of the file at START of its sequence."""

    start: int
    size: int
    crc: int


class EntryRow:
    """A sequence of mapped FILES full of entries of equal size: entry i is at byte i × its size.

    The first fields of each entry type are `log_offset` and `size`. Log offsets never decrease from entry to entry.
    max_log_end: the end of the newest entry's record in the log, −1 if there is no entry. Until `recover` it is
    unknown, and each file counts as full.
    sums: CRCs of the entries that were in the files at the last `update_sums`. Entries are only ever added after these;
    a file with any other change has no sum.
    """

    __slots__ = ("entry_size", "files", "format", "max_log_end", "sums")

    def __init__(self, files: MappedFiles, entry_format: RowFormat) -> None:
        self.files = files
        self.format = entry_format
        self.entry_size = entry_format.size
        self.max_log_end = -1
        self.sums: tuple[Sum, ...] = ()

    @property
    def first(self) -> int:
        """Number of the first entry for which the files have space."""
        return self.files.min_offset // self.entry_size

    @property
    def end(self) -> int:
        """Number of the next entry; 0 for an empty row."""
        return self.files.max_offset // self.entry_size

    def all_of(self, file: MappedFile) -> Rows:
        """Return the entries in FILE up to its position, without a copy."""
        return self.format.columns(file.view, file.position // self.entry_size)

    def read(self, first: int, count: int) -> Rows:
        """Return up to COUNT entries from number FIRST on: fewer at the end of their file."""
        file = self.files.file_at(first * self.entry_size)
        at = 0 if file is None else first * self.entry_size - file.start
        if file is None or (count := min(count, (file.position - at) // self.entry_size)) <= 0:
            return self.format.none()
        return self.format.columns(file.read(at, count * self.entry_size), count)

    def log_offset(self, number: int) -> int | None:
        """Return the log offset of entry NUMBER; None if it does not exist."""
        entries = self.read(number, 1)
        return int(entries["log_offset"][0]) if len(entries) else None

    def behind_hole(self, number: int) -> int:
        """Return the first number from NUMBER on that has an entry; `end` if none has."""
        if len(self.read(number, 1)):
            return number
        starts = (file.start // self.entry_size for file in self.files.files)
        return min(self.end, next((start for start in starts if start > number), self.end))

    def holes(self) -> list[tuple[int, int]]:
        """Return the ranges of entries whose files are missing between other files."""
        files = self.files.files
        return [
            (before.end // self.entry_size, after.start // self.entry_size)
            for before, after in pairwise(files)
            if before.end != after.start
        ]

    def first_from(self, log_offset: int) -> int:
        """Return the number of the first entry (not pre-blank) at LOG_OFFSET or after it; `end` if there is none."""
        for file in self.files.files:
            entries = self.all_of(file)
            if not _reaches(entries, log_offset):
                continue
            offsets, sizes = entries["log_offset"], entries["size"]
            # No binary search: one damaged entry must not hide those around it.
            # Negative offsets are damage. They count as found, because the right value is unknown.
            found = int(((offsets >= log_offset) | (offsets < 0)).argmax())
            while found < len(entries) and int(sizes[found]) == PRE_BLANK_SIZE:
                found = _blanks_end(sizes)
            if found < len(entries):
                return file.start // self.entry_size + found
        return self.end

    def add(self, entries: Rows) -> None:
        """Append ENTRIES, to as many files as needed.

        Raises StoreFull or DiskFailure: then none of them is added.
        """
        max_log_end = int(entries["log_offset"][-1]) + int(entries["size"][-1])
        self.add_encoded(bytes_of(entries), max_log_end)

    def add_encoded(self, entries: Buffer, max_log_end: int) -> None:
        """Do the same as `add` with the bytes of ENTRIES. MAX_LOG_END: where the record of the last one ends."""
        end = self.files.max_offset
        try:
            self.files.append(entries)
        except StoreError:
            if self.files.max_offset != end:
                self.files.truncate(end)
            raise
        self.max_log_end = max_log_end

    def replace(self, number: int, entry: Rows) -> None:
        """Write ENTRY over entry NUMBER, which must exist. Raises StoreFull or DiskFailure."""
        file = self.files.file_at(number * self.entry_size)
        assert file is not None, "the entry is there"
        self.sums = tuple(one for one in self.sums if one.start != file.start)
        file.put(number * self.entry_size - file.start, entry.tobytes())

    def begin_at(self, number: int) -> None:
        """Start an empty sequence with entry NUMBER: the entries before it in its file become pre-blank.

        Raises StoreFull or DiskFailure: then the sequence is still empty.
        """
        file = self.files.start_at(number * self.entry_size)
        blanks = self.format.zeros(file.position // self.entry_size)
        blanks["size"] = PRE_BLANK_SIZE
        try:
            file.put(0, bytes_of(blanks))
        except StoreError:
            self.files.delete_all()
            raise

    def recover(self, last_files: int | None = 3, sums: Iterable[Sum] = ()) -> bool:
        """Find the end: the first entry, in the last LAST_FILES files (None: in all), that cannot follow the others.

        It is invalid, or its log offset is lower than one before it. It and everything after it is deleted: later files
        are removed, and the rest of its file becomes zero.

        Return whether the files that were read begin with the entries of SUMS, which then become `sums`. Each file is
        read once, and written to only if something must be deleted: a store may have 100,000.
        """
        files = self.files.files
        begin = 0 if last_files is None else max(0, len(files) - last_files)
        known = {one.start: one for one in sums}
        as_summed = True
        newest = self.max_log_end = -1
        for file in files[begin:]:
            data = self._stored(file)
            own = known.get(file.start, Sum(file.start, 0, 0))
            is_same = own.size <= len(data) and zlib.crc32(data[: own.size]) == own.crc
            if own.size and is_same and _is_zero(data, own.size):
                used = own.size  # Its entries were valid at that time.
            else:
                good = self._leading_good(self.format.columns(data), newest)
                used = good * self.entry_size
            as_summed &= is_same and own.size <= used
            if used:
                newest, size, *_ = self.format.read(data, used - self.entry_size)
                self.max_log_end = -1 if size == PRE_BLANK_SIZE else newest + size
            if used < file.size:
                self.files.truncate(file.start + used, zero=not _is_zero(data, used))
                break
        if self.max_log_end < 0:
            self._find_max_log_end()
        if as_summed:
            self.sums = tuple(known.values())
        return as_summed

    def _stored(self, file: MappedFile) -> bytes:
        """Return the entries of FILE up to the hole at its end, which need not be read.

        They are read, not mapped: recovery reads the files of up to 100,000 queues.
        """
        count = min(-(-file.data_end() // self.entry_size), file.position // self.entry_size)
        return file.mapping.read(0, count * self.entry_size)

    def _leading_good(self, entries: Rows, newest: int) -> int:
        """Return how many leading ENTRIES can follow one with log offset NEWEST."""
        offsets = entries["log_offset"].astype(np.int64)
        good = (offsets >= 0) & self.valid(entries)
        if len(good):
            good[0] &= bool(offsets[0] >= newest)
            good[1:] &= offsets[1:] >= offsets[:-1]
        return leading(good)

    def update_sums(self) -> None:
        """Update `sums`; only new entries are read. A file that was cut gets none."""
        known = {one.start: one for one in self.sums}
        extended = (
            _extended(file, known.get(file.start, Sum(file.start, 0, 0)))
            for file in self.files.files
        )
        self.sums = tuple(one for one in extended if one.size)

    def _forget_sums(self) -> None:
        """Forget the sums of entries that were deleted."""
        ends = {file.start: file.position for file in self.files.files}
        self.sums = tuple(one for one in self.sums if one.size <= ends.get(one.start, 0))

    def valid(self, entries: Rows) -> NDArray[np.bool_]:
        """Return for each entry whether its fields, except the log offset, are possible."""
        sound: NDArray[np.bool_] = entries["size"] > 0
        return sound

    def truncate(self, log_end: int) -> int:
        """Delete the newest entries that point to LOG_END or after it; return how many.

        The position stays: if no entry is left, the next one still gets a number that was not used before. (RocketMQ
        deletes the files, and the queue starts again at 0.)
        """
        before = self.end
        if 0 <= self.max_log_end <= log_end:
            return 0
        for file in reversed(self.files.files):
            entries = self.all_of(file)
            offsets = entries["log_offset"]
            good = bisect_left(range(len(entries)), log_end, key=lambda i: int(offsets[i]))
            if good or file is self.files.files[0]:
                if file.start + good * self.entry_size != self.files.max_offset:
                    self.files.truncate(file.start + good * self.entry_size)
                    self._forget_sums()
                break
        self._find_max_log_end()
        return before - self.end

    def cut_to(self, end: int) -> None:
        """Delete the entries from number END on; the position stays."""
        self.files.truncate(end * self.entry_size)
        self._forget_sums()
        self._find_max_log_end()

    def _find_max_log_end(self) -> None:
        self.max_log_end = -1
        for file in reversed(self.files.files):
            count = file.position // self.entry_size
            if count:
                data = file.mapping.read((count - 1) * self.entry_size, self.entry_size)
                log_offset, size, *_ = self.format.read(data)
                if size != PRE_BLANK_SIZE:
                    self.max_log_end = log_offset + size
                return

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files whose entries all point before MIN_LOG_OFFSET, never the last; return how many."""
        count = 0
        for file in self.files.files[:-1]:
            entries = self.all_of(file)
            if not len(entries) or _reaches(entries, min_log_offset):
                break
            count += 1
        return self.files.delete_leading(count)

    def destroy(self) -> None:
        """Delete all files and the folder."""
        self.files.delete_all()
        self.files.disk.delete_folder(self.files.folder)
        self.max_log_end = -1
        self.sums = ()


def _reaches(entries: Rows, log_offset: int) -> bool:
    """Does one of ENTRIES point to LOG_OFFSET or after it? The last one does, unless it is damaged."""
    offsets = entries["log_offset"]
    return bool(len(offsets) and (offsets[-1] >= log_offset or (offsets >= log_offset).any()))


def _extended(file: MappedFile, known: Sum) -> Sum:
    """Return the sum of all entries in FILE, of size 0 if it was cut. KNOWN is the sum of the first ones."""
    if known.size == file.position:
        return known
    added = file.mapping.read(known.size, file.position - known.size)
    if len(added) < file.position - known.size:
        return Sum(file.start, 0, 0)
    return Sum(known.start, file.position, zlib.crc32(added, known.crc))


def _is_zero(data: bytes, at: int) -> bool:
    """Are there only zeros in DATA from AT on?"""
    return data[at:] == bytes(len(data) - at)


def _blanks_end(sizes: NDArray[Any]) -> int:
    """Return how many leading entries are pre-blank."""
    return leading(sizes == PRE_BLANK_SIZE)


@dataclass(slots=True)
class Placed:
    """The results of `put`: messages entered, known before, or misplaced; and entries FILLED into gaps."""

    added: int = 0
    known: int = 0
    misplaced: int = 0
    filled: int = 0
    restarts: int = 0

    def add(self, other: Placed) -> None:
        """Add the counts of OTHER."""
        self.added += other.added
        self.known += other.known
        self.misplaced += other.misplaced
        self.filled += other.filled
        self.restarts += other.restarts


class ConsumeQueue(EntryRow):
    """Queue QUEUE of TOPIC.

    min_offset, max_offset: queue offsets of the oldest message that can be read, and of the next message.
    """

    __slots__ = ("_extension", "_log_begin", "_min_offset", "is_followed", "queue", "topic")

    is_batch = False

    def __init__(self, files: MappedFiles, topic: str, queue: int) -> None:
        super().__init__(files, ENTRY)
        self.topic = topic
        self.queue = queue
        self._min_offset = self.first
        #: Does the log belong to a replica set? Then its master may have deleted the topic and created it again.
        self.is_followed = False
        #: The start of the log, if `min_offset` was not updated since it moved there; else None.
        self._log_begin: int | None = None
        self._extension: QueueExtension | None = None

    @classmethod
    def load(cls, disk: Disk, folder: str, file_size: int, topic: str, queue: int) -> ConsumeQueue:
        """Open the queue in FOLDER/TOPIC/QUEUE, an empty one if it is missing. Its end is unknown until `recover`."""
        path = os.path.join(folder, topic, str(queue))
        return cls(MappedFiles.load(disk, path, file_size, what="consume queue"), topic, queue)

    @property
    def min_offset(self) -> int:
        begin = self._log_begin
        if begin is not None:
            self._min_offset = self.first_from(begin)
            self._log_begin = None
        return self._min_offset

    @property
    def max_offset(self) -> int:
        return self.end

    def append(self, first: int, log_offsets: Column, sizes: Column, tags_codes: Column) -> None:
        """Enter new messages with the queue offsets from FIRST on. FIRST must be `max_offset`, unless it is empty.

        Raises StoreFull or DiskFailure: then none of them is entered.
        """
        entries = np.empty(len(log_offsets), ENTRY.dtype)
        entries["log_offset"] = log_offsets
        entries["size"] = sizes
        entries["tags_code"] = tags_codes
        max_log_end = int(entries["log_offset"][-1]) + int(entries["size"][-1])
        if first != self.end:
            assert not self.files.files, "messages must be consecutive"
            self.begin_at(first)
        self.add_encoded(bytes_of(entries), max_log_end)

    def append_encoded(self, first: int, entries: bytes, max_log_end: int) -> None:
        """Do the same as `append` with the bytes of ENTRIES. MAX_LOG_END: where the record of the last one ends."""
        if first != self.end:
            assert not self.files.files, "messages must be consecutive"
            self.begin_at(first)
        self.add_encoded(entries, max_log_end)

    def begin_at(self, number: int) -> None:
        """Let the next message of an empty queue get NUMBER.

        Raises StoreFull or DiskFailure: then the queue is still empty.
        """
        super().begin_at(number)
        self._set_min_offset(number)

    def put(
        self, queue_offsets: Longs, log_offsets: Longs, sizes: Longs, tags_codes: Longs
    ) -> Placed:
        """Enter messages read from the log, in its order. Some of them may be known already.

        A message is known if its record does not end after the newest one's. Before a gap (messages whose records are
        lost or damaged), the entry after the gap is repeated, so that all others keep their position; the reader skips
        repetitions. (RocketMQ closes the gap: all later messages get lower queue offsets.) Messages with a number in
        use are misplaced and left out. Exceptions: several consecutive ones, or number 0 in the log of a replica, show
        that the queue started again (its topic was deleted and created again), and replace it. If the number of one
        message fits neither neighbour, but there is space between these, it gets that number: no CRC covers numbers.
        """
        ends = log_offsets + sizes
        reached = np.maximum.accumulate(ends)
        before = np.concatenate((np.array([self.max_log_end]), reached[:-1]))
        rows = np.flatnonzero(ends > np.maximum(before, self.max_log_end))
        placed = Placed(known=len(ends) - len(rows))
        numbers = self._numbers(queue_offsets[rows])
        cuts = np.flatnonzero(numbers[1:] != numbers[:-1] + 1) + 1
        for run, own in zip(np.split(rows, cuts), np.split(numbers, cuts), strict=True):
            if len(run):
                fields = log_offsets[run], sizes[run], tags_codes[run]
                self._put_run(int(own[0]), fields, placed)
        return placed

    def _numbers(self, said: Longs) -> Longs:
        """Return the numbers of new messages with the numbers SAID; one that is out of line gets its neighbours'."""
        if not len(said):
            return said
        before = self.end if self.files.files else int(said[0])
        due = np.concatenate((np.array([before]), said[:-1] + 1))
        is_out = np.append((said[:-1] != due[:-1]) & (said[1:] == due[:-1] + 1), False)
        return np.where(is_out, due, said)

    def _put_run(self, first: int, fields: tuple[Longs, Longs, Longs], placed: Placed) -> None:
        """Enter messages with consecutive numbers from FIRST on, all newer than the queue."""
        count = len(fields[0])
        empty = not self.files.files
        if first < self.end and self._has_one_from(first - 1):
            self.cut_to(first)
        gap = first - self.end
        cannot_be = not 0 <= first <= QUEUE_OFFSET_MAX - count
        if cannot_be or (not empty and gap > LONE_GAP_MAX and count == 1):
            placed.misplaced += count
            return
        if gap < 0:
            if count < RESTART_LEAST and not (first == 0 and self.is_followed):
                placed.misplaced += count
                return
            placed.restarts += 1
            self.destroy()
        elif gap and not empty:
            self._fill(gap, fields)
            placed.filled += gap
        self.append(first, *fields)
        placed.added += count

    def _has_one_from(self, number: int) -> bool:
        """Is there only one message from NUMBER on, whose number was too high?"""
        newest = self.log_offset(self.end - 1)
        return (
            number >= self.min_offset
            and newest == self.log_offset(number)
            and newest != self.log_offset(number - 1)
        )

    def _fill(self, gap: int, fields: tuple[Longs, Longs, Longs]) -> None:
        """Append the first entry of FIELDS GAP times."""
        first = self.end
        self.append(first, *(np.repeat(column[:1], gap) for column in fields))

    def repeat_neighbour(self, number: int) -> None:
        """Replace entry NUMBER, whose record is damaged, by the next entry, or else by the previous one.

        Without either it is not changed. Raises StoreFull or DiskFailure.
        """
        own = self.log_offset(number)
        others = [
            other for other in (number + 1, number - 1) if self.log_offset(other) not in (None, own)
        ]
        if others and min(others) >= self.min_offset:
            self.replace(number, self.read(others[0], 1))

    def entries(self, first: int, count: int) -> tuple[Longs, Longs, Longs]:
        """Return log offsets, sizes and tags codes of up to COUNT messages from queue offset FIRST on.

        Fewer at the end of a file; none after the end, below `min_offset`, and where a file is missing.
        """
        entries = self.read(first, count if first >= self.min_offset else 0)
        return (
            entries["log_offset"].astype(np.int64),
            entries["size"].astype(np.int64),
            self._resolved(entries["tags_code"].astype(np.int64)),
        )

    def _resolved(self, codes: Longs) -> Longs:
        """Return tags CODES. Addresses in the extension file are replaced by the codes there."""
        if not len(codes) or int(codes.min()) > ADDRESS_MAX:
            return codes
        if self._extension is None:
            self._extension = QueueExtension(self.files.disk, self.files.folder)
        return self._extension.resolved(codes)

    @property
    def has_extension(self) -> bool:
        """Do entries have addresses in the extension file instead of tags codes? A RocketMQ broker may write these."""
        return QueueExtension(self.files.disk, self.files.folder).exists

    def offset_behind_hole(self, offset: int) -> int:
        """Return the first queue offset from OFFSET on that has an entry; `max_offset` if none has."""
        return self.behind_hole(max(offset, self.min_offset))

    def truncate(self, log_end: int) -> int:
        """Delete the messages whose records begin at LOG_END or after it; return how many."""
        count = super().truncate(log_end)
        if count:
            self._set_min_offset(min(self.min_offset, self.max_offset))
        return count

    def _set_min_offset(self, offset: int) -> None:
        self._min_offset, self._log_begin = offset, None

    def correct_min_offset(self, min_log_offset: int) -> None:
        """Set `min_offset` to the first message whose record is at MIN_LOG_OFFSET or after it.

        All files are searched, without pre-blank entries. (RocketMQ searches only the first file.) The search takes
        place when `min_offset` is read: a store may have 100,000 queues, of which few are read.
        """
        self._log_begin = min_log_offset

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files with only messages before MIN_LOG_OFFSET, never the last; return how many."""
        count = super().delete_expired(min_log_offset)
        self.correct_min_offset(min_log_offset)
        return count

    def destroy(self) -> None:
        """Delete the queue with its folder. It is then empty, and starts again at 0."""
        super().destroy()
        self._set_min_offset(0)


class BatchConsumeQueue(EntryRow):
    """Queue QUEUE of TOPIC.

    min_offset, max_offset: queue offsets of the oldest message that can be read, and of the next message.
    """

    is_batch = True

    def __init__(self, files: MappedFiles, topic: str, queue: int) -> None:
        super().__init__(files, BATCH_ENTRY)
        self.topic = topic
        self.queue = queue
        self.min_offset = 0
        self.max_offset = 0

    @classmethod
    def load(
        cls, disk: Disk, folder: str, file_size: int, topic: str, queue: int
    ) -> BatchConsumeQueue:
        """Open the queue in FOLDER/TOPIC/QUEUE, an empty one if it is missing. Its end is unknown until `recover`."""
        path = os.path.join(folder, topic, str(queue))
        return cls(
            MappedFiles.load(disk, path, file_size, what="batch consume queue"), topic, queue
        )

    def valid(self, entries: Rows) -> NDArray[np.bool_]:
        sound: NDArray[np.bool_] = (
            (entries["size"] > 0) & (entries["base"] >= 0) & (entries["count"] > 0)
        )
        return sound

    def put(
        self,
        log_offsets: Longs,
        sizes: Longs,
        tags_codes: Longs,
        store_ms: Longs,
        batches: tuple[Longs, Longs],
    ) -> Placed:
        """Enter batches read from the log, in its order. BATCHES are first queue offsets and numbers of messages.

        A batch is known if its record does not end after the newest one's. A batch with a negative offset, or without
        messages, is misplaced.
        """
        bases, counts = batches
        ends = log_offsets + sizes
        reached = np.maximum.accumulate(np.concatenate((np.array([self.max_log_end]), ends[:-1])))
        fresh = ends > reached
        sound = (bases >= 0) & (counts > 0) & (counts < 1 << 15)
        rows = np.flatnonzero(fresh & sound)
        if len(rows):
            entries = BATCH_ENTRY.zeros(len(rows))
            entries["log_offset"] = log_offsets[rows]
            entries["size"] = sizes[rows]
            entries["tags_code"] = tags_codes[rows]
            entries["store_ms"] = store_ms[rows]
            entries["base"] = bases[rows]
            entries["count"] = counts[rows]
            entries["compacted"] = NOT_COMPACTED
            first = not self.end
            self.add(entries)
            self._find_max()
            if first:
                self.min_offset = int(bases[rows[0]])
        return Placed(
            added=len(rows),
            known=int(np.count_nonzero(~fresh)),
            misplaced=int(np.count_nonzero(fresh & ~sound)),
        )

    def entries(self, first: int, count: int) -> tuple[Longs, Longs, Longs, Longs, Longs]:
        """Return log offsets, sizes, tags codes, first queue offsets and numbers of messages of up to COUNT batches,
        from the batch with queue offset FIRST on; fewer at the end of a file."""
        number = self._batch_of(first)
        entries = self.read(number, count) if number is not None else BATCH_ENTRY.none()
        names = ("log_offset", "size", "tags_code", "base", "count")
        columns = [entries[name].astype(np.int64) for name in names]
        return columns[0], columns[1], columns[2], columns[3], columns[4]

    def _batch_of(self, offset: int) -> int | None:
        """Return the number of the entry whose batch has queue OFFSET, or of the next one; None if none follows."""
        if offset >= self.max_offset:
            return None
        chosen = None
        for file in self.files.files:
            bases = self.all_of(file)["base"]
            if not len(bases) or (chosen is not None and int(bases[0]) > offset):
                break
            place = int(np.searchsorted(bases, offset, "right"))
            chosen = file.start // self.entry_size + max(0, place - 1)
        return chosen

    def recover(self, last_files: int | None = 3, sums: Iterable[Sum] = ()) -> bool:
        """Find the end of the queue, and return whether it is as in SUMS, see `EntryRow.recover`."""
        as_summed = super().recover(last_files, sums)
        self._find_max()
        first = self.read(self.first, 1)
        self.min_offset = int(first["base"][0]) if len(first) else 0
        return as_summed

    def _find_max(self) -> None:
        self.max_offset = 0
        last = next((file for file in reversed(self.files.files) if file.position), None)
        if last is not None:
            entries = self.all_of(last)
            self.max_offset = int(entries["base"][-1]) + int(entries["count"][-1])

    def truncate(self, log_end: int) -> int:
        """Delete the batches whose records begin at LOG_END or after it; return how many."""
        count = super().truncate(log_end)
        self._find_max()
        self.min_offset = min(self.min_offset, self.max_offset)
        return count

    def correct_min_offset(self, min_log_offset: int) -> None:
        """Set `min_offset` to the first message whose record is at MIN_LOG_OFFSET or after it."""
        entries = self.read(self.first_from(min_log_offset), 1)
        self.min_offset = int(entries["base"][0]) if len(entries) else self.max_offset

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files with only batches before MIN_LOG_OFFSET, never the last; return how many."""
        count = super().delete_expired(min_log_offset)
        self.correct_min_offset(min_log_offset)
        return count

    def destroy(self) -> None:
        """Delete the queue with its folder. It is then empty."""
        super().destroy()
        self.min_offset = self.max_offset = 0
