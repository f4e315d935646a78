"""The real disk: `OsDisk` and its mappings.

Files are read through a shared, read-only map and written with pwrite: the same page cache, so a map shows what was
written at once, but a full disk is an error of the call instead of a SIGBUS that ends the process. Holes are found by
lseek(SEEK_DATA / SEEK_HOLE), so that zeroing a sparse gigabyte touches only what holds data.

A file that has another name (a hard link: the closed files of a forked store) is never written to: the first write puts
a copy behind the name (copies.py), so that the other store stays as it is.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import shutil
import struct
import threading

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, StoreLocked
from .copies import has_other_names, make_own
from .disk import Buffer, DiskUsage, Entry, Lock, Mapping, disk_errors

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
_PAGE = mmap.PAGESIZE
#: Linux's struct flock: type, whence, start, length, process.
_FLOCK = "hhqqi4x"


def allow_many_files() -> int:
    """Raise this process's limit of open files as far as it may; return the limit. A mapped file takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class OsDisk:
    """The machine's file system."""

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, folder: str) -> list[Entry]:
        found = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    found += _entry(entry)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda entry: entry.name)

    def make_folders(self, path: str) -> None:
        with disk_errors("create the folder", path):
            os.makedirs(path, exist_ok=True)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def read_at(self, path: str, at: int, size: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read(size)

    def write_file(self, path: str, data: Buffer) -> None:
        with disk_errors("write", path):
            if has_other_names(path):
                os.unlink(path)
            with open(path, "wb") as file:
                file.write(data)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        draft = f"{path}.tmp"
        with disk_errors("write", draft), open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if backup is not None and os.path.exists(path):
            self.rename(path, backup)
        self.rename(draft, path)
        self.sync_folder(os.path.dirname(path))

    def write_private(self, path: str, data: Buffer) -> None:
        draft = f"{path}.tmp"
        with disk_errors("create", draft):
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600))
            os.chmod(draft, 0o600)  # It may be there already.
        self.write_atomically(path, data)  # Which writes into this draft.

    def delete(self, path: str) -> None:
        with disk_errors("delete", path):
            os.unlink(path)

    def delete_folder(self, path: str) -> None:
        with disk_errors("delete the folder", path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                return

    def rename(self, source: str, target: str) -> None:
        with disk_errors(f"rename to {os.path.basename(target)}", source):
            os.replace(source, target)

    def truncate(self, path: str, size: int) -> None:
        with disk_errors("set the length of", path):
            make_own(path)
            os.truncate(path, size)

    def sync_folder(self, path: str) -> None:
        with disk_errors("sync the folder", path):
            try:
                fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return  # Deleted meanwhile: nothing is left to sync.
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        return OsMapping(path, size, writable=writable, create=create)

    def lock(self, path: str) -> Lock:
        return OsLock(path)

    def usage(self, path: str) -> DiskUsage:
        room = os.statvfs(path)
        return DiskUsage(
            used_bytes=(room.f_blocks - room.f_bfree) * room.f_frsize,
            usable_bytes=room.f_bavail * room.f_frsize,
        )


def _entry(entry: os.DirEntry[str]) -> list[Entry]:
    """Return ENTRY, or nothing if it vanished between listing and looking."""
    try:
        folder = entry.is_dir()
        return [Entry(entry.name, 0 if folder else entry.stat().st_size, folder)]
    except FileNotFoundError:
        return []


class OsMapping:
    """One real file. The descriptor is opened at once if the file must be made or grown, else at the first use."""

    def __init__(self, path: str, size: int | None, *, writable: bool, create: bool) -> None:
        self.path = path
        self._writable = writable
        self._is_own = not writable
        self._guard = threading.RLock()  # Held over open, dup and close only, never over a sync.
        self._fd = -1
        self._closed = False
        self._view: memoryview | None = None
        self._array: NDArray[np.uint8] | None = None
        self._map: mmap.mmap | None = None
        length = self._length(create=create)
        self.size = length if size is None else size
        if self.size > length:
            self._make_own()
            with disk_errors("set the length of", path):
                os.ftruncate(self._descriptor(), self.size)

    def _length(self, *, create: bool) -> int:
        if not create:
            return os.stat(self.path).st_size
        with disk_errors("create", self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return os.fstat(self._fd).st_size

    def _descriptor(self) -> int:
        if self._fd < 0:
            self._open()
        return self._fd

    def _open(self) -> None:
        with self._guard, disk_errors("open", self.path):
            if self._closed:
                raise DiskFailure(f"{self.path} was closed", path=self.path, reason="closed")
            if self._fd < 0:
                flags = os.O_RDWR if self._writable else os.O_RDONLY
                self._fd = os.open(self.path, flags | os.O_CLOEXEC)

    def _make_own(self) -> None:
        """Before the first write: see that the file has no other name. Views that are held keep the old bytes."""
        with self._guard, disk_errors("copy", self.path):
            self._is_own = True
            if os.fstat(self._descriptor()).st_nlink > 1 and make_own(self.path):
                os.close(self._fd)
                self._fd = -1
                self._view = self._array = self._map = None

    def _mapped(self, *, writable: bool) -> mmap.mmap:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        with disk_errors("map", self.path):
            return mmap.mmap(self._descriptor(), self.size, flags=mmap.MAP_SHARED, prot=protection)

    @property
    def view(self) -> memoryview:
        if self._view is None:
            if self.size and self._map is None:
                self._map = self._mapped(writable=False)
            self._view = memoryview(self._map or b"").toreadonly()
        return self._view

    @property
    def array(self) -> NDArray[np.uint8]:
        if self._array is None:
            if not self._is_own:
                self._make_own()
            if self.size:
                self._map = self._mapped(writable=self._writable)
                self._view = None
            self._array = np.frombuffer(self._map or b"", np.uint8)
        return self._array

    def write(self, at: int, data: Buffer) -> None:
        if not self._is_own:
            self._make_own()
        fd = self._descriptor()
        with disk_errors("write to", self.path):
            written = os.pwrite(fd, data, at)
            if written == len(data):
                return
            rest = memoryview(data)
            while written < len(rest):
                step = os.pwrite(fd, rest[written:], at + written)
                if step == 0:
                    raise OSError(errno.EIO, "nothing was written")
                written += step

    def reserve(self, at: int, size: int) -> None:
        if size > 0:
            if not self._is_own:
                self._make_own()
            with disk_errors("allocate room in", self.path):
                os.posix_fallocate(self._descriptor(), at, size)

    def zero(self, at: int, size: int) -> None:
        for start, end in self._data(at, at + size):
            for position in range(start, end, _CHUNK):
                length = min(_CHUNK, end - position)
                zeros = _ZEROS[:length]
                if self.read(position, length) != zeros:
                    self.write(position, zeros)

    def _data(self, at: int, end: int) -> list[tuple[int, int]]:
        return data_extents(self._descriptor(), at, end)

    def data_end(self, at: int, end: int) -> int:
        extents = self._data(at, end)
        return extents[-1][1] if extents else at

    def read(self, at: int, size: int) -> bytes:
        with self._guard:
            fd = os.dup(self._descriptor())
        try:
            return os.pread(fd, size, at)
        finally:
            os.close(fd)

    def check(self) -> None:
        with self._guard:
            fault = None if self._closed else self._fault()
        if fault is not None:
            raise DiskFailure(
                f"{self.path} {fault} while it was in use: stop the broker, put back what was there, and start again",
                path=self.path,
                reason=fault,
            )

    def _fault(self) -> str | None:
        try:
            there = os.stat(self.path)
        except OSError as error:
            return f"cannot be found any more ({error.strerror})"
        if self._fd >= 0:
            own = os.fstat(self._fd)
            if (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino):
                return "is another file now"
        if there.st_size < self.size:
            return f"was cut to {there.st_size:,} bytes of {self.size:,}"
        return None

    def forget(self, at: int, size: int) -> None:
        if self._map is not None and size > 0:
            start = at // _PAGE * _PAGE
            self._map.madvise(mmap.MADV_DONTNEED, start, min(at + size, self.size) - start)

    def sync(self) -> None:
        with self._guard:
            if self._fd < 0:
                return  # Never opened, or closed after the owner synced it: nothing of ours is unwritten.
            fd = os.dup(self._fd)
        try:
            with disk_errors("sync", self.path):
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        # The map itself goes when the last view of it does: closing it here would pull it from under a reader.
        self._view = None
        self._array = None
        self._map = None

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # An opening that was given up half-way.
            os.close(self._fd)


def data_extents(fd: int, at: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [AT, END) of the file FD that may hold something other than zeros, in order."""
    extents = []
    while at < end:
        start, stop = _next_data(fd, at, end)
        if start < stop:
            extents.append((start, stop))
        at = stop
    return extents


def _next_data(fd: int, at: int, end: int) -> tuple[int, int]:
    """Return the first data extent in [AT, END); an empty one at END if all the rest is a hole."""
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end, end
        return at, end  # A file system that knows no holes: everything may be data.
    if start >= end:
        return end, end
    return start, min(os.lseek(fd, start, os.SEEK_HOLE), end)


class OsLock:
    """Byte 0 of the file `lock`, locked exclusively.

    An open-file-description lock where the system has it: it excludes a Java broker's POSIX lock and a second
    opening in this very process alike, and does not fall when somebody else here closes the same file.
    """

    def __init__(self, path: str) -> None:
        with disk_errors("open", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock_first_byte(self._fd)
        except (BlockingIOError, PermissionError) as error:
            os.close(self._fd)
            raise StoreLocked(
                f"{path} is locked by another broker: stop it, or give this one a store of its own",
                path=path,
            ) from error
        with disk_errors("write", path):
            os.pwrite(self._fd, b"lock", 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_is_held(path: str) -> bool:
    """Does somebody hold the store lock at PATH? Asked without taking it, and without writing.

    False for a file that is not there or may not be read, and where the system cannot tell.
    """
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(fd)


def _lock_first_byte(fd: int) -> None:
    if hasattr(fcntl, "F_OFD_SETLK"):
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
            return
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
