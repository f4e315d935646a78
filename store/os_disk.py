"""The real disk: `OsDisk`, and `OsMapping`, a file of it.

Files are written with pwrite, and read with pread or through a shared read-only map. Both are the same page cache, so a
map shows what was written at once; but a full disk is an error of the call instead of a SIGBUS that ends the process.
Holes are found by lseek(SEEK_DATA / SEEK_HOLE), so that zeroing a sparse gigabyte touches only what holds data.

A hard link is another name of the same bytes. A file with several names (the closed files of a forked store) is never
written to: the first write puts a copy behind the name (`make_own`), so that the other store stays as it is.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import shutil
import stat
import sys
from contextlib import suppress
from typing import BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, StoreLocked
from .disk import Buffer, DiskUsage, Entry, Lock, Mapping, write_error
from .system import (
    CLOSE_ON_EXEC,
    FOLDER,
    OPEN_FILES,
    Descriptor,
    OpenFiles,
    allocate,
    copy_range,
    data_extents,
    is_locked_here,
    lock_first_byte,
    sync_data,
    sync_file,
    unlocked,
)


def _linux_version() -> tuple[int, ...]:
    """Return the first two numbers of the kernel's version; (0, 0) of another system's."""
    numbers = re.match(r"(\d+)\.(\d+)", platform.release() if sys.platform == "linux" else "")
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


#: syncfs(2), which Python does not know, where it tells of pages that could not be written: from Linux 5.8 on.
_SYNCFS = getattr(ctypes.CDLL(None), "syncfs", None) if _linux_version() >= (5, 8) else None
_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)
_PAGE: Final = mmap.PAGESIZE
#: More files are brought to the device by one call for the whole machine.
_SYNCED_ONE_BY_ONE_MAX: Final = 500
#: A link that cannot be: another file system, one that knows none, too many names, not allowed.
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)


class disk_errors:  # A generator would cost each write 2 µs more.
    """Turn an OSError of a write into `StoreFull` or `DiskFailure` that say what was tried and on which file."""

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: str) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise write_error(error, self._action, self._path) from error


class OsDisk:
    """The machine's file system; FILES are closed where descriptors run short."""

    def __init__(self, files: OpenFiles = OPEN_FILES) -> None:
        self._files = files
        #: Folders whose names this process has brought to the device.
        self._durable: set[str] = set()

    def exists(self, path: str) -> bool:
        return _found(path, follow_links=False) is not None

    def is_folder(self, path: str) -> bool:
        found = _found(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, folder: str) -> list[Entry]:
        found = []
        try:
            with self._files.attempt(lambda: os.scandir(folder)) as entries:
                for entry in entries:
                    found += _entry(entry)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda entry: entry.name)

    def make_folders(self, path: str, *, durable: bool = True) -> None:
        changed = _folders_above_missing(path)
        with disk_errors("create the folder", path):
            os.makedirs(path, exist_ok=True)
        if not durable:
            return
        if not changed and path not in self._durable:
            # A process that was killed may have made it, and not synced its name.
            changed = [parent for parent in (os.path.dirname(path),) if os.access(parent, os.R_OK)]
        for folder in reversed(changed):
            self.sync_folder(folder)
        self._durable.add(path)

    def read(self, path: str) -> bytes:
        with self._opened(path, "rb") as file:
            return file.read()

    def read_at(self, path: str, at: int, size: int) -> bytes:
        with self._opened(path, "rb") as file:
            file.seek(at)
            return file.read(size)

    def _opened(self, path: str, mode: str) -> BinaryIO:
        return cast(BinaryIO, self._files.attempt(lambda: open(path, mode)))

    def write_file(self, path: str, data: Buffer) -> None:
        with disk_errors("write", path):
            if has_other_names(path):
                os.unlink(path)
            with self._opened(path, "wb") as file:
                file.write(data)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        draft = f"{path}.tmp"
        with disk_errors("write", draft), self._opened(draft, "wb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        if backup is not None and self.exists(path):
            self.rename(path, backup)
        self.rename(draft, path)
        self.sync_folder(os.path.dirname(path))

    def write_private(self, path: str, data: Buffer) -> None:
        draft = f"{path}.tmp"
        with disk_errors("create", draft):
            flags = os.O_WRONLY | os.O_CREAT | CLOSE_ON_EXEC
            os.close(self._files.attempt(lambda: os.open(draft, flags, 0o600)))
            os.chmod(draft, 0o600)  # It may be there already.
        self.write_atomically(path, data)  # Which writes into this draft.

    def delete(self, path: str) -> None:
        with disk_errors("delete", path):
            os.unlink(path)

    def delete_folder(self, path: str) -> None:
        with disk_errors("delete the folder", path):
            try:
                self._files.attempt(lambda: shutil.rmtree(path))
            except FileNotFoundError:
                return

    def rename(self, source: str, target: str) -> None:
        with disk_errors(f"rename to {os.path.basename(target)}", source):
            os.replace(source, target)

    def truncate(self, path: str, size: int) -> None:
        with disk_errors("set the length of", path):
            self._files.attempt(lambda: make_own(path))
            os.truncate(path, size)

    def sync_folder(self, path: str) -> None:
        with disk_errors("sync the folder", path):
            try:
                fd = self._files.attempt(lambda: os.open(path or ".", FOLDER))
            except FileNotFoundError:
                return  # Deleted meanwhile: nothing is left to sync.
            try:
                sync_file(fd)
            finally:
                os.close(fd)

    def sync_everything(self, path: str) -> bool:
        if _SYNCFS is None:
            return False
        try:
            fd = self._files.attempt(lambda: os.open(path, FOLDER))
        except OSError:
            return False
        try:
            return bool(_SYNCFS(fd) == 0)
        finally:
            os.close(fd)

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        return OsMapping(path, size, writable=writable, create=create, files=self._files)

    def lock(self, path: str) -> Lock:
        return OsLock(path)

    def usage(self, path: str) -> DiskUsage:
        room = os.statvfs(path)
        return DiskUsage(
            used_bytes=(room.f_blocks - room.f_bfree) * room.f_frsize,
            usable_bytes=room.f_bavail * room.f_frsize,
        )


def _found(path: str, *, follow_links: bool = True) -> os.stat_result | None:
    """Return what PATH is; None if there is nothing. A device that cannot say is not one without the file."""
    with disk_errors("look for", path):
        try:
            return os.stat(path, follow_symlinks=follow_links)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _folders_above_missing(path: str) -> list[str]:
    """Return the folder above each folder of PATH that is missing, from the end of PATH on."""
    found = []
    while path and _found(path) is None:
        path = os.path.dirname(path)
        found.append(path)
    return found


def _entry(entry: os.DirEntry[str]) -> list[Entry]:
    """Return ENTRY, or nothing if it vanished between listing and looking."""
    try:
        folder = entry.is_dir()
        return [Entry(entry.name, 0 if folder else entry.stat().st_size, folder)]
    except FileNotFoundError:
        return []


def _locked(path: str) -> StoreLocked:
    return StoreLocked(
        f"{path} is locked by another broker: stop it, or give this one a store of its own",
        path=path,
    )


class OsLock:
    """Byte 0 of the file `lock`, locked exclusively.

    It excludes a Java broker's POSIX lock and a second opening in this very process alike (system.py).
    """

    def __init__(self, path: str) -> None:
        if is_locked_here(path):
            raise _locked(path)
        with disk_errors("open", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC, 0o644)
        try:
            self._is_noted = lock_first_byte(self._fd)
        except (BlockingIOError, PermissionError) as error:
            os.close(self._fd)
            raise _locked(path) from error
        try:
            with disk_errors("write", path):
                os.pwrite(self._fd, b"lock", 0)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._fd >= 0:
            if self._is_noted:
                unlocked(self._fd)
            os.close(self._fd)
            self._fd = -1


# ---------------------------------------------------------------- a file


class OsMapping:
    """One real file. The descriptor is opened at once if the file must be made or grown, else at the first use.

    It closes when other files need the room, unless its `array` was asked for, and opens again at its next use.
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
        #: Which file was opened first (0: none yet): opened again it must be the same.
        self._inode = 0
        # Another thread may give these up at any time: each is read once, and what was read stays good.
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
        """Before the first write: see that the file has no other name. Views that are held keep the old bytes."""
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
        except ValueError:  # The file is shorter than that.
            self.check()
            raise
        if self._descriptor is not descriptor:  # It was given up for the map's sake.
            self._files.add(self)
        return found

    def let_go(self) -> bool:
        """Close the descriptor and drop the map; what others hold of them stays. Not where the array was handed out."""
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
                    raise OSError(errno.EIO, "nothing was written")
                written += step

    def reserve(self, at: int, size: int) -> None:
        if size > 0:
            if not self._is_own:
                self._make_own()
            descriptor = self._opened()
            with disk_errors("allocate room in", self.path):
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
                f"{self.path} {fault} while it was in use: stop the broker, put back what was there, and start again",
                path=self.path,
                reason=fault,
            )

    def is_cut(self) -> bool:
        descriptor = self._descriptor
        try:
            found = os.stat(self.path) if descriptor is None else os.fstat(descriptor.number)
        except OSError:
            return False  # What has no name any more keeps its bytes as long as it is mapped.
        return found.st_size < self.size

    def _fault(self) -> str | None:
        try:
            there = os.stat(self.path)
        except OSError as error:
            return f"cannot be found any more ({error.strerror})"
        if self._inode not in (0, there.st_ino):
            return "is another file now"
        if there.st_size < self.size:
            return f"was cut to {there.st_size:,} bytes of {self.size:,}"
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
        """Return a descriptor for this once; None if the owner closed the file, for he syncs before."""
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
        # Descriptor and map go when the last one who uses them lets go: a reader keeps what it reads.
        self._descriptor = self._view = self._array = self._map = None

    def __del__(self) -> None:
        if files := getattr(self, "_files", None):
            files.remove(self)


# ---------------------------------------------------------------- copies of files


def link_or_copy(source: str, target: str) -> bool:
    """Make TARGET another name of the file SOURCE, or a copy where that cannot be; return whether it is linked."""
    try:
        os.link(source, target, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        copy_file(source, target)
        return False
    return True


def copy_file(source: str, target: str, size: int | None = None, *, sync: bool = True) -> None:
    """Copy the file SOURCE, or its first SIZE bytes, to the new file TARGET, at the whole length; holes stay holes.

    Waits for the device, unless SYNC is false. What is behind SIZE reads as zeros in the copy.
    """
    reader = os.open(source, os.O_RDONLY | CLOSE_ON_EXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o644)
        try:
            length = os.fstat(reader).st_size
            os.ftruncate(writer, length)
            _copy_data(reader, writer, length if size is None else min(size, length))
            if sync:
                sync_file(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_data(reader: int, writer: int, end: int) -> None:
    for start, stop in data_extents(reader, 0, end):
        _copy_range(reader, writer, start, stop)


def _copy_range(reader: int, writer: int, at: int, end: int) -> None:
    while at < end:
        count = copy_range(reader, writer, end - at, at)
        if not count:
            data = os.pread(reader, min(_CHUNK, end - at), at)
            if not data:
                return  # The file was cut meanwhile.
            count = os.pwrite(writer, data, at)
        at += count


def has_other_names(path: str) -> bool:
    """Is the file PATH known under another name, too?"""
    try:
        return os.stat(path).st_nlink > 1
    except FileNotFoundError:
        return False


def make_own(path: str) -> bool:
    """Put a copy of the file PATH behind that name if it has other names; return whether that was so.

    On the device when this returns; a crash leaves the old file or the copy.
    """
    if not has_other_names(path):
        return False
    draft = f"{path}.own"
    with suppress(FileNotFoundError):  # An interrupted call left it.
        os.unlink(draft)
    times = os.stat(path)
    copy_file(path, draft)
    os.utime(draft, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(draft, path)
    sync_folder(os.path.dirname(path))
    return True


def sync_tree(root: str) -> None:
    """Wait until everything under the folder ROOT is on the device, as is its own name."""
    folders = list(os.walk(root))
    if sum(len(names) for _, _, names in folders) > _SYNCED_ONE_BY_ONE_MAX:
        os.sync()
        return
    for folder, _, names in folders:
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY | CLOSE_ON_EXEC)
            try:
                sync_file(fd)
            finally:
                os.close(fd)
        sync_folder(folder)
    sync_folder(os.path.dirname(os.path.abspath(root)))


def sync_folder(path: str) -> None:
    """Wait until the names in the folder PATH are on the device."""
    fd = os.open(path or ".", FOLDER)
    try:
        sync_file(fd)
    finally:
        os.close(fd)
