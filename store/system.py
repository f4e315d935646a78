"""Differences between operating systems: Linux, macOS, and Windows, where tools are only imported.

                      Linux                      macOS                               neither
    sync to disk      fsync, fdatasync           F_FULLFSYNC; fsync, where a file    fsync
                                                 system does not know it
    allocation        posix_fallocate            zeros in the holes                  likewise
    copies            copy_file_range            read and written                    likewise
    the store's lock  of the open file (OFD)     of the process, and a note in it    a note in the process
    holder of it      F_OFD_GETLK                F_GETLK, and that note              that note
    peak memory       ru_maxrss in KiB           ru_maxrss in bytes                  not available

macOS' fsync does not wait for the disk: a power cut may undo what it returned for. Its F_PREALLOCATE allocates after
the end of a file, and the store's files have holes before it, so zeros fill them where needed. A lock of the process
is released when any descriptor of the file is closed, so this module opens no lock file that this process holds.
Features are tested for, not derived from the system's name, which only determines the layout of structures.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import Final

#: Not available on Windows.
try:
    import fcntl
    import resource
except (
    ImportError
):  # pragma: no cover (what a test takes away it takes away in a process of its own)
    fcntl = None  # type: ignore[assignment]
    resource = None  # type: ignore[assignment]

#: struct flock, and its type's position: type, whence, start, length, process; start, length, process, type, whence.
_FLOCK, _TYPE_AT = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi4x", 0)
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_OFD_SET: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
_OFD_GET: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", None)
#: Errors of `copy_file_range` if the file system does not support it.
_NO_RANGE: Final = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
#: Errors of F_FULLFSYNC if the file system does not support it.
_NO_FULL_SYNC: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
#: Flags of `os.open` that a system may lack.
CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0)
FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | CLOSE_ON_EXEC
#: Files that this process has locked with a lock of the process, by device and inode.
_held: Final[set[tuple[int, int]]] = set()
_ZEROS: Final = bytes(1 << 20)


def sync_file(fd: int) -> None:
    """Return when all of the file FD, or the names in the folder FD, are on disk."""
    if not _synced_fully(fd):
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """Return when the bytes of the file FD are on disk; its times may not be."""
    if not _synced_fully(fd):
        getattr(os, "fdatasync", os.fsync)(fd)


def _synced_fully(fd: int) -> bool:
    if fcntl is None or _FULL_SYNC is None:
        return False
    try:
        fcntl.fcntl(fd, _FULL_SYNC)
    except OSError as error:
        if error.errno not in _NO_FULL_SYNC:
            raise
        return False
    return True


def allocate(fd: int, at: int, size: int) -> None:
    """Allocate space for SIZE bytes at AT of the file FD, which is at least as long; its content is not changed."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, at, size)
        return
    end = at + size
    os.ftruncate(fd, max(end, os.fstat(fd).st_size))
    for start, stop in data_extents(fd, at, end):
        _write_zeros(fd, at, start)
        at = stop
    _write_zeros(fd, at, end)


def _write_zeros(fd: int, at: int, end: int) -> None:
    while at < end:
        at += os.pwrite(fd, _ZEROS[: end - at], at)


def data_extents(fd: int, at: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [AT, END) of the file FD that may have other bytes than zeros, in order."""
    extents = []
    while at < end:
        start, stop = _next_data(fd, at, end)
        if start < stop:
            extents.append((start, stop))
        at = stop
    return extents


def _next_data(fd: int, at: int, end: int) -> tuple[int, int]:
    """Return the first data extent in [AT, END); an empty one at END if all the rest is a hole."""
    if not hasattr(os, "SEEK_DATA"):
        return at, end
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end, end
        return at, end  # The file system does not report holes: everything may be data.
    if start >= end:
        return end, end
    return start, min(os.lseek(fd, start, os.SEEK_HOLE), end)


def copy_range(reader: int, writer: int, size: int, at: int) -> int:
    """Copy up to SIZE bytes at AT without reading them; return how many, 0: read and write them instead."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(reader, writer, size, at, at)
    except OSError as error:
        if error.errno not in _NO_RANGE:
            raise
        return 0


def is_locked_here(path: str) -> bool:
    """Does this process hold the file PATH with a lock of the process? Opening and closing it would release that."""
    if not _held:
        return False
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in _held


def lock_first_byte(fd: int) -> bool:
    """Lock byte 0 of the file FD, which is not locked here; raise BlockingIOError or PermissionError if that fails.

    Return whether to call `unlocked` when FD is closed.
    """
    if fcntl is not None and _OFD_SET is not None:
        try:
            fcntl.fcntl(fd, _OFD_SET, _request())
            return False
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    if fcntl is not None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
    _held.add(_known_as(fd))
    return True


def unlocked(fd: int) -> None:
    """Note that FD, which `lock_first_byte` noted, is about to be closed."""
    _held.discard(_known_as(fd))


def lock_is_held(path: str) -> bool:
    """Does a process hold the store lock at PATH? The check neither takes the lock nor writes.

    False for a missing or unreadable file, and if the system does not report it.
    """
    if is_locked_here(path):
        return True
    if fcntl is None:
        return False
    try:
        fd = os.open(path, os.O_RDONLY | CLOSE_ON_EXEC)
    except OSError:
        return False
    try:
        ask = fcntl.F_GETLK if _OFD_GET is None else _OFD_GET
        answer: bytes = fcntl.fcntl(fd, ask, _request())
        return bool(struct.unpack(_FLOCK, answer)[_TYPE_AT] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(fd)


def _request() -> bytes:
    """Return a struct flock that requests a write lock of byte 0."""
    assert fcntl is not None, "called only on systems with such locks"
    if sys.platform == "darwin":
        return struct.pack(_FLOCK, 0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)


def _known_as(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def cpu_seconds() -> float:
    """Return the processor time of this process so far."""
    times = os.times()
    return times.user + times.system


def peak_memory_bytes() -> int:
    """Return the peak memory of this process; 0 if the system does not report it."""
    if resource is None:
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def descriptors_max() -> int:
    """Return the maximum number of open files of this process."""
    if resource is None:
        return 512  # The limit of the C library of Windows.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft
