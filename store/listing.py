"""The sequences of a store's files as they are in their folders: log, queues, timer log.

The name of a file is the offset of its first byte, in twenty digits. Nothing here writes, grows or locks a file. The
store may be live, truncated, or damaged, on any disk. `row_files` and `FileRow` list a sequence; `FilePages` and
`PagedRow` read single places, local files through a descriptor, remote ones page by page. They return zeros for bytes
after the end of a file.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from ..proto.errors import OffsetOutOfRange
from .disk import Buffer, Disk, Entry, Mapping
from .files import NAME_DIGITS

#: A record, or a sequence of entries, never has so many zeros, but the end of a file may.
_PROBE_BYTES: Final = 8 << 20
#: The size of a page of a remote file, and how many pages per file are cached.
_PAGE_BYTES: Final = 1 << 16
_PAGES_MAX: Final = 64
#: The size of pieces in which a complete remote file is read.
_PIECE_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file of SIZE bytes whose first byte is at START of its sequence."""

    path: str
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)


@dataclass(frozen=True, slots=True)
class FileRow:
    """The files in FOLDER, in order; STRANGE are names that are not offsets."""

    folder: str
    files: tuple[RowFile, ...] = ()
    strange: tuple[str, ...] = ()

    @classmethod
    def listed(cls, disk: Disk, folder: str) -> FileRow:
        """Return the present files in FOLDER, including empty ones."""
        entries = [entry for entry in disk.list(folder) if not entry.is_folder]
        files = (
            RowFile(posixpath.join(folder, entry.name), int(entry.name), entry.size)
            for entry in entries
            if _is_offset(entry)
        )
        strange = tuple(entry.name for entry in entries if not _is_offset(entry))
        return cls(folder, tuple(sorted(files, key=lambda file: file.start)), strange)

    @property
    def begin(self) -> int:
        """Offset of the first byte; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """The end of the last file; 0 without files."""
        return self.files[-1].end if self.files else 0

    @property
    def usual_size(self) -> int:
        """The most frequent length; 0 without files."""
        sizes = [file.size for file in self.files]
        return max(sizes, key=sizes.count) if sizes else 0

    def at(self, offset: int) -> RowFile | None:
        """Return the file with OFFSET; None in a hole or outside."""
        place = bisect_right([file.start for file in self.files], offset) - 1
        return self.files[place] if place >= 0 and offset < self.files[place].end else None

    def holes(self) -> list[tuple[int, int]]:
        """Return the ranges [from, to) between two files that no file covers."""
        return list(missing_between(self.files))


def _is_offset(entry: Entry) -> bool:
    return len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdecimal()


def row_files(disk: Disk, folder: str) -> list[RowFile]:
    """Return the non-empty files in FOLDER that are named by an offset, in order.

    A listing may miss a file that is created meanwhile, and have the one after it. If one is missing, the folder is
    listed again, until two listings are equal.
    """
    files, missing = _listed(disk, folder), None
    while (now_missing := list(missing_between(files))) and now_missing != missing:
        files, missing = _listed(disk, folder), now_missing
    return files


def _listed(disk: Disk, folder: str) -> list[RowFile]:
    return [
        RowFile(f"{folder}/{entry.name}", int(entry.name), entry.size)
        for entry in disk.list(folder)
        if not entry.is_folder and entry.size and entry.name.isascii() and entry.name.isdigit()
    ]


def hole_from(disk: Disk, file: RowFile) -> int:
    """Return an offset from which on FILE is one hole; its end if the file system does not report holes."""
    with_data = disk.open_map(file.path, writable=False)
    try:
        return file.start + with_data.data_end(0, file.size)
    finally:
        with_data.close()


def zeros_from(disk: Disk, file: RowFile) -> int:
    """Return an offset from which on FILE certainly has only zeros: where its last hole begins, or some MiB later.

    If the file system does not report holes, it is found by a binary search that reads some MiB each time.
    """
    hole = hole_from(disk, file)
    if hole < file.end or file.size <= _PROBE_BYTES:
        return hole
    low, high = 0, -(-file.size // _PROBE_BYTES)
    while low < high:
        middle = (low + high) // 2
        data = disk.read_at(file.path, middle * _PROBE_BYTES, _PROBE_BYTES)
        if data.count(0) == len(data):
            high = middle
        else:
            low = middle + 1
    return file.start + min(file.size, low * _PROBE_BYTES)


def missing_between(files: Sequence[RowFile]) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of each part of the sequence between files that no file covers."""
    for before, after in pairwise(files):
        if before.end < after.start:
            yield before.end, after.start


def require_joined(files: Sequence[RowFile], what: str) -> None:
    """Raise OffsetOutOfRange with the first gap, unless FILES, of the sequence WHAT, have no gaps."""
    for start, end in missing_between(files):
        raise OffsetOutOfRange(
            f"{what}: bytes {start:,} to {end:,} are missing, because a file is missing. Set "
            "failOnDataLoss=false to read the rest",
            field="failOnDataLoss",
            start=start,
            end=end,
        )


def queue_folders(
    disk: Disk, root: str, topics: Collection[str] | None = None
) -> Iterator[tuple[str, int, str]]:
    """Yield (topic, queue id, folder) of each queue below ROOT (`consumequeue`, `batchconsumequeue`), only of TOPICS.

    Queues are in the order of their ids.
    """
    for topic in disk.list(root):
        if topic.is_folder and (topics is None or topic.name in topics):
            folder = f"{root}/{topic.name}"
            ids = [int(one.name) for one in disk.list(folder) if one.is_folder and _is_id(one.name)]
            for queue_id in sorted(ids):
                yield topic.name, queue_id, f"{folder}/{queue_id}"


def _is_id(name: str) -> bool:
    """Is NAME a queue id as RocketMQ writes it?"""
    return name.isascii() and name.isdigit() and str(int(name)) == name


class FilePages:
    """The file PATH of SIZE bytes, whose first byte is at START of its sequence. MAPPED: the file is local."""

    def __init__(self, disk: Disk, path: str, size: int, *, mapped: bool, start: int = 0) -> None:
        self.path = path
        self.start = start
        self.size = size
        self._disk = disk
        self._mapped = mapped
        self._pages: OrderedDict[int, bytes] = OrderedDict()

    @cached_property
    def _mapping(self) -> Mapping | None:
        try:
            return self._disk.open_map(self.path, writable=False)
        except OSError:  # The retention of a running broker deleted it after the folder was listed.
            return None

    @cached_property
    def _view(self) -> memoryview:
        try:
            return memoryview(b"") if self._mapping is None else self._mapping.view[: self.size]
        except FileNotFoundError:
            return memoryview(b"")

    @property
    def end(self) -> int:
        return self.start + self.size

    def read(self, at: int, size: int) -> Buffer:
        """Return SIZE bytes from AT; zeros after the end of the file.

        A local file is not read through the map: a page fault reads up to a megabyte ahead, which takes 5 ms instead
        of 0.06 (measured with an empty page cache).
        """
        if not self._mapped:
            data = self._of_pages(at, size)
        else:
            try:
                data = b"" if self._mapping is None else self._mapping.read(at, size)
            except FileNotFoundError:
                data = b""
        return _filled(data, size)

    def read_next(self, at: int, size: int) -> Buffer:
        """Return the same as `read`, faster for reading a file from one end to the other."""
        return _filled(self._view[at : at + size], size) if self._mapped else self.read(at, size)

    def _of_pages(self, at: int, size: int) -> Buffer:
        first, last = at // _PAGE_BYTES, (at + size - 1) // _PAGE_BYTES
        if last - first >= _PAGES_MAX:
            return self._read_at(at, size)
        data = b"".join(self._page(number) for number in range(first, last + 1))
        begin = at - first * _PAGE_BYTES
        return data[begin : begin + size]

    def _page(self, number: int) -> bytes:
        page = self._pages.get(number)
        if page is None:
            page = self._read_at(number * _PAGE_BYTES, _PAGE_BYTES)
            self._pages[number] = page
            if len(self._pages) > _PAGES_MAX:
                self._pages.popitem(last=False)
        self._pages.move_to_end(number)
        return page

    def _read_at(self, at: int, size: int) -> bytes:
        try:
            return self._disk.read_at(self.path, at, size)
        except FileNotFoundError:
            return b""

    @property
    def data_end(self) -> int:
        """A position from which on the file has only zeros: after its last other byte, or some MiB later."""
        try:
            return zeros_from(self._disk, RowFile(self.path, 0, self.size))
        except FileNotFoundError:
            return 0

    def pieces(self, begin: int, end: int, overlap_bytes: int) -> Iterator[tuple[int, Buffer]]:
        """Yield position and bytes of pieces of [BEGIN, END), each from OVERLAP_BYTES before the previous end on."""
        end = min(end, self.size)
        if self._mapped:
            yield begin, self._view[begin:end]
            return
        at = begin
        while at < end:
            piece = self._read_at(at, min(_PIECE_BYTES, end - at))
            yield at, piece
            if len(piece) < _PIECE_BYTES:
                return
            at += len(piece) - overlap_bytes


class PagedRow:
    """The files in FOLDER, named by the offset of their first byte. They are listed once, on first use."""

    def __init__(self, disk: Disk, folder: str, *, mapped: bool) -> None:
        self.folder = folder
        self._disk = disk
        self._mapped = mapped

    @cached_property
    def files(self) -> list[FilePages]:
        """The files in order; files without a number as name, and empty files, are left out."""
        return [
            FilePages(self._disk, file.path, file.size, mapped=self._mapped, start=file.start)
            for file in row_files(self._disk, self.folder)
        ]

    @cached_property
    def _starts(self) -> list[int]:
        return [file.start for file in self.files]

    @property
    def begin(self) -> int:
        """Offset of the first byte; 0 for a sequence without files."""
        return self.files[0].start if self.files else 0

    @property
    def limit(self) -> int:
        """The end of the last file, most of which may be unwritten."""
        return self.files[-1].end if self.files else 0

    def file_at(self, offset: int) -> FilePages | None:
        """Return the file with OFFSET; None outside the sequence and where a file is missing."""
        index = bisect_right(self._starts, offset) - 1
        return self.files[index] if index >= 0 and offset < self.files[index].end else None

    def file_after(self, offset: int) -> FilePages | None:
        """Return the first file that begins after OFFSET."""
        index = bisect_right(self._starts, offset)
        return self.files[index] if index < len(self.files) else None


def _filled(data: Buffer, size: int) -> Buffer:
    return data if len(data) == size else bytes(data).ljust(size, b"\0")
