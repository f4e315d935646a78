"""The files that this process holds open and mapped: a limit, and which of them close when there are more.

Every queue has files of its own, and a broker may have more queues than the machine lets a process open files. So a
file is open only while it is used. Above the limit, those close that were not used for longest (CLOCK, second chance),
and a closed file opens again at its next use. Where the machine reports a shortage of descriptors or maps below the
limit (EMFILE, ENFILE, ENOMEM), files close until there is room, and the failed call is repeated.

Closing loses nothing: what was written is in the page cache. A file that is written to, closed and synced later is
opened for that; Linux reports a failed write-back to the first sync after it, also through a new descriptor (4.16).

Any thread may call.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from ..proto.rpc.listening import raise_descriptor_limit
from .disk import write_error
from .system import descriptors_max

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
        self.files_max = files_max
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
        self.files_max = files_max

    def add(self, file: OpenFile) -> None:
        """Count FILE, which was opened, and close others beyond the bound."""
        with self._lock:
            self._ring[id(file)] = weakref.ref(file)
            if self._spare is None:
                self._spare = _spare_descriptor()
            if len(self._ring) > self.files_max:
                self._close(len(self._ring) - self.files_max)

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
