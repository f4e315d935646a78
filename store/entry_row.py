"""A row of mapped files full of equal entries, each pointing to a record of the log: what queues are made of.

Entry i stands at byte i × its size of the row; which entries are valid and which pre-blank: format/queue_entries.py.
Log offsets never fall from entry to entry. Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import StoreError
from .disk import Disk
from .files import MappedFile, MappedFiles
from .format.queue_entries import PRE_BLANK_SIZE, leading
from .format.rows import RowFormat, Rows, bytes_of


class Sum(NamedTuple):
    """The CRC of the first SIZE bytes of the file that begins at START of its row."""

    start: int
    size: int
    crc: int


class EntryRow:
    """The row in FOLDER. Every entry type has the fields `log_offset` and `size` first.

    max_log_end: where the record of the newest entry ends in the log, −1 if there is no entry. Up to `recover` it is
    not known, and every file counts as full.
    sums: CRCs of what the files began with when they were last summed up; entries are only ever added behind that, and
    a file of which anything else is changed has none.
    """

    __slots__ = ("entry_size", "files", "format", "max_log_end", "sums")

    def __init__(self, files: MappedFiles, entry_format: RowFormat) -> None:
        self.files = files
        self.format = entry_format
        self.entry_size = entry_format.size
        self.max_log_end = -1
        self.sums: tuple[Sum, ...] = ()

    @classmethod
    def load(
        cls, disk: Disk, folder: str, file_size: int, entry_format: RowFormat, what: str
    ) -> EntryRow:
        """Open the row in FOLDER; StoreRefused names a file that does not belong."""
        return cls(MappedFiles.load(disk, folder, file_size, what=what), entry_format)

    @property
    def first(self) -> int:
        """Number of the first entry that the files have a place for."""
        return self.files.min_offset // self.entry_size

    @property
    def end(self) -> int:
        """Number of the next entry; 0 for an empty row."""
        return self.files.max_offset // self.entry_size

    @property
    def entries_per_file(self) -> int:
        return self.files.file_size // self.entry_size

    # --- reading -------------------------------------------------------------------------------------------------

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
        """Return the log offset of entry NUMBER; None if it is not there."""
        entries = self.read(number, 1)
        return int(entries["log_offset"][0]) if len(entries) else None

    def behind_hole(self, number: int) -> int:
        """Return the first number from NUMBER on that has an entry; `end` if none has."""
        if len(self.read(number, 1)):
            return number
        starts = (file.start // self.entry_size for file in self.files.files)
        return min(self.end, next((start for start in starts if start > number), self.end))

    def holes(self) -> list[tuple[int, int]]:
        """Return the ranges of entries whose files are missing between others."""
        files = self.files.files
        return [
            (before.end // self.entry_size, after.start // self.entry_size)
            for before, after in pairwise(files)
            if before.end != after.start
        ]

    def first_from(self, log_offset: int) -> int:
        """Return the number of the first entry, no pre-blank one, at LOG_OFFSET or behind it; `end` if none is."""
        for file in self.files.files:
            entries = self.all_of(file)
            if not _reaches(entries, log_offset):
                continue
            offsets, sizes = entries["log_offset"], entries["size"]
            # Not by halving: one damaged entry must not hide those around it.
            # Negative ones are damage: what cannot be told counts as there.
            found = int(((offsets >= log_offset) | (offsets < 0)).argmax())
            while found < len(entries) and int(sizes[found]) == PRE_BLANK_SIZE:
                found = _blanks_end(sizes)
            if found < len(entries):
                return file.start // self.entry_size + found
        return self.end

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, entries: Rows) -> None:
        """Write ENTRIES behind the last one, over as many files as it takes.

        Raises StoreFull or DiskFailure: then none of them is there.
        """
        end = self.files.max_offset
        try:
            self.files.append(bytes_of(entries))
        except StoreError:
            if self.files.max_offset != end:
                self.files.truncate(end)
            raise
        self.max_log_end = int(entries["log_offset"][-1]) + int(entries["size"][-1])

    def replace(self, number: int, entry: Rows) -> None:
        """Write the one ENTRY over NUMBER, which is there. Raises StoreFull or DiskFailure."""
        file = self.files.file_at(number * self.entry_size)
        assert file is not None, "the entry is there"
        self.sums = tuple(one for one in self.sums if one.start != file.start)
        file.put(number * self.entry_size - file.start, entry.tobytes())

    def begin_at(self, number: int) -> None:
        """Make an empty row begin with entry NUMBER: the places before it in its file become pre-blank.

        Raises StoreFull or DiskFailure: then the row is still empty.
        """
        file = self.files.start_at(number * self.entry_size)
        blanks = self.format.zeros(file.position // self.entry_size)
        blanks["size"] = PRE_BLANK_SIZE
        try:
            file.put(0, bytes_of(blanks))
        except StoreError:
            self.files.delete_all()
            raise

    # --- after a stop --------------------------------------------------------------------------------------------

    def recover(self, last_files: int | None = 3, sums: Iterable[Sum] = ()) -> bool:
        """Find the end: the first entry, of the last LAST_FILES files (None: of all), that cannot follow the others.

        That is one that is not valid, or whose log offset is lower than one before it. Everything from it on goes:
        later files are deleted, the rest of its file becomes zero.

        Return whether the files that were read begin as SUMS say; then these are the row's from now on. Each file is
        read once, and written to only where something has to go: a store may have 100,000.
        """
        files = self.files.files
        begin = 0 if last_files is None else max(0, len(files) - last_files)
        known = {one.start: one for one in sums}
        as_summed = True
        newest = self.max_log_end = -1
        for file in files[begin:]:
            data = self._stored(file)
            own = known.get(file.start, Sum(file.start, 0, 0))
            is_same = zlib.crc32(data[: own.size]) == own.crc
            if own.size and is_same and _is_zero(data, own.size):
                used = own.size  # Its entries were good then.
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
        """Return the entries of FILE up to where it is one hole to its end: a hole's pages are not worth reading.

        They are read, not mapped: a store may have 100,000 files whose end has to be found.
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

    def sum_up(self) -> None:
        """Bring `sums` up to date; only what was added since is read."""
        known = {one.start: one for one in self.sums}
        self.sums = tuple(
            _extended(file, known.get(file.start, Sum(file.start, 0, 0)))
            for file in self.files.files
            if file.position
        )

    def _forget_sums(self) -> None:
        """Forget the sums of what is no longer there."""
        ends = {file.start: file.position for file in self.files.files}
        self.sums = tuple(one for one in self.sums if one.size <= ends.get(one.start, 0))

    def valid(self, entries: Rows) -> NDArray[np.bool_]:
        """Tell for each entry whether its fields, but for the log offset, can be."""
        sound: NDArray[np.bool_] = entries["size"] > 0
        return sound

    def truncate(self, log_end: int) -> int:
        """Take out the newest entries that point to LOG_END or behind it; return how many.

        The row keeps its place: if nothing is left, the next entry still gets a number that no entry had before the
        first file's. (Apache deletes the files, and the queue begins at 0 again.)
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
        """Take out the entries from number END on; the row keeps its place."""
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
    """Does one of ENTRIES point to LOG_OFFSET or behind it? The last does, unless it is damaged."""
    offsets = entries["log_offset"]
    return bool(len(offsets) and (offsets[-1] >= log_offset or (offsets >= log_offset).any()))


def _extended(file: MappedFile, known: Sum) -> Sum:
    """Return the sum of all that FILE holds; KNOWN is that of its beginning."""
    if known.size == file.position:
        return known
    added = file.mapping.read(known.size, file.position - known.size)
    return Sum(known.start, file.position, zlib.crc32(added, known.crc))


def _is_zero(data: bytes, at: int) -> bool:
    """Is DATA nothing but zeros from AT on?"""
    return data[at:] == bytes(len(data) - at)


def _blanks_end(sizes: NDArray[Any]) -> int:
    """Return how many leading entries are pre-blank."""
    return leading(sizes == PRE_BLANK_SIZE)
