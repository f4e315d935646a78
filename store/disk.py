"""The disk layer: the only part of PocketMQ that opens, maps, writes, syncs, cuts, renames or deletes files.

`Disk` and `Mapping` are the protocols. Implementations: `OsDisk` (os_disk.py), `OverlayDisk` (overlay_disk.py: all
changes stay in memory), and in tests a recording and a faulty one.

Errors, the same for every implementation:
- a missing file or folder: FileNotFoundError;
- a write without enough space: `StoreFull`; nothing, or only a part, was written;
- no free descriptor, even after closing files: `TooManyOpenFiles`; nothing was tried;
- any other failed write or sync: `DiskFailure`;
- a lock that another process holds: `StoreLocked`.

Threads: a disk and its mappings belong to the store's owner. Any thread may call `Mapping.sync`, `check`, `read`,
`Disk.sync_folder` and `sync_everything` at any time, even while the owner closes or deletes the file. It may call
`Disk.write_atomically`, `exists` and `make_folders` for a file that the owner leaves to it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, StoreFull, TooManyOpenFiles

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder; SIZE is 0 for a folder."""

    name: str
    size: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Space on the file system of a path, counted as in RocketMQ: base = used + usable."""

    used_bytes: int
    usable_bytes: int

    @property
    def used_percent(self) -> int:
        """Return the used share in percent, rounded up; 100 for a file system of size 0."""
        base = self.used_bytes + self.usable_bytes
        return -(-self.used_bytes * 100 // base) if base else 100


class Lock(Protocol):
    """A held lock on a store. The end of the process releases it as well."""

    def release(self) -> None:
        """Release the lock. Idempotent."""
        ...


class Mapping(Protocol):
    """One open file of a fixed length, read through a shared map and written through its descriptor.

    A file in use takes up to two descriptors and a map. An unused file may be closed (system.py) and opens again at its
    next use. The implementation owns descriptor and map, but views that are held stay readable.
    """

    @property
    def path(self) -> str:
        """The path of the file."""
        ...

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        ...

    @property
    def view(self) -> memoryview:
        """The complete file, read-only. It shows every later `write` at once. It stays valid after `close`."""
        ...

    @property
    def array(self) -> NDArray[np.uint8]:
        """The complete file as a *writable* array (read-only if opened with `writable=False`).

        A write to a page without allocated space kills the process (SIGBUS): call `reserve` first. Writes are visible
        in `view`, and are flushed to disk by the next `sync`.
        """
        ...

    def write(self, at: int, data: Buffer) -> None:
        """Write all of DATA at position AT through the descriptor. Raises `StoreFull` or `DiskFailure`."""
        ...

    def reserve(self, at: int, size: int) -> None:
        """Allocate space for [AT, AT + SIZE), so that writes there through `array` cannot fail. Raises `StoreFull`."""
        ...

    def zero(self, at: int, size: int) -> None:
        """Make [AT, AT + SIZE) zero, without allocating or reading existing holes."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """Read SIZE bytes at AT through the descriptor, fewer at the file's end. Thread-safe.

        Causes no page fault: a read error is a DiskFailure.
        """
        ...

    def data_end(self, at: int, end: int) -> int:
        """Return a position in [AT, END] from which on the file is one hole up to END (reads as zeros).

        END itself if the file system does not report holes. Costs one system call, touches no page.
        """
        ...

    def check(self) -> None:
        """Raise DiskFailure if another process deleted, replaced or cut the file. Thread-safe.

        Reading a cut file through `view` or `array` after its end kills the process (SIGBUS). Up to three system calls.
        A closed mapping passes.
        """
        ...

    def is_cut(self) -> bool:
        """Is the file now shorter than `size`? One system call, by the owner, before it uses `view` or `array`."""
        ...

    def forget(self, at: int, size: int) -> None:
        """Release the pages of [AT, AT + SIZE) from the process's memory (they stay in the page cache)."""
        ...

    def sync(self) -> None:
        """Wait until everything written before this call is on disk (fdatasync; releases the GIL)."""
        ...

    def close(self) -> None:
        """Close the descriptor and drop the maps; views that are still held stay readable. Idempotent."""
        ...


class Disk(Protocol):
    """The file system operations of the store. Paths are strings, absolute or relative."""

    def exists(self, path: str) -> bool:
        """Is there a file or folder at PATH? Raises DiskFailure if the file system fails."""
        ...

    def is_folder(self, path: str) -> bool:
        """Is PATH a folder? Raises DiskFailure if the file system fails."""
        ...

    def size(self, path: str) -> int:
        """Return the length of the file PATH in bytes."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when PATH was last changed, Unix milliseconds."""
        ...

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of FOLDER, sorted by name; none for a folder that does not exist."""
        ...

    def make_folders(self, path: str, *, durable: bool = True) -> None:
        """Create the folder PATH with all its parents, unless it exists.

        The names of all new folders are on disk when this returns, unless DURABLE is false: then the caller syncs the
        parents of new folders, if anything depends on them.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return the complete file PATH."""
        ...

    def read_at(self, path: str, at: int, size: int) -> bytes:
        """Return up to SIZE bytes of PATH from position AT: fewer at its end."""
        ...

    def write_file(self, path: str, data: Buffer) -> None:
        """Make PATH contain only DATA, in place and without a sync; creates the file, but not its folder."""
        ...

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        """Replace PATH by DATA, on disk when this returns: a crash leaves the old content or the new.

        With BACKUP the old file becomes BACKUP first, replacing it; a crash between the two renames leaves the old
        content under that name only. Do not pass BACKUP if the old content is known to be bad.
        """
        ...

    def write_private(self, path: str, data: Buffer) -> None:
        """Do as `write_atomically`; at no time may others than the owner read or write the file (mode 0600)."""
        ...

    def delete(self, path: str) -> None:
        """Delete the file PATH; open mappings of it stay usable."""
        ...

    def delete_folder(self, path: str) -> None:
        """Delete the folder PATH, if it exists, with everything in it."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename SOURCE to TARGET, replacing it."""
        ...

    def truncate(self, path: str, size: int) -> None:
        """Cut or (sparsely) grow the file PATH to SIZE bytes. Never cut a file that is mapped."""
        ...

    def sync_folder(self, path: str) -> None:
        """Wait until the names in the folder PATH are on disk."""
        ...

    def sync_everything(self, path: str) -> bool:
        """Wait until all data written to the file system of the folder PATH is on disk; return True then.

        False: this is not supported here, or something was not written. Then sync each file, which reports errors.
        One call is far cheaper than one for each of a thousand files. Thread-safe.
        """
        ...

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        """Open the file PATH; with CREATE a missing file is created. A file shorter than SIZE is grown, sparsely.

        Without SIZE the mapping has the file's length. A longer file is mapped up to SIZE.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Take the store lock: write "lock" to the file PATH and lock its byte 0 as RocketMQ does (fcntl)."""
        ...

    def usage(self, path: str) -> DiskUsage:
        """Return the space on the file system of PATH."""
        ...


def write_error(error: OSError, action: str, path: str) -> StoreFull | DiskFailure:
    """Return the store's error for a failed write or sync of PATH."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(
            f"cannot {action} {path}: no space left on the device: free some space, or shorten the retention",
            path=path,
            reason="no space left on the device",
        )
    reason = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return TooManyOpenFiles(
            f"cannot {action} {path}: {reason}: raise the limit of open files (ulimit -n), or use fewer connections",
            path=path,
            reason=reason,
        )
    if error.errno == errno.ENOMEM:
        return StoreFull(
            f"cannot {action} {path}: {reason}: give the process more memory, or raise vm.max_map_count",
            path=path,
            reason=reason,
        )
    hint = {
        errno.EACCES: "check the owner of the store's files",
        errno.EROFS: "find the reason (dmesg), remount the file system, then start the broker again",
    }.get(error.errno or 0, "check the disk, then open the store again")
    return DiskFailure(f"cannot {action} {path}: {reason}: {hint}", path=path, reason=reason)


class disk_errors:  # A context manager as a generator would cost each write 2 µs more.
    """Turn an OSError of a write into `StoreFull` or `DiskFailure` with the action and the path."""

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: str) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise write_error(error, self._action, self._path) from error
