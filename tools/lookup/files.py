"""Log and queues as their files have them, read at any place, without recovery, however damaged.

Files are opened when they are needed, so one look-up in a store of a terabyte costs one listing and a few pages: one
page by queue offset, one per halving by time. A record found here is in the files; a broker's recovery decides whether
it is kept (docs/recovery.md). Where nothing can be read, an `Absence` has the reason:

    expired   before the first file: the retention has deleted the file
    hole      a file is missing between two others
    beyond    after the last byte that was written
    nothing   inside the log, but no record begins there, or it is damaged beyond reading
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np

from ...proto.errors import InvalidRecord
from ...proto.record import (
    FIXED_SIZE_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_ROLLBACK,
    SYS_TRANSACTION,
    Record,
    decode_record,
)
from ...store.disk import Disk
from ...store.format.log import BLANK_SIZE, MAGIC_AT, MAGIC_PATTERN, size_and_magic
from ...store.format.queues import PRE_BLANK_SIZE, entry_format
from ...store.listing import FilePages, PagedRow
from ...store.queue_extension import QueueExtension

#: Search for the beginning of a record goes back so far at first; a record is rarely longer.
_BACK_BYTES: Final = 1 << 16
_BACK_BYTES_MAX: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record and where it was read; FAULTS: what a reader should know of it, none for a sound one."""

    record: Record
    data: bytes
    log_offset: int
    path: str
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Absence:
    """Why nothing can be read at LOG_OFFSET."""

    log_offset: int
    kind: Literal["expired", "hole", "beyond", "nothing"]
    why: str


class LogFiles(PagedRow):
    """The commit log in FOLDER. Reads only."""

    def __init__(self, disk: Disk, folder: str, *, mapped: bool = True) -> None:
        super().__init__(disk, folder, mapped=mapped)
        self._known = 0

    def know_of(self, log_offset: int) -> None:
        """Begin the search for the end at the record at LOG_OFFSET, if one is there: the later, the better."""
        self._known = log_offset

    # --- records -------------------------------------------------------------------------------------------------

    def at(self, log_offset: int) -> StoredRecord | Absence:
        """Return the record that begins at LOG_OFFSET, or why there is none."""
        file = self.file_at(log_offset)
        if file is None:
            return self._outside(log_offset)
        size, magic = size_and_magic(file.read(log_offset - file.start, BLANK_SIZE))
        if magic == MAGIC_BLANK:
            return Absence(log_offset, "nothing", f"the blank end of {file.path} begins there")
        if not size and not magic and log_offset >= self.end:
            return Absence(log_offset, "beyond", f"the log ends at {self.end:,}")
        return self._record(file, log_offset, size, magic)

    def _record(
        self, file: FilePages, log_offset: int, size: int, magic: int
    ) -> StoredRecord | Absence:
        at, room = log_offset - file.start, file.end - log_offset
        if not size and not magic:
            return Absence(log_offset, "nothing", f"there are zeros in {file.path}")
        if not FIXED_SIZE_V4 <= size <= room:
            why = f"no record begins there: it would be {size:,} bytes long, of magic {magic & 0xFFFFFFFF:08X}"
            return Absence(log_offset, "nothing", why)
        data = bytes(file.read(at, size))
        try:
            record = decode_record(data)
        except InvalidRecord as error:
            return Absence(log_offset, "nothing", f"no sound record begins there ({error.message})")
        if record.sys_flag & SYS_TRANSACTION == SYS_ROLLBACK:
            why = "what stood there was damaged, and was set aside in pocketmq/broken"
            return Absence(log_offset, "nothing", why)
        return StoredRecord(record, data, log_offset, file.path, _faults(record, log_offset))

    def _outside(self, log_offset: int) -> Absence:
        if not self.files:
            return Absence(log_offset, "nothing", f"{self.folder} holds no log files")
        if log_offset < self.begin:
            why = f"the log begins at {self.begin:,}: the file that held it has expired"
            return Absence(log_offset, "expired", why)
        if log_offset >= self.limit:
            return Absence(log_offset, "beyond", f"the last log file ends at {self.limit:,}")
        return Absence(log_offset, "hole", "the log file that held it is missing")

    def records(self, begin: int, end: int | None = None) -> Iterator[StoredRecord]:
        """Yield the records from BEGIN, where one begins, up to END; after damage from the next file on."""
        at = max(begin, self.begin)
        stop = self.limit if end is None else end
        while at < stop:
            found = self.at(at)
            if isinstance(found, StoredRecord):
                yield found
                at += len(found.data)
                continue
            following = self.file_after(at)
            if following is None:
                return
            at = following.start

    @cached_property
    def end(self) -> int:
        """Log offset after the last record of the newest file in use.

        Reads the record heads of one file, or only those after a known record: about 0.3 µs per record. Damage is
        skipped up to the next valid record; zeros end the log.
        """
        for file in reversed(self.files):
            at = self._written(file, self._first_head(file))
            if at:
                return file.start + at
        return self.begin

    def _first_head(self, file: FilePages) -> int:
        """Return the position in FILE of the record that is known, if one begins there."""
        if not file.start <= self._known < file.end:
            return 0
        at = self._known - file.start
        size, magic = size_and_magic(file.read(at, BLANK_SIZE))
        is_there = isinstance(self._record(file, self._known, size, magic), StoredRecord)
        return at if is_there else 0

    def _written(self, file: FilePages, at: int) -> int:
        read, whole = file.read_next, file.size
        while at + BLANK_SIZE <= whole:
            size, magic = size_and_magic(read(at, BLANK_SIZE))
            if magic == MAGIC_BLANK:
                return whole
            if magic in (MAGIC_V1, MAGIC_V2) and FIXED_SIZE_V4 <= size <= whole - at:
                at += size
                continue
            following = self._next_sound(file, at + 1) if size or magic else None
            if following is None:
                return at
            at = following
        return at

    def _next_sound(self, file: FilePages, begin: int) -> int | None:
        """Return the position from BEGIN on of the next valid record in FILE; None if there is none."""
        overlap = BLANK_SIZE - 1
        for start, piece in file.pieces(begin, file.data_end, overlap):
            for match in MAGIC_PATTERN.finditer(piece):
                head = start + match.start() - MAGIC_AT
                found = self.at(file.start + head) if head >= begin else None
                if isinstance(found, StoredRecord) and found.record.log_offset == found.log_offset:
                    return head
        return None

    @property
    def data_end(self) -> int:
        """Log offset after which there can be nothing: `end`, or later where zeros may be damage."""
        if not self.files:
            return self.begin
        last = self.files[-1]
        return max(self.end, last.start + last.data_end)

    def store_time_ms(self, log_offset: int) -> int | None:
        """Return when the record at LOG_OFFSET was stored, Unix milliseconds; None if there is none."""
        found = self.at(log_offset)
        return found.record.store_timestamp_ms if isinstance(found, StoredRecord) else None

    @cached_property
    def begin_time_ms(self) -> int | None:
        """When the first record that is there was stored; None if that cannot be read."""
        return self.store_time_ms(self.begin) if self.files else None

    # --- searching -----------------------------------------------------------------------------------------------

    def holding(
        self, needle: bytes, begin: int = 0, end: int | None = None
    ) -> Iterator[StoredRecord]:
        """Yield the records from BEGIN to END that hold the bytes NEEDLE, oldest first, by reading all of them.

        Damage in between costs only the records that it hit. Some 1 GiB a second from the page cache.
        """
        pattern = re.compile(re.escape(needle))
        stop = self.limit if end is None else end
        done = begin
        for file in self.files:
            if file.end <= begin or file.start >= stop:
                continue
            low, high = max(begin - file.start, 0), min(stop - file.start, file.data_end)
            for start, piece in file.pieces(low, high, len(needle) - 1):
                for match in pattern.finditer(piece):
                    place = file.start + start + match.start()
                    found = self._around(file, place) if done <= place < stop else None
                    if found is not None:
                        done = found.log_offset + len(found.data)
                        yield found

    def _around(self, file: FilePages, place: int) -> StoredRecord | None:
        """Return the record of FILE that holds byte PLACE: the nearest beginning before it that makes a record."""
        back, inside = _BACK_BYTES, place - file.start
        while True:
            low = max(0, inside - back)
            before = file.read(low, inside - low)
            for head in reversed([match.start() for match in MAGIC_PATTERN.finditer(before)]):
                found = self.at(file.start + low + head - 4) if low + head >= 4 else None
                if isinstance(found, StoredRecord) and found.log_offset + len(found.data) > place:
                    return found
            if low == 0 or back >= _BACK_BYTES_MAX:
                return None
            back *= 16


def _faults(record: Record, log_offset: int) -> tuple[str, ...]:
    faults = []
    if not record.crc_ok:
        faults.append("the body does not fit its CRC")
    if record.log_offset != log_offset:
        faults.append(f"the record says that it stands at {record.log_offset:,}")
    return tuple(faults)


# ---------------------------------------------------------------- queues


class QueueEntry(NamedTuple):
    """One entry: queue offset of its (first) message, place and size of the record, tags code, number of messages."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    messages: int = 1


class QueueFiles(PagedRow):
    """Queue QUEUE of TOPIC in the files of FOLDER. Reads only."""

    def __init__(
        self, disk: Disk, folder: str, topic: str, queue: int, *, is_batch: bool, mapped: bool
    ) -> None:
        super().__init__(disk, folder, mapped=mapped)
        self.topic = topic
        self.queue = queue
        self.is_batch = is_batch
        self._format = entry_format(is_batch=is_batch)
        self._entry_size = self._format.size
        self._extension = QueueExtension(disk, folder)

    # --- by place in the row -------------------------------------------------------------------------------------

    def _at(self, place: int) -> QueueEntry | None:
        """Return entry PLACE of the row; None where none was written, or its file is missing."""
        byte = place * self._entry_size
        file = self.file_at(byte) if byte >= 0 else None
        if file is None:
            return None
        fields = self._format.read(file.read(byte - file.start, self._entry_size))
        if self.is_batch:
            log_offset, size, code, _, base, count, _, _ = fields
            found = QueueEntry(base, log_offset, size, code, count)
        else:
            found = QueueEntry(place, *fields)
        return found if found.size > 0 and found.log_offset >= 0 else None

    @property
    def _first_place(self) -> int:
        return self.begin // self._entry_size

    @cached_property
    def _end_place(self) -> int:
        """The place after the last entry: the end of the newest file that has any."""
        for file in reversed(self.files):
            first, last = file.start // self._entry_size, file.end // self._entry_size
            if self._at(first) is not None:
                return bisect_left(range(last), True, lo=first, key=lambda at: self._at(at) is None)
        return self._first_place

    def _first_from(self, wanted: Callable[[QueueEntry], bool]) -> int:
        """Return the first place whose entry is WANTED, which once it is stays so; the end if there is none."""

        def there(place: int) -> bool:
            entry = self._at(place)
            return entry is not None and wanted(entry)

        return bisect_left(range(self._end_place), True, lo=self._first_place, key=there)

    # --- by queue offset -----------------------------------------------------------------------------------------

    def min_offset(self, log: LogFiles) -> int:
        """Return the queue offset of the first message that LOG still has; the end if there is none."""
        entry = self._at(self._first_from(lambda entry: _is_in(entry, log)))
        return self.max_offset if entry is None else entry.queue_offset

    @property
    def max_offset(self) -> int:
        """The queue offset of the next message to come."""
        last = self._at(self._end_place - 1)
        if last is not None:
            return last.queue_offset + last.messages
        return 0 if self.is_batch else self._end_place

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return the entry that holds QUEUE_OFFSET; None if the files have none."""
        if not self.is_batch:
            found = self._at(queue_offset) if queue_offset >= 0 else None
            if found is not None:
                (code,) = self._extension.resolved(np.array([found.tags_code], np.int64)).tolist()
                found = found._replace(tags_code=code)
            return found
        behind = self._first_from(lambda entry: entry.queue_offset > queue_offset)
        found = self._at(behind - 1)
        if found is None or not 0 <= queue_offset - found.queue_offset < found.messages:
            return None
        return found

    def entries_from(self, queue_offset: int) -> Iterator[QueueEntry]:
        """Yield the entries from QUEUE_OFFSET on."""
        place = queue_offset
        if self.is_batch:
            place = self._first_from(lambda one: one.queue_offset + one.messages > queue_offset)
        for at in range(max(place, self._first_place), self._end_place):
            entry = self._at(at)
            if entry is not None and entry.size != PRE_BLANK_SIZE:
                yield entry

    def offset_at_time(self, time_ms: int, log: LogFiles) -> int:
        """Return the queue offset of the first message stored at TIME_MS or later; the end if there is none."""

        def late(entry: QueueEntry) -> bool:
            if not _is_in(entry, log):
                return False
            stored_ms = log.store_time_ms(entry.log_offset)
            return stored_ms is None or stored_ms >= time_ms

        entry = self._at(self._first_from(late))
        return self.max_offset if entry is None else entry.queue_offset


def _is_in(entry: QueueEntry, log: LogFiles) -> bool:
    return entry.size != PRE_BLANK_SIZE and entry.log_offset >= log.begin


class Queues:
    """All queues in the store at ROOT, found by listing folders."""

    def __init__(self, disk: Disk, root: str, *, mapped: bool = True) -> None:
        self._disk = disk
        self._root = root
        self._mapped = mapped

    @cached_property
    def topics(self) -> list[str]:
        """The names of all topics that have queues."""
        return sorted(
            {
                entry.name
                for kind in _FOLDERS
                for entry in self._disk.list(posixpath.join(self._root, kind))
                if entry.is_folder
            }
        )

    def of_topic(self, topic: str) -> list[QueueFiles]:
        """Return the queues of TOPIC by number; none for a topic without."""
        found = []
        for kind, is_batch in _FOLDERS.items():
            folder = posixpath.join(self._root, kind, topic)
            for entry in self._disk.list(folder) if _is_plain(topic) else []:
                if entry.is_folder and entry.name.isascii() and entry.name.isdigit():
                    path = posixpath.join(folder, entry.name)
                    number, mapped = int(entry.name), self._mapped
                    found.append(
                        QueueFiles(
                            self._disk, path, topic, number, is_batch=is_batch, mapped=mapped
                        )
                    )
        return sorted(found, key=lambda queue: queue.queue)

    def get(self, topic: str, number: int) -> QueueFiles | None:
        """Return queue NUMBER of TOPIC; None if the store has none."""
        return next((queue for queue in self.of_topic(topic) if queue.queue == number), None)


_FOLDERS: Final = {"consumequeue": False, "batchconsumequeue": True}


def _is_plain(topic: str) -> bool:
    """Is TOPIC one name, and no way to another folder?"""
    return bool(topic) and "/" not in topic and topic not in (".", "..")
