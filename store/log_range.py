"""Reads the commit log in ranges of one file, on any disk, for work that is divided into tasks.

A range may begin and end at any byte: it owns the records that *begin* inside it. If it begins where the file does,
reading starts there; anywhere else it starts at the first valid record (format/log.py). So all ranges of a file
together return each record once. Damage is what is between two valid records, or between the last one and the end. It
belongs to the range that owns the record before it. Zeros after the last record, and the blank that closes a file, are
no damage; nor is a truncated record at the very end of the log, because a broker may be writing it.

Memory: one window of about 1 MiB, or the largest record; a size above `RECORD_BYTES_MAX` is damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ..proto.record_run import LEAST_SIZE, Bytes, RunColumns, as_bytes, parse_run
from .disk import Disk
from .format.log import (
    BLANK_SIZE,
    HEAD_BYTES,
    find_run,
    is_blank,
    no_record,
    placed_starts,
    size_and_magic,
)
from .listing import RowFile, zeros_from

#: Bytes read and parsed at a time: they should fit the processor's cache.
WINDOW_BYTES: Final = 1 << 20
#: RocketMQ's default limit is 4 MiB for a body. A size above this is damage.
RECORD_BYTES_MAX: Final = 64 << 20


_NO_RECORDS: Final = parse_run(b"", np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Bytes [START, END) of the log, in the file PATH, without a valid record."""

    path: str
    start: int
    end: int
    why: str

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """Valid records: COLUMNS, with positions in DATA, whose first byte is at BASE of the log."""

    data: Bytes
    base: int
    columns: RunColumns


class LogRange:
    """The bytes [BEGIN, END) of FILE; nothing from LIMIT on is read. All are offsets in the log."""

    def __init__(
        self,
        disk: Disk,
        file: RowFile,
        begin: int,
        end: int,
        *,
        limit: int | None = None,
    ) -> None:
        self._disk = disk
        self._file = file
        self._begin = max(begin, file.start)
        self._end = min(end, file.end)
        self._limit = file.end if limit is None else min(limit, file.end)

    def __iter__(self) -> Iterator[PlacedRecords | LogDamage]:
        """Yield the content of the range, in order. FileNotFoundError if the file was deleted."""
        at = self._begin
        follows = at == self._file.start  # Must a record begin at AT?
        while at < self._limit and (follows or at < self._end) and not self._is_over(at, follows):
            found = self._next(at)
            if found is None:
                if follows:
                    yield from self._tail(at)
                return
            starts = found.columns.starts + found.base
            if follows and int(starts[0]) > at:
                yield self._damage(at, int(starts[0]))
            if int(starts[0]) >= self._end:
                return
            yield from self._owned(found)
            at = self._owned_end(found)
            follows = True

    def _count(self, found: PlacedRecords) -> int:
        """Return how many records of FOUND begin inside the range."""
        return int(np.searchsorted(found.columns.starts, self._end - found.base))

    def _owned_end(self, found: PlacedRecords) -> int:
        """Return the end of the last record of FOUND that begins inside the range."""
        last = self._count(found) - 1
        return found.base + int(found.columns.starts[last] + found.columns.sizes[last])

    def _owned(self, found: PlacedRecords) -> Iterator[PlacedRecords | LogDamage]:
        """Yield the records of FOUND that begin inside the range, cut at gaps."""
        columns = found.columns
        count = self._count(found)
        ends = columns.starts + columns.sizes
        gaps = np.flatnonzero(columns.starts[1:count] != ends[: count - 1]) + 1
        first = 0
        for row in [*gaps.tolist(), count]:
            whole = row - first == len(columns)
            yield found if whole else replace(found, columns=columns.take(slice(first, row)))
            if row < count:
                start, end = int(ends[row - 1]), int(columns.starts[row])
                yield self._damage(found.base + start, found.base + end)
            first = row

    def _next(self, at: int) -> PlacedRecords | None:
        """Return the first valid records from AT on, up to a full window; None if no more follow."""
        window = WINDOW_BYTES
        while at + LEAST_SIZE <= self._limit:
            data = self._read(at, window)
            columns = find_run(data, at) if data.any() else _NO_RECORDS
            if len(columns):
                return PlacedRecords(data, at, columns)
            cut = self._cut_record(data, at)
            if cut is None:
                if at + len(data) >= self._limit or len(data) < window:
                    return None
                at += len(data) - HEAD_BYTES + 1
                window = WINDOW_BYTES
            else:
                start, size = cut
                at, window = at + start, max(WINDOW_BYTES, size)
        return None

    def _cut_record(self, data: Bytes, at: int) -> tuple[int, int] | None:
        """Return start and size of the first record in DATA that may be complete with more bytes."""
        for start in placed_starts(data, at).tolist():
            size, _ = size_and_magic(data.data, start)
            fits = size <= RECORD_BYTES_MAX and at + start + size <= self._limit
            if start + size > len(data) and fits:
                return start, size
        return None

    def _read(self, at: int, size: int) -> Bytes:
        size = min(size, self._limit - at)
        return as_bytes(self._disk.read_at(self._file.path, at - self._file.start, size))

    def _is_over(self, at: int, follows: bool) -> bool:
        """Does the log, or its part in this file, end at AT, after a record?"""
        if not follows:
            return False
        if self._file.end - at < BLANK_SIZE:
            return True
        head = self._disk.read_at(self._file.path, at - self._file.start, BLANK_SIZE)
        return len(head) < BLANK_SIZE or is_blank(head, 0, self._file.end - at)

    def _tail(self, at: int) -> Iterator[LogDamage]:
        """Yield the rest of the file from AT on, after which there is no record; nothing if all of it is zero."""
        place = at
        while place < self._limit:
            data = self._read(place, WINDOW_BYTES)
            if not len(data):
                return
            if data.any():
                yield self._damage(at, self._limit)
                return
            place += len(data)

    def _damage(self, start: int, end: int) -> LogDamage:
        head = self._disk.read_at(self._file.path, start - self._file.start, BLANK_SIZE)
        why = no_record(*size_and_magic(head.ljust(BLANK_SIZE, b"\0")))
        return LogDamage(self._file.path, start, end, why)


def log_in_use(disk: Disk, files: Sequence[RowFile], known: int = 0) -> tuple[list[RowFile], int]:
    """Return FILES up to the last one with a record, and the end of that record; 0 without files.

    A broker creates up to two files ahead. KNOWN, if it is in a file, is the offset of a record: earlier bytes of its
    file are not read.
    """
    for count in range(len(files), 0, -1):
        last = files[count - 1]
        end = log_end(disk, last, known if last.start <= known < last.end else None)
        if end > last.start or count == 1:
            return list(files[:count]), end
    return [], 0


def log_end(disk: Disk, file: RowFile, begin: int | None = None) -> int:
    """Return the end of the last valid record of FILE, the last file with records; its start if there are none.

    With BEGIN, the offset of a record, earlier bytes are not read. Records after damage that are older than those
    before it are remains of an earlier use of the file.
    """
    begin = file.start if begin is None else begin
    end = begin
    newest_ms = 0
    behind_damage = False
    for found in LogRange(disk, file, begin, file.end, limit=zeros_from(disk, file)):
        if isinstance(found, LogDamage):
            behind_damage = True
            continue
        times = found.columns.store_ms
        if behind_damage and int(times[0]) < newest_ms:
            break
        behind_damage = False
        # No CRC covers a store time: one wild value must not make all others old.
        newest_ms = max(newest_ms, int(np.partition(times, -2)[-2]) if len(times) > 1 else 0)
        end = found.base + int(found.columns.starts[-1] + found.columns.sizes[-1])
    return end
