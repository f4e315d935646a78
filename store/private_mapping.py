"""One file of an overlay (overlay_disk.py): a private map of the real file, a fetched copy, or memory."""

from __future__ import annotations

import logging
import mmap
import os
import sys

import numpy as np
from numpy.typing import NDArray

from ..proto.facts import Facts
from .disk import Buffer, Disk
from .open_files import OPEN_FILES, OpenFiles
from .system import data_extents

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_FETCH = 8 << 20
_SEEN_MAX = 8192
#: MAP_NORESERVE, which Python 3.11 does not have: a private gigabyte needs no swap space.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
#: Windows has no such maps: readers of stores do not run there, but are imported.
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | _NO_RESERVE


class PrivateMapping:
    """A copy-on-write map of a real file (fetched from the disk FAR, if given), or anonymous memory.

    It is mapped at its first use. The map is dropped if nothing was changed and other files need the space. `read` of a
    file that is not mapped reads only the range.
    """

    def __init__(
        self,
        path: str,
        size: int,
        *,
        source: str | None,
        far: Disk | None = None,
        files: OpenFiles = OPEN_FILES,
    ) -> None:
        self.path = path
        self.used = False
        self._files = files
        self.size = size
        self._source = source
        self._far = far
        self._map: mmap.mmap | None = None
        #: Is it a map of the real file, whose holes can be found?
        self._is_sparse = False
        #: The last read bytes: the start of a queue is read repeatedly.
        self._seen_at, self._seen = 0, b""
        self._view: memoryview | None = None
        self._array: NDArray[np.uint8] | None = None
        self._written: list[tuple[int, int]] = []

    @property
    def is_changed(self) -> bool:
        """May the content differ from that of the real file of this path?"""
        return self._source != self.path or self._array is not None or bool(self._written)

    def _mapped(self) -> mmap.mmap:
        self.used = True
        found = self._map
        if found is None:
            found = self._private_map() if self._source else None
            if found is None:
                flags = _PRIVATE | mmap.MAP_ANONYMOUS
                found = self._files.attempt(lambda: mmap.mmap(-1, self.size, flags=flags))
            self._map = found
            if self._is_sparse:
                self._files.add(self)
        return found

    def let_go(self) -> bool:
        """Drop the map of a real file without changes."""
        if self._written or self._array is not None or not self._is_sparse:
            return False
        self._map = self._view = None
        return True

    def _private_map(self) -> mmap.mmap | None:
        """Map the real file; None if it was deleted or is shorter than before."""
        assert self._source is not None
        if self._far is not None:
            return self._fetched(self._far, self._source)
        try:
            fd = self._source_descriptor()
        except FileNotFoundError:
            logger.warning("file disappeared, it reads as zeros %s", Facts(path=self._source))
            return None
        length = os.fstat(fd).st_size
        if length < self.size:
            logger.warning(
                "file became shorter, its end reads as zeros %s", Facts(path=self._source)
            )
            return self._short_copy(fd, length)
        try:  # The map duplicates the descriptor: keeping both would halve how many files can be open.
            self._is_sparse = True
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            return self._files.attempt(
                lambda: mmap.mmap(fd, self.size, flags=_PRIVATE, prot=protection)
            )
        finally:
            os.close(fd)

    def _source_descriptor(self) -> int:
        source = self._source
        assert source is not None
        return self._files.attempt(lambda: os.open(source, os.O_RDONLY | os.O_CLOEXEC))

    def _fetched(self, far: Disk, source: str) -> mmap.mmap:
        copy = mmap.mmap(-1, self.size, flags=_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, self.size, _FETCH):
            data = far.read_at(source, at, min(_FETCH, self.size - at))
            if data.strip(b"\0"):  # Unwritten parts need no memory.
                copy[at : at + len(data)] = data
                self._note(at, at + len(data))
        return copy

    def _short_copy(self, fd: int, length: int) -> mmap.mmap:
        copy = mmap.mmap(-1, self.size, flags=_PRIVATE | mmap.MAP_ANONYMOUS)
        for start, end in data_extents(fd, 0, length):
            data = os.pread(fd, end - start, start)
            copy[start : start + len(data)] = data
            self._note(start, end)
        os.close(fd)
        return copy

    def extents(self, at: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [AT, END) that may have other bytes than zeros; they may overlap."""
        if self._array is not None:
            return [(at, end)]
        self._touch()
        found = self._source_extents(at, end) if self._is_sparse else []
        for start, stop in self._written:
            if start < end and stop > at:
                found.append((max(start, at), min(stop, end)))
        return found

    def _source_extents(self, at: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of the real file that are not holes; all of it, if it was deleted meanwhile."""
        assert self._source is not None
        try:
            fd = self._source_descriptor()
        except FileNotFoundError:
            return [(at, end)]
        try:
            return data_extents(fd, at, end)
        finally:
            os.close(fd)

    def _touch(self) -> None:
        if self.size:
            self._mapped()

    def _note(self, start: int, end: int) -> None:
        """Remember that [START, END) was written; an append grows the last range."""
        if self._written and self._written[-1][0] <= start <= self._written[-1][1]:
            first, last = self._written[-1]
            self._written[-1] = (first, max(last, end))
        else:
            self._written.append((start, end))

    @property
    def view(self) -> memoryview:
        self.used = True
        view = self._view
        if view is None:
            view = self._view = memoryview(self._mapped() if self.size else b"").toreadonly()
        return view

    @property
    def array(self) -> NDArray[np.uint8]:
        if self._array is None:
            self._array = np.frombuffer(self._mapped() if self.size else b"", np.uint8)
            self._files.remove(self)
        return self._array

    def write(self, at: int, data: Buffer) -> None:
        if len(data):
            assert at + len(data) <= self.size, "written beyond the end of a mapped file"
            found = self._mapped()
            self._note(at, at + len(data))  # From here on the map is not dropped.
            self._files.remove(self)
            found[at : at + len(data)] = data

    def reserve(self, at: int, size: int) -> None:
        """Do nothing: memory is allocated page by page."""

    def zero(self, at: int, size: int) -> None:
        for start, end in self.extents(at, at + size):
            for position in range(start, end, _CHUNK):
                stop = min(position + _CHUNK, end)
                if np.frombuffer(self.view[position:stop], np.uint8).any():
                    self.write(position, bytes(stop - position))

    def read(self, at: int, size: int) -> bytes:
        if self._map is None and self._source is not None:
            size = max(0, min(size, self.size - at))
            start = at - self._seen_at
            if start >= 0 and start + size <= len(self._seen):
                return self._seen[start : start + size]
            data = self._read_source(at, size)
            if data is not None and len(data) == size:
                if size <= _SEEN_MAX:
                    self._seen_at, self._seen = at, data
                return data
        return bytes(self.view[at : at + size])

    def _read_source(self, at: int, size: int) -> bytes | None:
        """Return that range of the real file; None if it was deleted."""
        assert self._source is not None
        if self._far is not None:
            return self._far.read_at(self._source, at, size)
        try:
            fd = self._source_descriptor()
        except FileNotFoundError:
            return None
        try:
            return os.pread(fd, size, at)
        finally:
            os.close(fd)

    def data_end(self, at: int, end: int) -> int:
        return max((stop for _, stop in self.extents(at, end)), default=at)

    def is_cut(self) -> bool:
        return False

    def check(self) -> None:
        """Do nothing: parts that were not read yet may have changed, and are read as they are."""

    def forget(self, at: int, size: int) -> None:
        """Do nothing: dropping private pages would undo changes."""

    def sync(self) -> None:
        """Do nothing: changes are never written to a disk."""

    def close(self) -> None:
        """Keep the content: it is the file, until the overlay is dropped."""
