"""The real disk: `OsDisk`; its mapped files are in os_mapping.py.

Files are written with pwrite, and read with pread or through a shared read-only map. Both are the same page cache, so a
map shows what was written at once; but a full disk is an error of the call instead of a SIGBUS that ends the process.
Holes are found by lseek(SEEK_DATA / SEEK_HOLE), so that zeroing a sparse gigabyte touches only what holds data.

A file that has another name (a hard link: the closed files of a forked store) is never written to: the first write puts
a copy behind the name (copies.py), so that the other store stays as it is.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import re
import shutil
import stat
import struct
import sys
from typing import BinaryIO, cast

from ..proto.errors import StoreLocked
from .copies import has_other_names, make_own
from .disk import Buffer, DiskUsage, Entry, Lock, Mapping, disk_errors
from .open_files import OPEN_FILES, OpenFiles
from .os_mapping import OsMapping


def _linux_version() -> tuple[int, ...]:
    """Return the first two numbers of the kernel's version; (0, 0) of another system's."""
    numbers = re.match(r"(\d+)\.(\d+)", platform.release() if sys.platform == "linux" else "")
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


#: syncfs(2), which Python does not know, where it tells of pages that could not be written: from Linux 5.8 on.
_SYNCFS = getattr(ctypes.CDLL(None), "syncfs", None) if _linux_version() >= (5, 8) else None
#: Linux's struct flock: type, whence, start, length, process.
_FLOCK = "hhqqi4x"


class OsDisk:
    """The machine's file system; FILES are closed where descriptors run short."""

    def __init__(self, files: OpenFiles = OPEN_FILES) -> None:
        self._files = files

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

    def make_folders(self, path: str) -> None:
        with disk_errors("create the folder", path):
            os.makedirs(path, exist_ok=True)

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
            os.fsync(file.fileno())
        if backup is not None and self.exists(path):
            self.rename(path, backup)
        self.rename(draft, path)
        self.sync_folder(os.path.dirname(path))

    def write_private(self, path: str, data: Buffer) -> None:
        draft = f"{path}.tmp"
        with disk_errors("create", draft):
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
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
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                fd = self._files.attempt(lambda: os.open(path or ".", flags))
            except FileNotFoundError:
                return  # Deleted meanwhile: nothing is left to sync.
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def sync_everything(self, path: str) -> bool:
        if _SYNCFS is None:
            return False
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            fd = self._files.attempt(lambda: os.open(path, flags))
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


def _entry(entry: os.DirEntry[str]) -> list[Entry]:
    """Return ENTRY, or nothing if it vanished between listing and looking."""
    try:
        folder = entry.is_dir()
        return [Entry(entry.name, 0 if folder else entry.stat().st_size, folder)]
    except FileNotFoundError:
        return []


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
