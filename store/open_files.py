"""The files that this process has open and mapped: a limit, and which of them are closed above it.

Each queue has its own files, and a broker may have more queues than a process may open files. So a file is open only
while it is used. Above the limit, the files that were not used for longest are closed (CLOCK, second chance), and a
closed file opens again at its next use. If the system reports a shortage of descriptors or maps below the limit
(EMFILE, ENFILE, ENOMEM), files are closed until the failed call, which is repeated, succeeds.

Closing loses nothing: written data is in the page cache. To sync a file that was closed since it was written, it is
opened again. Linux reports a failed write-back to the first sync after it, also through a new descriptor (4.16).

Thread-safe.
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

#: Errors of a call that needs a descriptor or space for a map.
SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: `mmap` duplicates the file's descriptor.
_DESCRIPTORS_A_FILE: Final = 2
#: Reserved maps, for libraries, threads and memory.
_MAPS_KEPT: Final = 4_096
_FILES_LEAST: Final = 16
_MAP_COUNT: Final = "/proc/sys/vm/max_map_count"
#: Linux's default, used if the value cannot be read.
_MAP_COUNT_DEFAULT: Final = 65_530
#: The share of the open files (1/8) that a shortage closes at once.
_SHORTAGE_SHARE: Final = 8


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The limits of a process: descriptors (RLIMIT_NOFILE) and maps (vm.max_map_count).

    files: the limit of open files of stores, with half of the descriptors; the others are for connections.
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
        """Return this process's present limits."""
        return cls(descriptors=descriptors_max(), maps=_map_count())


def allow_many_files() -> FileLimits:
    """Raise this process's limit of descriptors as far as possible, and the limit of open files with it."""
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
    """An open descriptor. It closes when the last reference to this object is dropped.

    So keep a reference, in a variable of your own, for as long as you use its number.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class OpenFile(Protocol):
    """A file that can be closed and opened again. USED: was it used since the last check?"""

    used: bool

    def let_go(self) -> bool:
        """Close descriptor and map, if possible; return whether they were closed."""
        ...


class OpenFiles:
    """The open files, up to FILES_MAX; see the module."""

    def __init__(self, files_max: int) -> None:
        self.files_max = files_max
        #: How many were closed to make space.
        self.closed = 0
        # Closing a descriptor may drop the last reference to another file in this thread.
        self._lock = threading.RLock()
        self._ring: OrderedDict[int, weakref.ref[OpenFile]] = OrderedDict()
        #: A descriptor to release when no file is left to close.
        self._spare: Descriptor | None = None

    def __len__(self) -> int:
        return len(self._ring)

    def allow(self, files_max: int) -> None:
        """Set the limit of open files to FILES_MAX."""
        self.files_max = files_max

    def add(self, file: OpenFile) -> None:
        """Count FILE, which was opened, and close others above the limit."""
        with self._lock:
            self._ring[id(file)] = weakref.ref(file)
            if self._spare is None:
                self._spare = _spare_descriptor()
            if len(self._ring) > self.files_max:
                self._close(len(self._ring) - self.files_max)

    def remove(self, file: OpenFile) -> None:
        """Stop counting FILE: it was closed, or must not be closed."""
        with self._lock:
            self._ring.pop(id(file), None)

    def attempt(self, action: Callable[[], T]) -> T:
        """Return the result of ACTION, a call that needs a descriptor or a map; close files while it lacks one.

        Raises TooManyOpenFiles if no file is left to close, and all other errors of ACTION.
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
        """Close some of the files that were not used for longest; return whether there was any."""
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


#: The open files of this process, with its limits.
OPEN_FILES: Final = OpenFiles(FileLimits.of_process().files)
