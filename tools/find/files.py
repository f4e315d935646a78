"""The log of a store as its files have it, read at any place, without recovery, however damaged.

Files are opened when they are needed, so one look-up in a store of a terabyte costs one listing and a few pages. A
record found here is in the files; a broker's recovery decides whether it is kept (docs/recovery.md). Where nothing can
be read, an `Absence` has the reason:

    expired   before the first file: the retention has deleted the file
    hole      a file is missing between two others
    beyond    after the last byte that was written
    nothing   inside the log, but no record begins there, or it is damaged beyond reading
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

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
from ...store.listing import FilePages, PagedRow

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
            return Absence(log_offset, "nothing", f"no valid record begins there ({error.message})")
        if record.sys_flag & SYS_TRANSACTION == SYS_ROLLBACK:
            why = "the record was damaged, and is quarantined in pocketmq/broken"
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
        faults.append(f"the log offset in the record is {record.log_offset:,}")
    return tuple(faults)
