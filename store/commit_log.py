"""The commit log: all records of all topics, one after the other, in a sequence of files of equal size.

A record never spans files and never touches the last 8 bytes of one. A record of L bytes is written only if L + 8 ≤
the rest of the file. Otherwise a *blank* closes the file (i32 bytes left, i32 blank magic; later bytes mean nothing),
the file counts as full, and the record begins the next one. Offsets continue through all files. A blank may also close
a file that has space left: readers ignore how much it leaves out, and the bytes that it leaves out are a hole.

Not thread-safe: the store calls it. `take_dirty` returns what a flushing thread must sync.
"""

from __future__ import annotations

from typing import Final

from ..proto.errors import MessageTooLarge
from ..proto.record import MAGIC_V1, MAGIC_V2, head_store_time_ms
from ..proto.record_run import LEAST_SIZE
from .disk import Buffer, Disk
from .files import MappedFile, MappedFiles, Syncable
from .format.log import BLANK_SIZE, HEAD_BYTES, blank, record_head

#: Bytes read of a record of unknown size: most records are smaller.
_READ_FIRST: Final = 2048


class CommitLog:
    """The sequence of log files, and appending to it. Fields:

    files: the mapped files;  flushed_offset: everything before it is on disk (as far as this process knows).
    """

    def __init__(self, files: MappedFiles) -> None:
        self.files = files
        self.flushed_offset = 0

    @classmethod
    def load(cls, disk: Disk, folder: str, file_size: int) -> CommitLog:
        """Open the log in FOLDER. Its end is not known until recovery has set it with `truncate`."""
        return cls(MappedFiles.load(disk, folder, file_size, what="commit log"))

    @property
    def min_offset(self) -> int:
        """Return the offset of the first byte that was not deleted."""
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        """Return the offset of the next record, unless a blank precedes it."""
        return self.files.max_offset

    @property
    def record_size_max(self) -> int:
        """Return the size of the largest record that fits a file."""
        return self.files.file_size - BLANK_SIZE

    def place(self, size: int) -> int:
        """Return the offset for a record, or for a run that must stay in one file, of SIZE bytes.

        Closes the current file with a blank if the record does not fit it. MessageTooLarge if it fits no file.
        """
        if size > self.record_size_max:
            raise MessageTooLarge(
                f"{size:,} bytes do not fit one log file, the limit is {self.record_size_max:,}:"
                " send smaller messages or batches, or use larger log files",
                limit=self.record_size_max,
                value=size,
            )
        file = self._current()
        if size + BLANK_SIZE > file.room:
            file = self._close_file(file)
        return file.start + file.position

    def room(self) -> int:
        """Return how many bytes of records the current file still takes (0 or less: none)."""
        file = self.files.last
        return 0 if file is None else file.room - BLANK_SIZE

    def append(self, data: Buffer) -> int:
        """Append DATA, complete records for which `place` found space; return the offset of the first byte."""
        return self._current().append(data)

    def _current(self) -> MappedFile:
        last = self.files.last
        return last if last is not None and last.room > 0 else self.files.roll()

    def roll(self) -> None:
        """Close the current file, which must not be empty, with a blank, although it has space. The next file is empty.

        The next file is created first: without space for it (StoreFull), or for the blank, the current file stays open.
        """
        file = self.files.last
        assert file is not None, "there is nothing to close"
        self.files.preallocate()
        self._close_file(file)

    def _close_file(self, file: MappedFile) -> MappedFile:
        if file.room >= BLANK_SIZE:
            file.append(blank(file.room))
        return self.files.roll()

    def read(self, offset: int, size: int) -> bytes | None:
        """Return SIZE bytes at OFFSET; None unless all of them are in one file of the log."""
        return self.files.read(offset, size)

    def record(self, offset: int, most: int | None = None) -> bytes | None:
        """Return the record that begins at OFFSET, according to its size; None if none can begin there.

        With MOST, at least that many of its first bytes are returned, or all. Raises the errors of `read`.
        """
        file = self.files.file_at(offset)
        at = 0 if file is None else offset - file.start
        if file is None or at + LEAST_SIZE > file.position:
            return None
        record = file.read(at, min(_READ_FIRST, file.position - at))
        size, magic, log_offset = record_head(record)
        known = magic in (MAGIC_V1, MAGIC_V2) and log_offset == offset and size >= LEAST_SIZE
        if not known or at + size > file.position:
            return None
        if size > len(record) and (most is None or most > len(record)):
            record = file.read(at, size)
        return record[:size]

    def record_size(self, offset: int) -> int | None:
        """Return the size in the record that begins at OFFSET; None if none can begin there."""
        head = self.record(offset, HEAD_BYTES)
        return None if head is None else int.from_bytes(head[:4])

    def truncate(self, end: int, *, zero: bool = True) -> None:
        """Make END the end of the log: everything after it is deleted, and with ZERO reads as zeros."""
        self.files.truncate(end, zero=zero)

    def take_dirty(self) -> list[Syncable]:
        """Return what must be synced so that everything up to `max_offset` is on disk."""
        return self.files.take_dirty()

    def close(self) -> None:
        self.files.close()


def store_time_ms(log: CommitLog, log_offset: int) -> int | None:
    """Return the store time of the record at LOG_OFFSET; None if there is none."""
    head = log.record(log_offset, LEAST_SIZE)
    return None if head is None else head_store_time_ms(head)
