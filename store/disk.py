"""The disk: nothing else in PocketMQ opens, maps, writes, syncs, cuts, renames or deletes a file.

`Disk` and `Mapping` are the protocols. Implementations: `OsDisk` (os_disk.py), `OverlayDisk` (overlay_disk.py: every
change stays in memory), and in tests a recording and a faulty one.

Errors, the same for every implementation:
- a missing file or folder: FileNotFoundError;
- a write without enough space: `StoreFull`; nothing, or only a part, was written;
- no descriptor is left, also after closing files: `TooManyOpenFiles`; nothing was tried;
- any other failed write or sync: `DiskFailure`;
- a lock that another process holds: `StoreLocked`.

Threads: a disk and its mappings belong to the store's owner. Any thread may call `Mapping.sync`, `check`, `read`,
`Disk.sync_folder` and `sync_everything` at any time, also while the owner closes or deletes the file. It may call
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
    """Room on the file system of a path, counted as Apache does: base = used + usable."""

    used_bytes: int
    usable_bytes: int

    @property
    def used_percent(self) -> int:
        """Return the used share in percent, rounded up; 100 for a file system without room at all."""
        base = self.used_bytes + self.usable_bytes
        return -(-self.used_bytes * 100 // base) if base else 100


class Lock(Protocol):
    """A held lock on a store; it also falls when the process ends."""

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        ...


class Mapping(Protocol):
    """One open file of a fixed length, read through a shared map and written through its descriptor.

    A file that is used costs up to two descriptors and a map; one that is not may be closed (system.py), and opens
    again at its next use: descriptor and map are the implementation's, but a view that is held stays readable.
    """

    @property
    def path(self) -> str:
        """Where the file is."""
        ...

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        ...

    @property
    def view(self) -> memoryview:
        """The whole file, read-only. It shows every later `write` at once. It stays valid after `close`."""
        ...

    @property
    def array(self) -> NDArray[np.uint8]:
        """The whole file as a *writable* array (read-only if opened with `writable=False`).

        Writing to a page without room kills the process (SIGBUS): call `reserve` first. What is written shows in
        `view`, and reaches the device with the next `sync`.
        """
        ...

    def write(self, at: int, data: Buffer) -> None:
        """Write DATA at position AT through the descriptor; all of it or an error (`StoreFull`, `DiskFailure`)."""
        ...

    def reserve(self, at: int, size: int) -> None:
        """Allocate room for [AT, AT + SIZE), so that writes there through `array` cannot fail; or `StoreFull`."""
        ...

    def zero(self, at: int, size: int) -> None:
        """Make [AT, AT + SIZE) zero, without allocating or reading what is a hole already."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """Read SIZE bytes at AT through the descriptor, fewer behind the file's end; callable from any thread.

        No page fault: what the device cannot read is a DiskFailure.
        """
        ...

    def data_end(self, at: int, end: int) -> int:
        """Return a position in [AT, END] from which on up to END the file is one hole (reads as zeros).

        END itself where the file system cannot tell. Costs a system call, touches no page.
        """
        ...

    def check(self) -> None:
        """Raise DiskFailure if somebody else deleted the file, put another in its place, or cut it; any thread may ask.

        Reading through `view` or `array` behind the end of a file that was cut ends the process (SIGBUS). Three system
        calls at most; a mapping that was closed is fine.
        """
        ...

    def is_cut(self) -> bool:
        """Is the file shorter than `size` by now? One system call, by the owner, before it uses `view` or `array`."""
        ...

    def forget(self, at: int, size: int) -> None:
        """Let the process's hold on the pages of [AT, AT + SIZE) go (they stay in the page cache)."""
        ...

    def sync(self) -> None:
        """Wait until everything written before this call is on the device (fdatasync; frees the GIL)."""
        ...

    def close(self) -> None:
        """Close the descriptor and drop the maps; views that are still held stay readable. Twice is once."""
        ...


class Disk(Protocol):
    """Everything that the store asks of a file system. Paths are strings, absolute or relative."""

    def exists(self, path: str) -> bool:
        """Is there a file or folder at PATH? Raises DiskFailure where the device cannot say."""
        ...

    def is_folder(self, path: str) -> bool:
        """Is PATH a folder? Raises DiskFailure where the device cannot say."""
        ...

    def size(self, path: str) -> int:
        """Return the length of the file PATH in bytes."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when PATH was last changed, Unix milliseconds."""
        ...

    def list(self, folder: str) -> list[Entry]:
        """Return what is in FOLDER, sorted by name; nothing for a folder that does not exist."""
        ...

    def make_folders(self, path: str, *, durable: bool = True) -> None:
        """Create the folder PATH with all its parents; fine if it is there.

        Its name, and those of all new folders, are on the device when this returns, unless DURABLE is false: then the
        caller syncs the folders that got a new name, if anything depends on them.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return the whole file PATH."""
        ...

    def read_at(self, path: str, at: int, size: int) -> bytes:
        """Return up to SIZE bytes of PATH from position AT: fewer at its end."""
        ...

    def write_file(self, path: str, data: Buffer) -> None:
        """Make PATH contain DATA and nothing else, in place and without a sync; creates it, not its folder."""
        ...

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        """Replace PATH by DATA, on the device when this returns: a crash leaves the old content or the new.

        With BACKUP the old file becomes BACKUP first, replacing it; a crash between the two renames leaves the old
        content under that name only. Do not pass BACKUP where the old content is known to be bad.
        """
        ...

    def write_private(self, path: str, data: Buffer) -> None:
        """Do as `write_atomically`; nobody but the owner may read or write the file (mode 0600), not for a moment."""
        ...

    def delete(self, path: str) -> None:
        """Delete the file PATH; open mappings of it stay usable."""
        ...

    def delete_folder(self, path: str) -> None:
        """Delete the folder PATH with everything in it; fine if it is not there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename SOURCE to TARGET, replacing it."""
        ...

    def truncate(self, path: str, size: int) -> None:
        """Cut or (sparsely) grow the file PATH to SIZE bytes. Never cut a file that is mapped."""
        ...

    def sync_folder(self, path: str) -> None:
        """Wait until the names in the folder PATH are on the device."""
        ...

    def sync_everything(self, path: str) -> bool:
        """Wait until all that was written to the file system of the folder PATH is on the device; return True then.

        False: that cannot be had here, or something was not written; then whoever syncs file by file hears of what.
        One call is far cheaper than one for each of a thousand files. Any thread may ask.
        """
        ...

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        """Open the file PATH; with CREATE it is made if missing. A file shorter than SIZE is grown to it, sparsely.

        Without SIZE the mapping has the file's length. A longer file is mapped up to SIZE.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Take the store lock: write "lock" to the file PATH and lock its byte 0 as a Java broker does (fcntl)."""
        ...

    def usage(self, path: str) -> DiskUsage:
        """Return the room on the file system that holds PATH."""
        ...


def write_error(error: OSError, action: str, path: str) -> StoreFull | DiskFailure:
    """Return what a failed write or sync of PATH is called in this store."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(
            f"cannot {action} {path}: no space left on the device: free some space, or shorten the retention",
            path=path,
            reason="no space left on the device",
        )
    reason = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return TooManyOpenFiles(
            f"cannot {action} {path}: {reason}: raise the limit of open files (ulimit -n), or have fewer connections",
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
        errno.EACCES: "check who owns the store",
        errno.EROFS: "see why (dmesg), remount the file system, then start the broker again",
    }.get(error.errno or 0, "check the device, then open the store again")
    return DiskFailure(f"cannot {action} {path}: {reason}: {hint}", path=path, reason=reason)


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
