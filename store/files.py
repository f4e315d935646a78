"""A row of equal files: one endless byte sequence, each file named by the offset of its first byte.

Name: the start offset, decimal, padded with zeros to 20 digits. A file has its full length from its creation on
(sparse, zero-filled). Its `position` is where the next byte goes; what follows is zero, or stale bytes that recovery
has not judged yet.

Rules at load (RocketMQ's, except for several empty files): names are sorted and sub-directories skipped. Empty files at
the end are deleted, unless one is the whole row and its name is not 0, which says where the row continues. A file of
another length than configured is refused, and so is a name that is no number. A missing file is accepted: offsets in
the hole belong to no file. Every loaded file counts as full until recovery calls `truncate`.

Not thread-safe: the store calls it.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, StoreError, StoreMismatch, TooManyOpenFiles
from ..proto.record_run import as_bytes
from .disk import Buffer, Disk, Entry, Mapping, write_error

logger = logging.getLogger(__name__)


NAME_DIGITS = 20


def file_name(start: int) -> str:
    """Return the name of the file that begins at offset START."""
    return f"{start:0{NAME_DIGITS}d}"


def bytes_of(rows: NDArray[np.void]) -> memoryview:
    """Return the bytes that ROWS, which lie end to end, are made of, without a copy."""
    view: memoryview = rows.view(np.uint8).data
    return view


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
        return as_bytes(self.view)

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
        except TooManyOpenFiles:
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


def _is_begun(entry: Entry) -> bool:
    """Is ENTRY a file that was made and has no bytes yet, by its length and its name?"""
    return entry.size == 0 and entry.name == file_name(int(entry.name))


def _tells_where(entries: list[Entry]) -> bool:
    """Is the name of the only one of ENTRIES all that tells where its row goes on?"""
    return len(entries) == 1 and entries[0].name.isdecimal() and int(entries[0].name) > 0


#: Java's long.
_OFFSET_MAX = (1 << 63) - 1


class Syncable(Protocol):
    """Something that a flushing thread can bring to the device."""

    def sync(self) -> None: ...


class FolderSync:
    """The names in a folder, as something to sync."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def sync(self) -> None:
        self._disk.sync_folder(self._path)


class SyncTogether:
    """PARTS, all on the file system of FOLDER, as one thing to sync."""

    def __init__(self, disk: Disk, folder: str, parts: list[Syncable]) -> None:
        self._disk = disk
        self._folder = folder
        self._parts = parts

    def sync(self) -> None:
        if not self._disk.sync_everything(self._folder):
            for part in self._parts:
                part.sync()


class MappedFiles:
    """The row in FOLDER. `files` is in order of offset; the last is the one that is written to.

    min_offset: start of the first file (0 without files);  max_offset: where the next byte goes (0 without files).
    """

    __slots__ = (
        "_folders_to_sync",
        "_spare",
        "_starts",
        "disk",
        "file_size",
        "files",
        "folder",
        "what",
    )

    def __init__(self, disk: Disk, folder: str, file_size: int, *, what: str = "file") -> None:
        """WHAT names the kind of file in messages ("commit log", "consume queue")."""
        self.disk = disk
        self.folder = folder
        self.file_size = file_size
        self.what = what
        self.files: list[MappedFile] = []
        self._starts: list[int] = []
        self._spare: MappedFile | None = None
        self._folders_to_sync: tuple[str, ...] = ()  # A list for each of 100,000 rows is memory.

    # --- loading -------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, disk: Disk, folder: str, file_size: int, *, what: str = "file") -> MappedFiles:
        """Open the row in FOLDER (none there: an empty row). StoreMismatch names a file that does not belong."""
        row = cls(disk, folder, file_size, what=what)
        entries = [entry for entry in disk.list(folder) if not entry.is_folder]
        for entry in entries:
            row._check_name(entry.name)
        while entries and _is_begun(entries[-1]) and not _tells_where(entries):
            disk.delete(os.path.join(folder, entries[-1].name))
            row._folders_to_sync += (folder,)
            entries.pop()
        for entry in entries:
            row._open(entry)
        return row

    def _check_name(self, name: str) -> None:
        """Raise StoreMismatch for a file NAME that is not of the row, so that it is neither read nor deleted."""
        if not (name.isascii() and name.isdigit() and int(name) <= _OFFSET_MAX):
            path = os.path.join(self.folder, name)
            raise StoreMismatch(
                f"{path} is not a {self.what} file (its name is no offset): move it out of {self.folder}",
                path=path,
            )

    def _open(self, entry: Entry) -> None:
        path = os.path.join(self.folder, entry.name)
        if entry.size != self.file_size:
            raise StoreMismatch(
                f"{path} is {entry.size:,} bytes long, but {self.what} files are configured with"
                f" {self.file_size:,}: open the store with the size that it was written with, or, if somebody cut the"
                f" file, lengthen it (truncate -s {self.file_size} {path}): what is missing is then gone, no more",
                path=path,
                size=entry.size,
                configured=self.file_size,
            )
        try:
            file = MappedFile(self.disk, path, int(entry.name), self.file_size, create=False)
        except FileNotFoundError:
            return  # A live broker's retention deleted it after the folder was listed.
        self._add(file)

    def _add(self, file: MappedFile) -> None:
        if self.files and self.files[-1].end != file.start:
            logger.warning(
                "files do not join", extra={"before": self.files[-1].path, "after": file.path}
            )
        self.files.append(file)
        self._starts.append(file.start)

    # --- where things are ----------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self.files[0].start if self.files else 0

    @property
    def max_offset(self) -> int:
        return self.files[-1].start + self.files[-1].position if self.files else 0

    @property
    def last(self) -> MappedFile | None:
        return self.files[-1] if self.files else None

    def index_of(self, offset: int) -> int | None:
        """Return the index in `files` of the file whose range holds OFFSET; None in a hole or outside the row."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self.files[index].end:
            return None
        return index

    def file_at(self, offset: int) -> MappedFile | None:
        """Return the file whose range holds OFFSET; None in a hole or outside the row."""
        index = self.index_of(offset)
        return None if index is None else self.files[index]

    def read(self, offset: int, size: int) -> bytes | None:
        """Return SIZE bytes from OFFSET; None unless all of them are used bytes of one file.

        Raises DiskFailure for a file that somebody cut, and for what the device cannot read.
        """
        file = self.file_at(offset)
        if file is None or offset - file.start + size > file.position:
            return None
        return file.read(offset - file.start, size)

    # --- growing -------------------------------------------------------------------------------------------------

    def start_at(self, offset: int) -> MappedFile:
        """Make the first file of an empty row: the one whose range holds OFFSET, with its position there."""
        assert not self.files, "only an empty row has no beginning"
        file = self._create(offset // self.file_size * self.file_size)
        file.position = offset - file.start
        return file

    def roll(self) -> MappedFile:
        """Make the file behind the last one (offset 0 for an empty row) and return it; the old last is full now."""
        if not self.files:
            return self._create(0)
        self.files[-1].position = self.file_size
        start = self.files[-1].end
        spare, self._spare = self._spare, None
        if spare is not None and spare.start == start:
            self._add(spare)
            return spare
        return self._create(start)

    def preallocate(self) -> None:
        """Make the file behind the last one ahead of time. It joins `files` with the next `roll`."""
        if self.files and self._spare is None:
            self._spare = self._make(self.files[-1].end)

    def discard_spare(self) -> None:
        """Delete the file that `preallocate` made and nobody used."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.delete()
            self._folders_to_sync += (self.folder,)

    def _create(self, start: int) -> MappedFile:
        file = self._make(start)
        self._add(file)
        return file

    def _make(self, start: int) -> MappedFile:
        self._make_folder()
        path = os.path.join(self.folder, file_name(start))
        file = MappedFile(self.disk, path, start, self.file_size, create=True)
        self._folders_to_sync += (self.folder,)
        return file

    def _make_folder(self) -> None:
        """Create the folder; every parent that gets a new name needs a sync as well."""
        missing = self.folder
        while missing and not self.disk.is_folder(missing):
            missing = os.path.dirname(missing)
            self._folders_to_sync += (missing,)
        self.disk.make_folders(self.folder, durable=False)

    def append(self, data: Buffer) -> int:
        """Append DATA at `max_offset`, over as many files as it takes; return the offset of its first byte.

        If a write fails, nothing is appended but what full files had taken: the caller truncates to the old end.
        """
        at = self.max_offset
        rest = memoryview(data)
        while len(rest):
            file = self.files[-1] if self.files and self.files[-1].room else self.roll()
            step = rest[: file.room]
            file.append(step)
            rest = rest[len(step) :]
        return at

    # --- shrinking -----------------------------------------------------------------------------------------------

    def truncate(self, offset: int, *, zero: bool = True) -> int:
        """Make OFFSET the end: later files are deleted, files before it count as full; return how many were deleted.

        With ZERO the rest of the file that holds OFFSET becomes zero, so that stale bytes never come back to life.
        A file that begins at OFFSET stays, empty; an OFFSET before the first file deletes them all (as Apache does).
        """
        keep = bisect_right(self._starts, offset)
        dropped = self.files[keep:]
        del self.files[keep:], self._starts[keep:]
        for file in reversed(dropped):
            file.delete()
        if dropped:
            self._folders_to_sync += (self.folder,)
        for file in self.files[:-1]:
            file.position = file.size
        if self.files:
            last = self.files[-1]
            last.cut(min(offset - last.start, last.size), zero=zero)
        return len(dropped)

    def delete_leading(self, count: int) -> int:
        """Delete the first COUNT files, never the last one; return how many went."""
        count = min(count, len(self.files) - 1)
        if count <= 0:
            return 0
        gone = self.files[:count]
        del self.files[:count], self._starts[:count]
        for file in gone:
            file.delete()
        self._folders_to_sync += (self.folder,)
        return count

    def delete_all(self) -> None:
        """Delete every file; the row is empty then."""
        for file in self.files:
            file.delete()
        self.files.clear()
        self._starts.clear()
        self.discard_spare()
        self._folders_to_sync += (self.folder,)

    # --- to the device -------------------------------------------------------------------------------------------

    def take_dirty(self) -> list[Syncable]:
        """Return what must be synced so that everything written up to now is on the device, and forget it.

        A sync that fails must stop all writing: what was taken is not offered again. Names come before contents.
        """
        paths = self.take_folders()
        folders: list[Syncable] = [FolderSync(self.disk, path) for path in dict.fromkeys(paths)]
        return folders + self.take_dirty_files()

    def take_folders(self) -> tuple[str, ...]:
        """Return the folders whose names must be synced, and forget them; with `take_dirty_files` all that is dirty."""
        paths, self._folders_to_sync = self._folders_to_sync, ()
        return paths

    def mark_dirty(self, *above: str) -> None:
        """Distrust the device: after a kill, what the last owner wrote may still be in the page cache only.

        ABOVE are folders above the row's own whose names are distrusted as well.
        """
        for file in self.files:
            file.dirty = True
        if self.files:
            self._folders_to_sync += (*above, self.folder)

    def take_dirty_files(self) -> list[Syncable]:
        """Return the files that must be synced, and forget it."""
        spare = [] if self._spare is None else [self._spare]
        dirty = [file for file in self.files + spare if file.dirty]
        for file in dirty:
            file.dirty = False
        return [file.mapping for file in dirty]

    def sync(self) -> None:
        """Bring everything written up to now to the device, and wait for it."""
        for part in self.take_dirty():
            part.sync()

    def close(self) -> None:
        """Close every file. Nothing is synced."""
        for file in self.files:
            file.close()
        if self._spare is not None:
            self._spare.close()


def equal_file_size(disk: Disk, folder: str) -> int | None:
    """Return the length that the files of the row in FOLDER have; None without files or if they differ.

    An empty last file does not count: it is a file whose creation was interrupted.
    """
    sizes = [
        entry.size
        for entry in disk.list(folder)
        if not entry.is_folder and entry.name.isdigit() and len(entry.name) == NAME_DIGITS
    ]
    if sizes and sizes[-1] == 0:
        sizes.pop()
    return sizes[0] if len(set(sizes)) == 1 else None
