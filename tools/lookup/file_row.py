"""Rows of files read at single places, local ones through a descriptor, remote ones page by page.

Nothing here writes, grows or locks a file, and what is behind a file's end reads as zeros: a store may be live, cut
short, or damaged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ...store.disk import Buffer, Disk, Mapping
from ..stores.scan.log_files import RowFile as ListedFile
from ..stores.scan.log_files import row_files, zeros_from

#: What one request for a page of a remote file asks for, and how many pages of a file are kept.
_PAGE_BYTES: Final = 1 << 16
_PAGES_MAX: Final = 64
#: Pieces in which a whole remote file is read.
_PIECE_BYTES: Final = 32 << 20


class FilePages:
    """The file PATH of SIZE bytes. MAPPED: it is a local one."""

    def __init__(self, disk: Disk, path: str, size: int, *, mapped: bool) -> None:
        self.path = path
        self.size = size
        self._disk = disk
        self._mapped = mapped
        self._pages: OrderedDict[int, bytes] = OrderedDict()

    @cached_property
    def _mapping(self) -> Mapping | None:
        try:
            return self._disk.open_map(self.path, writable=False)
        except OSError:  # A live broker's retention deleted it after the folder was listed.
            return None

    @cached_property
    def _view(self) -> memoryview:
        try:
            return memoryview(b"") if self._mapping is None else self._mapping.view[: self.size]
        except FileNotFoundError:
            return memoryview(b"")

    def read(self, at: int, size: int) -> Buffer:
        """Return SIZE bytes from AT, somewhere in the file; zeros for what it does not have.

        Of a local file not through the map: a page fault reads ahead as much as a megabyte, and takes 5 ms for it
        instead of 0.06 (measured, nothing in memory).
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
        """Do what `read` does, faster for those who go through a file from one end to the other."""
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
        """A position from which on the file is zeros, that of the last byte that is none or some MiB behind it."""
        try:
            return zeros_from(self._disk, ListedFile(self.path, 0, self.size))
        except FileNotFoundError:
            return 0

    def pieces(self, begin: int, end: int, overlap_bytes: int) -> Iterator[tuple[int, Buffer]]:
        """Yield position and bytes of the pieces of [BEGIN, END), each from OVERLAP_BYTES before the last one's end."""
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


def _filled(data: Buffer, size: int) -> Buffer:
    return data if len(data) == size else bytes(data).ljust(size, b"\0")


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file of a row: offset of its first byte, and the file."""

    start: int
    pages: FilePages

    @property
    def end(self) -> int:
        return self.start + self.pages.size

    @property
    def path(self) -> str:
        return self.pages.path


class FileRow:
    """The files in FOLDER, named by the offset of their first byte, as they were when first asked for."""

    def __init__(self, disk: Disk, folder: str, *, mapped: bool) -> None:
        self.folder = folder
        self._disk = disk
        self._mapped = mapped

    @cached_property
    def files(self) -> list[RowFile]:
        """The files in order; what has no number for a name, or no length, is left out."""
        return [
            RowFile(file.base, FilePages(self._disk, file.path, file.size, mapped=self._mapped))
            for file in row_files(self._disk, self.folder)
        ]

    @cached_property
    def _starts(self) -> list[int]:
        return [file.start for file in self.files]

    @property
    def begin(self) -> int:
        """Offset of the first byte that is there; 0 for a row without files."""
        return self.files[0].start if self.files else 0

    @property
    def limit(self) -> int:
        """Offset behind the last file, which may be unwritten for the most part."""
        return self.files[-1].end if self.files else 0

    def file_at(self, offset: int) -> RowFile | None:
        """Return the file whose range holds OFFSET; None outside the row and where a file is missing."""
        index = bisect_right(self._starts, offset) - 1
        return self.files[index] if index >= 0 and offset < self.files[index].end else None

    def file_after(self, offset: int) -> RowFile | None:
        """Return the first file that begins behind OFFSET."""
        index = bisect_right(self._starts, offset)
        return self.files[index] if index < len(self.files) else None
