"""What operating systems do differently: Linux, macOS, and where tools only have to be imported, Windows.

                      Linux                      macOS                               neither
    on the device     fsync, fdatasync           F_FULLFSYNC; fsync, where a file    fsync
                                                 system does not know it
    room for bytes    posix_fallocate            zeros in the holes                  likewise
    copies            copy_file_range            read and written                    likewise
    the store's lock  of the open file (OFD)     of the process, and a note in it    a note in the process
    who holds it      F_OFD_GETLK                F_GETLK, and that note              that note
    peak memory       ru_maxrss in KiB           ru_maxrss in bytes                  not told

macOS' fsync does not wait for the device: a power cut may undo what it returned for. Its F_PREALLOCATE takes room
behind the end of what a file occupies, and our files have holes before it: zeros take it where it is needed. A lock of
the process falls when any descriptor of the file is closed, so nobody here opens a lock file that this process holds.
Which of these there are is looked for, not concluded from the system's name, which says how structures are laid out.

The files that this process holds open and mapped: a bound, and which of them close when there are more.

Every queue has files of its own, and a broker may have more queues than the machine lets a process open files. So a
file is open only while it is used: beyond the bound those close that were not used for longest (CLOCK, second chance),
and a closed file opens again at its next use. Where the machine says that there is no descriptor or no room for a map
before the bound is reached (EMFILE, ENFILE, ENOMEM), files close until there is, and what failed is done again.

An open file counts as two descriptors and one map: Python's `mmap` keeps a descriptor of its own.

Closing loses nothing: what was written is in the page cache. A file that is written to, closed and synced later is
opened for that; Linux tells a failed write-back to the first who syncs after it, also through a new descriptor (4.16).

Any thread may call; a descriptor that one of them uses stays open until it has done (`Descriptor`).
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from ..proto.rpc.listening import raise_descriptor_limit
from .disk import write_error

#: Not there on Windows.
try:
    import fcntl
    import resource
except (
    ImportError
):  # pragma: no cover (what a test takes away it takes away in a process of its own)
    fcntl = None  # type: ignore[assignment]
    resource = None  # type: ignore[assignment]

#: struct flock, and where its type stands: type, whence, start, length, process; start, length, process, type, whence.
_FLOCK, _TYPE_AT = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi4x", 0)
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_OFD_SET: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
_OFD_GET: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", None)
#: What `copy_file_range` fails with where the file system does not do it.
_NO_RANGE: Final = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
#: What F_FULLFSYNC fails with where the file system does not do it.
_NO_FULL_SYNC: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
#: Flags of `os.open` that a system may lack.
CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0)
FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | CLOSE_ON_EXEC
#: Files that this process holds locked by a lock of its own, by device and number.
_held: Final[set[tuple[int, int]]] = set()
_ZEROS: Final = bytes(1 << 20)


# --- on the device


def sync_file(fd: int) -> None:
    """Return when all of the file FD, or the names in the folder FD, are on the device."""
    if not _synced_fully(fd):
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """Return when the bytes of the file FD are on the device; its times may not be."""
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


# --- room, holes and copies


def allocate(fd: int, at: int, size: int) -> None:
    """Have room on the device for SIZE bytes at AT of the file FD, which is at least as long; what is there stays."""
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
    if not hasattr(os, "SEEK_DATA"):
        return at, end
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end, end
        return at, end  # A file system that knows no holes: everything may be data.
    if start >= end:
        return end, end
    return start, min(os.lseek(fd, start, os.SEEK_HOLE), end)


def copy_range(reader: int, writer: int, size: int, at: int) -> int:
    """Copy up to SIZE bytes at AT without reading them; return how many, 0: they have to be read and written."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(reader, writer, size, at, at)
    except OSError as error:
        if error.errno not in _NO_RANGE:
            raise
        return 0


# --- the lock


def is_locked_here(path: str) -> bool:
    """Does this process hold the file PATH by a lock of its own? Whoever opens and closes it lets that go."""
    if not _held:
        return False
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in _held


def lock_first_byte(fd: int) -> bool:
    """Lock byte 0 of the file FD, which is not locked here; raise BlockingIOError or PermissionError if that cannot be.

    Return whether `unlocked` is to be told when FD is closed.
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
    """Does somebody hold the store lock at PATH? Asked without taking it, and without writing.

    False for a file that is not there or may not be read, and where the system cannot tell.
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
    """Return a struct flock that asks to write byte 0."""
    assert fcntl is not None, "asked where there are such locks"
    if sys.platform == "darwin":
        return struct.pack(_FLOCK, 0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)


def _known_as(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


# --- the process


def cpu_seconds() -> float:
    """Return the processor time that this process has taken."""
    times = os.times()
    return times.user + times.system


def peak_memory_bytes() -> int:
    """Return the most memory that this process has had; 0 where the system does not tell."""
    if resource is None:
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def descriptors_max() -> int:
    """Return how many files this process may have open."""
    if resource is None:
        return 512  # What the C library of Windows allows.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


# ---------------------------------------------------------------- the files that this process holds open and mapped


T = TypeVar("T")

#: What a call says for want of a descriptor or of room for a map.
SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: What a map costs besides the file's own descriptor: `mmap` has one, too.
_DESCRIPTORS_A_FILE: Final = 2
#: Maps of libraries, threads and memory.
_MAPS_KEPT: Final = 4_096
_FILES_LEAST: Final = 16
_MAP_COUNT: Final = "/proc/sys/vm/max_map_count"
#: Linux's default, also where it does not say.
_MAP_COUNT_DEFAULT: Final = 65_530
#: What a shortage closes at once, as a share of the open files.
_SHORTAGE_SHARE: Final = 8


@dataclass(frozen=True, slots=True)
class FileLimits:
    """What a process may have: descriptors (RLIMIT_NOFILE) and maps (vm.max_map_count).

    files: how many files of stores are open at once, with half of the descriptors; the others are for connections.
    """

    descriptors: int
    maps: int

    @property
    def files(self) -> int:
        by_descriptors = self.descriptors // 2 // _DESCRIPTORS_A_FILE
        by_maps = (self.maps - _MAPS_KEPT) // 4 * 3
        return max(_FILES_LEAST, min(by_descriptors, by_maps))

    @classmethod
    def of_process(cls) -> FileLimits:
        """Return this process's limits as they are now."""
        return cls(descriptors=descriptors_max(), maps=_map_count())


def allow_many_files() -> FileLimits:
    """Raise this process's limit of open files as far as it may, and the bound of open files with it."""
    raise_descriptor_limit()
    limits = FileLimits.of_process()
    OPEN_FILES.allow(limits.files)
    return limits


def _map_count() -> int:
    try:
        with open(_MAP_COUNT, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _MAP_COUNT_DEFAULT


class Descriptor:
    """An open descriptor; it closes when the last one who holds this object lets it go.

    So hold the object, in a name of your own, for as long as its number is used.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class OpenFile(Protocol):
    """A file that can be closed and opened again. USED: it was, since it was looked at last."""

    used: bool

    def let_go(self) -> bool:
        """Give up descriptor and map, if that can be; return whether it could."""
        ...


class OpenFiles:
    """The open files, at most FILES_MAX; see the module."""

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        #: How many were closed to make room.
        self.closed = 0
        # Closing a descriptor may end another file's life in this thread.
        self._lock = threading.RLock()
        self._ring: OrderedDict[int, weakref.ref[OpenFile]] = OrderedDict()
        #: Held for the moment when nothing is left to close.
        self._spare: Descriptor | None = None

    def __len__(self) -> int:
        return len(self._ring)

    def allow(self, files_max: int) -> None:
        """Let FILES_MAX be open from now on."""
        self._files_max = files_max

    def add(self, file: OpenFile) -> None:
        """Count FILE, which was opened, and close others beyond the bound."""
        with self._lock:
            self._ring[id(file)] = weakref.ref(file)
            if self._spare is None:
                self._spare = _spare_descriptor()
            if len(self._ring) > self._files_max:
                self._close(len(self._ring) - self._files_max)

    def remove(self, file: OpenFile) -> None:
        """Count FILE no more: it was closed, or may not be."""
        with self._lock:
            self._ring.pop(id(file), None)

    def attempt(self, action: Callable[[], T]) -> T:
        """Return what ACTION, a call that takes a descriptor or a map, returns; close files while there is none.

        Raises TooManyOpenFiles where none is left to close, and everything else that ACTION does.
        """
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise
                if not self.make_room():
                    if error.filename is None:
                        raise
                    raise write_error(error, "open", str(error.filename)) from error

    def make_room(self) -> bool:
        """Close some of the files that were not used for longest; return whether there was one."""
        with self._lock:
            if self._close(1 + len(self._ring) // _SHORTAGE_SHARE):
                return True
            spare, self._spare = self._spare, None
            return spare is not None

    def _close(self, count: int) -> int:
        ring = self._ring
        closed = 0
        for _ in range(2 * len(ring)):
            if closed == count or not ring:
                break
            key, reference = ring.popitem(last=False)
            file = reference()
            if file is None:
                continue
            if file.used:
                file.used = False
                ring[key] = reference
            elif file.let_go():
                closed += 1
            else:
                ring[key] = reference
        self.closed += closed
        return closed


def _spare_descriptor() -> Descriptor | None:
    try:
        return Descriptor(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return None


#: Those of this process: its limits are the process's.
OPEN_FILES: Final = OpenFiles(FileLimits.of_process().files)
