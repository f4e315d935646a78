"""One file of a row: equal length, named by the offset of its first byte.

Name: the start offset, decimal, padded with zeros to 20 digits. The file has its full length from the moment of its
creation (sparse, zero-filled). `position` is where the next byte goes; everything behind it is zero, or stale bytes
that recovery has not judged yet.

Not thread-safe: the store's owner calls it. Writes go through the descriptor; reads too, or through the map where there
is much to look at, or in many places.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, FilesExhausted, StoreError
from .disk import Buffer, Disk, Mapping, write_error

NAME_DIGITS = 20


def file_name(start: int) -> str:
    """Return the name of the file that begins at offset START."""
    return f"{start:0{NAME_DIGITS}d}"


class MappedFile:
    """The bytes [start, start + size) of a row. Fields:

    start: offset of the first byte in the row;  size: length in bytes;  end: start + size;
    position: bytes used, counted from the file's beginning (a file that was just loaded counts as full);
    dirty: something was written that no `sync` was asked for yet.
    """

    __slots__ = (
        "dirty",
        "disk",
        "mapping",
        "path",
        "position",
        "size",
        "start",
    )

    def __init__(self, disk: Disk, path: str, start: int, size: int, *, create: bool) -> None:
        self.disk = disk
        self.path = path
        self.start = start
        self.size = size
        self.position = 0 if create else size
        self.dirty = create
        self.mapping: Mapping = disk.open_map(path, size=size, create=create)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def room(self) -> int:
        """Bytes left behind the position."""
        return self.size - self.position

    @property
    def view(self) -> memoryview:
        """The whole file, read-only; indexes count from the file's beginning. DiskFailure if somebody cut it.

        A look behind the end of a file that is cut later, or at what the device cannot read, ends the process (SIGBUS).
        """
        if self.mapping.is_cut():
            self.mapping.check()
        return self.mapping.view

    @property
    def data(self) -> NDArray[np.uint8]:
        """The same as a read-only array over the same map: no copy."""
        return np.frombuffer(self.view, np.uint8)

    def read(self, at: int, size: int) -> bytes:
        """Return SIZE bytes at AT. DiskFailure if somebody cut the file, or the device cannot read them."""
        try:
            found = self.mapping.read(at, size)
        except OSError as error:
            raise write_error(error, "read", self.path) from error
        if len(found) < size:
            self.mapping.check()
            raise DiskFailure(
                f"{self.path} ends at {at + len(found):,}, {size:,} bytes at {at:,} were asked for",
                path=self.path,
                reason="too short",
            )
        return found

    def append(self, data: Buffer) -> int:
        """Write DATA at the position and move on; return the row's offset of its first byte.

        It must fit. If the write fails, what it left behind is wiped and the position stays.
        """
        at = self.position
        self.put(at, data)
        self.position = at + len(data)
        return self.start + at

    def put(self, at: int, data: Buffer) -> None:
        """Write DATA at AT (from the file's beginning) without moving the position; on failure wipe what was left."""
        assert 0 <= at <= self.size - len(data), "a write must stay inside its file"
        self.dirty = True
        try:
            self.mapping.write(at, data)
        except FilesExhausted:
            raise  # Nothing was written.
        except StoreError as error:
            self._wipe(at, len(data), error)
            raise

    def _wipe(self, at: int, size: int, cause: StoreError) -> None:
        """Remove what a failed write left behind: half a record must never look like one later."""
        try:
            self.mapping.zero(at, size)
        except StoreError as error:
            raise DiskFailure(
                f"{cause.message}; and what it left at {at} could not be wiped: {error.message}",
                path=self.path,
                reason=error.details.get("reason", ""),
            ) from cause

    def cut(self, position: int, *, zero: bool = True) -> None:
        """Set the position; with ZERO make everything behind it zero (holes are not touched)."""
        self.position = position
        if zero and position < self.size:
            self.dirty = True
            self.mapping.zero(position, self.size - position)

    def data_end(self) -> int:
        """Return a position from which on the file is surely one hole (zeros), without reading it."""
        return self.mapping.data_end(0, self.size)

    def close(self) -> None:
        """Close the file; views that are held stay readable."""
        self.mapping.close()

    def delete(self) -> None:
        """Close and delete the file."""
        self.close()
        self.disk.delete(self.path)
