"""One open file of the real disk: `OsMapping`.

Files are written with pwrite, and read with pread or through a shared read-only map. Both use the same page cache, so a
map shows written data at once. A full disk is an error of the call, instead of a SIGBUS that kills the process. Holes
are found by lseek(SEEK_DATA / SEEK_HOLE), so that zeroing a sparse gigabyte touches only its data.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure
from .disk import Buffer, disk_errors
from .file_copies import make_own
from .open_files import OPEN_FILES, Descriptor, OpenFiles
from .system import CLOSE_ON_EXEC, allocate, data_extents, sync_data

_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)
_PAGE: Final = mmap.PAGESIZE


class OsMapping:
    """One real file. The descriptor is opened at once if the file must be created or grown, else at the first use.

    It is closed if other files need the space, unless its `array` was requested, and opens again at its next use.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_closed",
        "_descriptor",
        "_files",
        "_inode",
        "_is_own",
        "_map",
        "_view",
        "_writable",
        "path",
        "size",
        "used",
    )

    def __init__(
        self,
        path: str,
        size: int | None,
        *,
        writable: bool,
        create: bool,
        files: OpenFiles = OPEN_FILES,
    ) -> None:
        self.path = path
        self.used = False
        self._files = files
        self._writable = writable
        self._is_own = not writable
        self._closed = False
        #: The first opened inode (0: none yet). A file that is opened again must be the same.
        self._inode = 0
        # Other threads may clear these at any time: read each once into a variable, which stays valid.
        self._descriptor: Descriptor | None = None
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._array: NDArray[np.uint8] | None = None
        length = self._length(create=create)
        self.size = length if size is None else size
        if self.size > length:
            self._make_own()
            descriptor = self._opened()
            with disk_errors("set the length of", path):
                os.ftruncate(descriptor.number, self.size)

    def _length(self, *, create: bool) -> int:
        if not create:
            return os.stat(self.path).st_size
        descriptor = self._open("create", os.O_CREAT)
        return os.fstat(descriptor.number).st_size

    def _opened(self) -> Descriptor:
        self.used = True
        return self._descriptor or self._open("open")

    def _open(self, action: str, more_flags: int = 0) -> Descriptor:
        if self._closed:
            raise DiskFailure(f"{self.path} was closed", path=self.path, reason="closed")
        with disk_errors(action, self.path):
            descriptor = self._new_descriptor(more_flags)
            inode = os.fstat(descriptor.number).st_ino
        if self._inode not in (0, inode):
            self.check()
        self._inode = inode
        self._descriptor = descriptor
        self.used = True
        if self._array is None:
            self._files.add(self)
        return descriptor

    def _new_descriptor(self, more_flags: int = 0) -> Descriptor:
        flags = (os.O_RDWR if self._writable else os.O_RDONLY) | CLOSE_ON_EXEC | more_flags
        return Descriptor(self._files.attempt(lambda: os.open(self.path, flags, 0o644)))

    def _make_own(self) -> None:
        """Before the first write: ensure that the file has no other name. Views that are held keep the old bytes."""
        self._is_own = True
        descriptor = self._opened()
        with disk_errors("copy", self.path):
            if os.fstat(descriptor.number).st_nlink > 1 and self._files.attempt(
                lambda: make_own(self.path)
            ):
                self._descriptor, self._inode = None, 0
                self._view = self._array = self._map = None

    def _mapped(self, *, writable: bool) -> mmap.mmap:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        number = (descriptor := self._opened()).number
        try:
            with disk_errors("map", self.path):
                found = self._files.attempt(
                    lambda: mmap.mmap(number, self.size, flags=mmap.MAP_SHARED, prot=protection)
                )
        except ValueError:  # The file is shorter than its expected size.
            self.check()
            raise
        if self._descriptor is not descriptor:  # It was closed to make space for the map.
            self._files.add(self)
        return found

    def let_go(self) -> bool:
        """Close the descriptor and drop the map, unless the array was requested. References to them stay valid."""
        if self._array is not None:
            return False
        self._descriptor = self._view = self._map = None
        return True

    @property
    def view(self) -> memoryview:
        self.used = True
        view = self._view
        if view is None:
            found = self._map
            if self.size and found is None:
                found = self._map = self._mapped(writable=False)
            view = self._view = memoryview(found or b"").toreadonly()
        return view

    @property
    def array(self) -> NDArray[np.uint8]:
        array = self._array
        if array is None:
            if not self._is_own:
                self._make_own()
            found = self._mapped(writable=self._writable) if self.size else None
            array = self._array = np.frombuffer(found or b"", np.uint8)
            self._files.remove(self)
            self._map, self._view = found, None
        return array

    def write(self, at: int, data: Buffer) -> None:
        if not self._is_own:
            self._make_own()
        descriptor = self._opened()
        with disk_errors("write to", self.path):
            written = os.pwrite(descriptor.number, data, at)
            if written == len(data):
                return
            rest = memoryview(data)
            while written < len(rest):
                step = os.pwrite(descriptor.number, rest[written:], at + written)
                if step == 0:
                    raise OSError(errno.EIO, "no byte was written")
                written += step

    def reserve(self, at: int, size: int) -> None:
        if size > 0:
            if not self._is_own:
                self._make_own()
            descriptor = self._opened()
            with disk_errors("allocate space in", self.path):
                allocate(descriptor.number, at, size)

    def zero(self, at: int, size: int) -> None:
        for start, end in self._data(at, at + size):
            for position in range(start, end, _CHUNK):
                length = min(_CHUNK, end - position)
                zeros = _ZEROS[:length]
                if self.read(position, length) != zeros:
                    self.write(position, zeros)

    def _data(self, at: int, end: int) -> list[tuple[int, int]]:
        descriptor = self._opened()
        return data_extents(descriptor.number, at, end)

    def data_end(self, at: int, end: int) -> int:
        extents = self._data(at, end)
        return extents[-1][1] if extents else at

    def read(self, at: int, size: int) -> bytes:
        descriptor = self._opened()
        try:
            return os.pread(descriptor.number, size, at)
        except OSError as error:
            reason = error.strerror or str(error)
            raise DiskFailure(
                f"cannot read {size:,} bytes at {at:,} of {self.path}: {reason}",
                path=self.path,
                reason=reason,
            ) from error

    def check(self) -> None:
        fault = None if self._closed else self._fault()
        if fault is not None:
            raise DiskFailure(
                f"{self.path} {fault} while it was in use: stop the broker, restore the file, and start again",
                path=self.path,
                reason=fault,
            )

    def is_cut(self) -> bool:
        descriptor = self._descriptor
        try:
            found = os.stat(self.path) if descriptor is None else os.fstat(descriptor.number)
        except OSError:
            return False  # A file without a name keeps its bytes as long as it is mapped.
        return found.st_size < self.size

    def _fault(self) -> str | None:
        try:
            there = os.stat(self.path)
        except OSError as error:
            return f"disappeared ({error.strerror})"
        if self._inode not in (0, there.st_ino):
            return "was replaced by another file"
        if there.st_size < self.size:
            return f"was cut to {there.st_size:,} of {self.size:,} bytes"
        return None

    def forget(self, at: int, size: int) -> None:
        found = self._map
        if found is not None and size > 0:
            start = at // _PAGE * _PAGE
            found.madvise(mmap.MADV_DONTNEED, start, min(at + size, self.size) - start)

    def sync(self) -> None:
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._to_sync()
        if descriptor is not None:
            with disk_errors("sync", self.path):
                sync_data(descriptor.number)

    def _to_sync(self) -> Descriptor | None:
        """Return a descriptor for one sync; None if the owner has closed the file, because it syncs before closing."""
        try:
            with disk_errors("open", self.path):
                return None if self._closed else self._new_descriptor()
        except FileNotFoundError:
            if self._closed:
                return None
            raise

    def close(self) -> None:
        self._closed = True
        self._files.remove(self)
        # Descriptor and map are closed with their last reference: a reader can finish reading.
        self._descriptor = self._view = self._array = self._map = None

    def __del__(self) -> None:
        if files := getattr(self, "_files", None):
            files.remove(self)
