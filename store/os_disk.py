"""The real disk: the machine's file system, and the lock of a store."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import stat
import sys
from typing import BinaryIO, cast

from ..proto.errors import StoreLocked
from .disk import Buffer, DiskUsage, Entry, Lock, Mapping, disk_errors
from .file_copies import has_other_names, make_own
from .open_files import OPEN_FILES, OpenFiles
from .os_mapping import OsMapping
from .system import CLOSE_ON_EXEC, FOLDER, is_locked_here, lock_first_byte, sync_file, unlocked


def _linux_version() -> tuple[int, ...]:
    """Return the first two numbers of the kernel's version; (0, 0) of another system's."""
    numbers = re.match(r"(\d+)\.(\d+)", platform.release() if sys.platform == "linux" else "")
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


#: syncfs(2), which Python lacks. It reports pages that could not be written from Linux 5.8 on.
_SYNCFS = getattr(ctypes.CDLL(None), "syncfs", None) if _linux_version() >= (5, 8) else None


class OsDisk:
    """The machine's file system. FILES are closed if descriptors run short."""

    def __init__(self, files: OpenFiles = OPEN_FILES) -> None:
        self._files = files
        #: Folders whose names this process has synced.
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
            # A process that was killed may have created it without syncing its name.
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
            os.chmod(draft, 0o600)  # The file may exist already.
        self.write_atomically(path, data)  # This writes into the same draft.

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
                return  # It was deleted meanwhile: nothing is left to sync.
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
    """Return the status of PATH; None if there is nothing. An error of the file system is raised as DiskFailure."""
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
    """Return ENTRY, or nothing if it was deleted after the listing."""
    try:
        folder = entry.is_dir()
        return [Entry(entry.name, 0 if folder else entry.stat().st_size, folder)]
    except FileNotFoundError:
        return []


def _locked(path: str) -> StoreLocked:
    return StoreLocked(
        f"{path} is locked by another broker: stop it, or use another store",
        path=path,
    )


class OsLock:
    """Byte 0 of the file `lock`, locked exclusively.

    It excludes both a Java broker's POSIX lock and a second opening in the same process (system.py).
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
