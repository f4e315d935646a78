"""A sequence of files of equal size: one endless byte sequence. Each file is named by the offset of its first byte.

Name: the start offset, decimal, padded with zeros to 20 digits. A file has its full length from its creation on
(sparse, zero-filled). Its `position` is where the next byte is written. The bytes after it are zero, or old bytes that
recovery has not checked yet.

Rules at load (RocketMQ's, except for several empty files): names are sorted and sub-directories skipped. Empty files at
the end are deleted, except a single file with another name than 0: the sequence continues at its offset. A file with
another length than configured is refused, and so is a name that is not a number. A missing file is accepted. Each
loaded file counts as full until recovery calls `truncate`.

Not thread-safe: the store calls it.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import DiskFailure, StoreError, StoreMismatch, TooManyOpenFiles
from ..proto.facts import Facts
from ..proto.record_run import as_bytes
from .disk import Buffer, Disk, Entry, Mapping, write_error

logger = logging.getLogger(__name__)


NAME_DIGITS = 20
#: More files and folders than this are synced together: separately, each costs a millisecond or more.
SYNCED_ONE_BY_ONE: Final = 256


def file_name(start: int) -> str:
    """Return the name of the file that begins at offset START."""
    return f"{start:0{NAME_DIGITS}d}"


def bytes_of(rows: NDArray[np.void]) -> memoryview:
    """Return the bytes of ROWS, which must be contiguous, without a copy."""
    view: memoryview = rows.view(np.uint8).data
    return view


class MappedFile:
    """The bytes [start, start + size) of a sequence. Fields:

    start: offset of the first byte in the sequence;  size: length in bytes;  end: start + size;
    position: bytes used, counted from the file's beginning (a file that was just loaded counts as full);
    dirty: something was written for which no `sync` was requested yet.
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
        """Bytes left after the position."""
        return self.size - self.position

    @property
    def view(self) -> memoryview:
        """The complete file, read-only; indexes count from its beginning. DiskFailure if another process cut it.

        Reading after the end of a file that is cut later, or a block with a read error, kills the process (SIGBUS).
        """
        if self.mapping.is_cut():
            self.mapping.check()
        return self.mapping.view

    @property
    def data(self) -> NDArray[np.uint8]:
        """The same as a read-only array over the same map: no copy."""
        return as_bytes(self.view)

    def read(self, at: int, size: int) -> bytes:
        """Return SIZE bytes at AT. DiskFailure if another process cut the file, or for a read error."""
        try:
            found = self.mapping.read(at, size)
        except OSError as error:
            raise write_error(error, "read", self.path) from error
        if len(found) < size:
            self.mapping.check()
            raise DiskFailure(
                f"{self.path} ends at {at + len(found):,}, but {size:,} bytes at {at:,} were requested",
                path=self.path,
                reason="too short",
            )
        return found

    def append(self, data: Buffer) -> int:
        """Write DATA at the position and move the position; return the offset of its first byte.

        It must fit. If the write fails, its bytes are wiped and the position stays.
        """
        at = self.position
        self.put(at, data)
        self.position = at + len(data)
        return self.start + at

    def put(self, at: int, data: Buffer) -> None:
        """Write DATA at AT (from the file's beginning) without moving the position; if that fails, wipe its bytes."""
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
        """Remove the bytes of a failed write: half a record must never look like one later."""
        try:
            self.mapping.zero(at, size)
        except StoreError as error:
            raise DiskFailure(
                f"{cause.message}; and the bytes written at {at} could not be wiped: {error.message}",
                path=self.path,
                reason=error.details.get("reason", ""),
            ) from cause

    def cut(self, position: int, *, zero: bool = True) -> None:
        """Set the position; with ZERO make everything after it zero (holes are not touched)."""
        self.position = position
        if zero and position < self.size:
            self.dirty = True
            self.mapping.zero(position, self.size - position)

    def data_end(self) -> int:
        """Return a position from which on the file is certainly one hole (zeros), without reading it."""
        return self.mapping.data_end(0, self.size)

    def close(self) -> None:
        """Close the file; views that are held stay readable."""
        self.mapping.close()

    def delete(self) -> None:
        """Close and delete the file."""
        self.close()
        self.disk.delete(self.path)


def _is_begun(entry: Entry) -> bool:
    """Is ENTRY a new file that has no bytes yet, by its length and its name?"""
    return entry.size == 0 and entry.name == file_name(int(entry.name))


def _tells_where(entries: list[Entry]) -> bool:
    """Is there only one of ENTRIES, and is its name needed to know where the sequence continues?"""
    return len(entries) == 1 and entries[0].name.isdecimal() and int(entries[0].name) > 0


#: The largest 64-bit integer.
_OFFSET_MAX = (1 << 63) - 1


class Syncable(Protocol):
    """An object that a flushing thread can sync."""

    def sync(self) -> None: ...


class FolderSync:
    """The names in a folder, as an object to sync."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def sync(self) -> None:
        self._disk.sync_folder(self._path)


class SyncTogether:
    """PARTS, all on the file system of FOLDER, as one object to sync."""

    def __init__(self, disk: Disk, folder: str, parts: list[Syncable]) -> None:
        self._disk = disk
        self._folder = folder
        self._parts = parts

    def sync(self) -> None:
        if not self._disk.sync_everything(self._folder):
            for part in self._parts:
                part.sync()


class MappedFiles:
    """The sequence of files in FOLDER. `files` is in order of offset; writes go to the last one.

    min_offset: start of the first file (0 without files);  max_offset: offset of the next byte (0 without files).
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
        """WHAT is the kind of file in messages ("commit log", "consume queue")."""
        self.disk = disk
        self.folder = folder
        self.file_size = file_size
        self.what = what
        self.files: list[MappedFile] = []
        self._starts: list[int] = []
        self._spare: MappedFile | None = None
        self._folders_to_sync: tuple[
            str, ...
        ] = ()  # A list for each of 100,000 objects would take memory.

    @classmethod
    def load(cls, disk: Disk, folder: str, file_size: int, *, what: str = "file") -> MappedFiles:
        """Open the sequence in FOLDER, which may be missing. StoreMismatch for a file that does not belong."""
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
        """Raise StoreMismatch for a file NAME that does not belong here, so that it is neither read nor deleted."""
        if not (name.isascii() and name.isdigit() and int(name) <= _OFFSET_MAX):
            path = os.path.join(self.folder, name)
            raise StoreMismatch(
                f"{path} is not a {self.what} file (its name is not an offset): move it out of {self.folder}",
                path=path,
            )

    def _open(self, entry: Entry) -> None:
        path = os.path.join(self.folder, entry.name)
        if entry.size != self.file_size:
            raise StoreMismatch(
                f"{path} is {entry.size:,} bytes long, but {self.what} files are configured with"
                f" {self.file_size:,}: open the store with the size that it was written with. If the file was cut,"
                f" lengthen it (truncate -s {self.file_size} {path}): then only the missing bytes are lost",
                path=path,
                size=entry.size,
                configured=self.file_size,
            )
        try:
            file = MappedFile(self.disk, path, int(entry.name), self.file_size, create=False)
        except FileNotFoundError:
            return  # The retention of a running broker deleted it after the folder was listed.
        self._add(file)

    def _add(self, file: MappedFile) -> None:
        if self.files and self.files[-1].end != file.start:
            logger.warning(
                "gap between files %s", Facts(before=self.files[-1].path, after=file.path)
            )
        self.files.append(file)
        self._starts.append(file.start)

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
        """Return the index in `files` of the file with OFFSET; None in a hole or outside the sequence."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self.files[index].end:
            return None
        return index

    def file_at(self, offset: int) -> MappedFile | None:
        """Return the file with OFFSET; None in a hole or outside the sequence."""
        index = self.index_of(offset)
        return None if index is None else self.files[index]

    def read(self, offset: int, size: int) -> bytes | None:
        """Return SIZE bytes from OFFSET; None unless all of them are used bytes of one file.

        Raises DiskFailure if another process cut the file, or for a read error.
        """
        file = self.file_at(offset)
        if file is None or offset - file.start + size > file.position:
            return None
        return file.read(offset - file.start, size)

    def start_at(self, offset: int) -> MappedFile:
        """Create the first file of an empty sequence: the one with OFFSET, with its position there."""
        assert not self.files, "the sequence is not empty"
        file = self._create(offset // self.file_size * self.file_size)
        file.position = offset - file.start
        return file

    def roll(self) -> MappedFile:
        """Create the file after the last one (offset 0 if there is none) and return it; the last one is now full."""
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
        """Create the file after the last one ahead of time. It joins `files` with the next `roll`."""
        if self.files and self._spare is None:
            self._spare = self._make(self.files[-1].end)

    def discard_spare(self) -> None:
        """Delete the file that `preallocate` created, if it was not used."""
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
        """Create the folder. Each parent that gets a new name needs a sync as well."""
        missing = self.folder
        while missing and not self.disk.is_folder(missing):
            missing = os.path.dirname(missing)
            self._folders_to_sync += (missing,)
        self.disk.make_folders(self.folder, durable=False)

    def append(self, data: Buffer) -> int:
        """Append DATA at `max_offset`, to as many files as needed; return the offset of its first byte.

        If a write fails, only bytes in files that were filled remain: the caller truncates to the old end.
        """
        at = self.max_offset
        rest = memoryview(data)
        while len(rest):
            file = self.files[-1] if self.files and self.files[-1].room else self.roll()
            step = rest[: file.room]
            file.append(step)
            rest = rest[len(step) :]
        return at

    def truncate(self, offset: int, *, zero: bool = True) -> int:
        """Make OFFSET the end: later files are deleted, files before it count as full; return how many were deleted.

        With ZERO the rest of the file with OFFSET becomes zero, so that old bytes never look valid again. A file that
        begins at OFFSET stays, empty. An OFFSET before the first file deletes all files (as in RocketMQ).
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
        """Delete the first COUNT files, never the last one; return how many were deleted."""
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
        """Delete all files; the sequence is then empty."""
        for file in self.files:
            file.delete()
        self.files.clear()
        self._starts.clear()
        self.discard_spare()
        self._folders_to_sync += (self.folder,)

    def take_dirty(self) -> list[Syncable]:
        """Return what must be synced so that everything written until now is on disk, and forget it.

        After a failed sync all writing must stop: the parts are not returned again. Names are synced before contents.
        """
        paths = self.take_folders()
        folders: list[Syncable] = [FolderSync(self.disk, path) for path in dict.fromkeys(paths)]
        return folders + self.take_dirty_files()

    def take_folders(self) -> tuple[str, ...]:
        """Return the folders whose names must be synced, and forget them; `take_dirty_files` returns the rest."""
        paths, self._folders_to_sync = self._folders_to_sync, ()
        return paths

    def mark_dirty(self, *above: str) -> None:
        """Mark everything as dirty: after a kill, writes of the last owner may be only in the page cache.

        ABOVE are further folders above the sequence's own whose names are marked, too.
        """
        for file in self.files:
            file.dirty = True
        if self.files:
            self._folders_to_sync += (*above, self.folder)

    def take_dirty_files(self) -> list[Syncable]:
        """Return the files that must be synced, and mark them as clean."""
        spare = [] if self._spare is None else [self._spare]
        dirty = [file for file in self.files + spare if file.dirty]
        for file in dirty:
            file.dirty = False
        return [file.mapping for file in dirty]

    def sync(self) -> None:
        """Sync everything written until now."""
        for part in self.take_dirty():
            part.sync()

    def close(self) -> None:
        """Close every file. Nothing is synced."""
        for file in self.files:
            file.close()
        if self._spare is not None:
            self._spare.close()


def equal_file_size(disk: Disk, folder: str) -> int | None:
    """Return the length of the files of the sequence in FOLDER; None without files or if they differ.

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
