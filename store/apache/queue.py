"""Plain queues: how RocketMQ recovers, fills, cuts and reads them (ConsumeQueue of 5.5.0). The protocol of queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ..disk import Disk
from ..format.queues import ENTRY, PRE_BLANK_SIZE, leading
from ..queue_extension import QueueExtension
from .files import JavaFile, JavaFiles
from .records import Checked

ENTRY_SIZE: Final = ENTRY.size
_PRE_BLANK: Final = ENTRY.pack(0, PRE_BLANK_SIZE, 0)
FILES_RECOVERED: Final = 3
_LONG_MAX: Final = (1 << 63) - 1
#: Bytes of a queue file that are read at once.
_FIRST_PIECE: Final = 205 * ENTRY_SIZE
_PIECE_MAX: Final = 52_000 * ENTRY_SIZE
_GROWTH: Final = 8

_UNITS_AT_ONCE: Final = 256

#: queue offset, log offset, size, tags code(, messages in the batch)
Unit = tuple[int, ...]


class JavaQueue(Protocol):
    """The operations of both kinds of queue. `max_log_offset` is RocketMQ's getMaxPhysicOffset."""

    topic: str
    queue_id: int
    kind: str
    files: JavaFiles
    max_log_offset: int

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    def bound(self, min_offset: int, max_offset: int, *, files_end: int, log_end: int) -> None: ...
    def recover(self) -> None: ...
    def put(self, record: Checked) -> None: ...
    def truncate_dirty(self, log_end: int) -> None: ...
    def correct_min_offset(self, log_begin: int) -> None: ...
    def destroy(self) -> None: ...
    def units(self, at: int) -> Iterator[Unit]: ...
    def behind_hole(self, at: int) -> int: ...


class SimpleQueue:
    """One queue of 20-byte entries."""

    kind = "SimpleCQ"

    def __init__(self, disk: Disk, folder: str, file_size: int, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = JavaFiles(disk, folder, file_size)
        self._extension = QueueExtension(disk, folder)
        self.max_log_offset = -1
        self.min_position = 0
        #: The greatest log offset in the entries of the last file, while these are unchanged since `recover`.
        self._greatest: int | None = None

    @property
    def min_offset(self) -> int:
        return self.min_position // ENTRY_SIZE

    @property
    def max_offset(self) -> int:
        return self.files.max_offset // ENTRY_SIZE

    def bound(self, min_offset: int, max_offset: int, *, files_end: int, log_end: int) -> None:
        """Set the limits found by another recovery: its files end at FILES_END, its newest record at LOG_END."""
        self.files.truncate(files_end)
        self.max_log_offset = log_end
        self.min_position = min_offset * ENTRY_SIZE

    def recover(self) -> None:
        """Find the end: the first invalid entry from the third-last file on."""
        files = self.files.files
        if not files:
            return
        end = 0
        for file in files[max(0, len(files) - FILES_RECOVERED) :]:
            count, log_end, greatest = _leading(file)
            if count:
                self.max_log_offset = log_end
            self._greatest = greatest if count else None
            end = file.start + count * ENTRY_SIZE
            if count < file.size // ENTRY_SIZE:
                break
        self.files.truncate(end)

    def truncate_dirty(self, log_end: int) -> None:
        """Drop the entries of records at or after LOG_END."""
        if self._greatest is not None and self._greatest < log_end:
            return  # No entry was added since `recover`, and all entries that it found stay.
        self.max_log_offset = log_end
        while (file := self.files.last) is not None:
            file.wrote = 0
            if _entry(file, 0)["log_offset"] >= log_end:
                self.files.delete_last()
                continue
            # The first entry is always kept: RocketMQ checks only its offset.
            count, self.max_log_offset, _ = _leading(file, log_end, keep_first=True)
            file.wrote = count * ENTRY_SIZE
            return

    def put(self, record: Checked) -> None:
        """Append the entry of RECORD, unless it exists."""
        end = record.log_offset + record.size
        if end <= self.max_log_offset:
            return
        wanted = record.queue_offset * ENTRY_SIZE
        file = self.files.last_for_write(wanted)
        if file.first_in_queue and record.queue_offset != 0 and file.wrote == 0:
            self.min_position = wanted
            blanks = wanted % self.files.size // ENTRY_SIZE
            file.append(_PRE_BLANK * blanks)
        if record.queue_offset != 0 and wanted < file.start + file.wrote:
            return
        self.max_log_offset = end
        self._greatest = None
        file.append(ENTRY.pack(record.log_offset, record.size, record.tags_code))

    def correct_min_offset(self, log_begin: int) -> None:
        """Move the minimum to the first entry of the *first file* whose record still exists."""
        last, first = self.files.last, self.files.first
        if self.min_position >= self.files.max_offset or last is None or first is None:
            return
        if last.wrote >= ENTRY_SIZE:
            newest = _entry(last, last.wrote // ENTRY_SIZE - 1)
            if newest["log_offset"] < log_begin:
                self.min_position = last.start + last.wrote
                return
        start = max(0, self.min_position - first.start)
        intact = self.min_position >= first.start
        if start >= first.wrote:
            return
        if intact and _entry(first, start // ENTRY_SIZE)["log_offset"] >= log_begin:
            return
        offsets = ENTRY.columns(first.mapping.read(start, first.wrote - start))["log_offset"]
        if len(offsets) == 0:
            return
        for index in _search(offsets, log_begin):
            if offsets[index] >= log_begin:
                self.min_position = first.start + start + index * ENTRY_SIZE
                return

    def destroy(self) -> None:
        """Delete all files and forget everything."""
        self.max_log_offset = -1
        self.min_position = 0
        self._greatest = None
        self.files.destroy()

    def units(self, at: int) -> Iterator[Unit]:
        """Yield what RocketMQ's iterator from queue offset AT yields: to the end of that file."""
        position = at * ENTRY_SIZE
        if position < self.min_position:
            return
        data = self.files.data(position)
        if data is None:
            return
        entries = ENTRY.columns(data, len(data) // ENTRY_SIZE)
        for begin in range(
            0, len(entries), _UNITS_AT_ONCE
        ):  # Many callers need only the first one.
            some = self._extension.resolve(entries[begin : begin + _UNITS_AT_ONCE])
            columns = (some[name].tolist() for name in ("log_offset", "size", "tags_code"))
            for index, row in enumerate(zip(*columns, strict=True), at + begin):
                yield (index, *row)

    def behind_hole(self, at: int) -> int:
        """Return the first queue offset of the next file after that of AT."""
        count = self.files.size // ENTRY_SIZE
        return at + count - at % count


def _entry(file: JavaFile, index: int) -> np.void:
    """Return one entry of FILE; only its bytes are read."""
    data = file.mapping.read(index * ENTRY_SIZE, ENTRY_SIZE)
    found: np.void = ENTRY.columns(data)[0]
    return found


def _leading(
    file: JavaFile, log_end: int = _LONG_MAX, *, keep_first: bool = False
) -> tuple[int, int, int]:
    """Return the number of leading entries of FILE whose records are before LOG_END, the end of the last one's
    record, and the greatest log offset among them.

    Reads piece by piece and stops at the first invalid entry: most of a queue's last file is a hole.
    """
    count, end, greatest = 0, 0, -1
    piece = _FIRST_PIECE
    while count < file.size // ENTRY_SIZE:
        at = count * ENTRY_SIZE
        data = file.mapping.read(at, min(piece, file.size // ENTRY_SIZE * ENTRY_SIZE - at))
        entries = ENTRY.columns(data)
        offsets = entries["log_offset"]
        valid = (offsets >= 0) & (entries["size"] > 0) & (offsets < log_end)
        if keep_first and count == 0:
            valid[0] = True
        found = leading(valid)
        if found:
            end = int(offsets[found - 1]) + int(entries["size"][found - 1])
            greatest = max(greatest, int(offsets[:found].max()))
        count += found
        if found < len(valid):
            break
        piece = min(piece * _GROWTH, _PIECE_MAX)
    return count, end, greatest


def _search(offsets: NDArray[np.int64], wanted: int) -> range:
    """Return the one to three indexes at which RocketMQ's binary search ends; the entries need not be sorted."""
    low, high = 0, len(offsets) - 1
    while high - low > 1:
        middle = (low + high) // 2
        found = offsets[middle]
        if found == wanted:
            return range(middle, middle + 1)
        if found > wanted:
            high = middle
        else:
            low = middle
    return range(low, high + 1)
