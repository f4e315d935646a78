"""The entries of one queue as its files are, without a recovery. Formats: format/queues.py.

An entry is valid if its size is positive; zeros follow the last valid one. Pre-blank entries, which precede the first
one of a queue that begins above 0, are no messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .disk import Mapping
from .format.queues import PRE_BLANK_SIZE, entry_format
from .format.rows import RowFormat, Rows
from .listing import FileRow, RowFile
from .queue_extension import QueueExtension
from .view import QueueFolder, StoreView

#: Entries that are read at a time: of a queue as it lies; of an opened one 6 MB, as many as a file usually holds.
_ENTRIES_AT_ONCE: Final = 1 << 16
#: A page of them, and one more.
_ENTRIES_LOOKED_AT: Final = 256


@dataclass(frozen=True, slots=True)
class QueueExtent:
    """Of a queue: entry numbers [FIRST, END), queue offsets [MIN_OFFSET, MAX_OFFSET), and where the newest entry's
    record ends in the log (None without entries)."""

    first: int
    end: int
    min_offset: int
    max_offset: int
    log_end: int | None


class QueueView:
    """The queue in FOLDER; entries before LOG_BEGIN have lost their records and do not count."""

    def __init__(self, store: StoreView, folder: QueueFolder, log_begin: int) -> None:
        self._store = store
        self.folder = folder
        self._log_begin = log_begin
        self._format = entry_format(is_batch=folder.is_batch)
        self.row: FileRow = store.row(folder.path)
        self._log_offsets: NDArray[np.int64] | None = None
        self._extension = QueueExtension(store.disk, folder.path)

    def of(self, file: RowFile) -> Rows:
        """Return all places for entries in FILE."""
        return self._format.columns(self._store.view(file))

    def number_of(self, file: RowFile) -> int:
        """Return the number of the first entry of FILE."""
        return file.start // self._format.size

    def bounds(self) -> QueueExtent:
        """Return where the queue begins and ends; read by descriptor, for page faults cost more than the entries."""
        for file in reversed(self.row.files):
            probe = _Probe(self._store, file, self._format)
            count = probe.valid_count()
            last = probe.entries(count - 1, 1) if count else None
            if last is not None and int(last["size"][0]) != PRE_BLANK_SIZE:
                return self._bounds(self.number_of(file) + count, last)
        at = self.row.begin // self._format.size
        return QueueExtent(at, at, at, at, None)

    def _bounds(self, end: int, last: Rows) -> QueueExtent:
        first = min(self.first_from(self._log_begin), end)
        log_end = int(last["log_offset"][0]) + int(last["size"][0])
        if not self.folder.is_batch:
            return QueueExtent(first, end, first, end, log_end)
        begin = next(self.read(first, first + 1), None)
        behind = int(last["base"][0]) + int(last["count"][0])
        low = behind if begin is None else int(begin[1]["base"][0])
        return QueueExtent(first, end, low, behind, log_end)

    def first_from(self, log_offset: int) -> int:
        """Return the number of the first entry whose record stands at LOG_OFFSET or behind it."""
        for file in self.row.files:
            probe = _Probe(self._store, file, self._format)
            at = probe.count_before(log_offset)
            if at < probe.count:
                return self.number_of(file) + at
        return self.row.end // self._format.size

    def gather(self, numbers: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the plain entries with NUMBERS, and which of them are there; the others are zeros."""
        size = self._format.size
        found = np.zeros(len(numbers), f"V{size}")
        there = np.zeros(len(numbers), np.bool_)
        low, high = int(numbers.min()), int(numbers.max())
        for file in self.row.files[self._file_of(low) :]:
            start = self.number_of(file)
            if start > high:
                break
            # As plain bytes: a structured array would be copied field by field.
            places = self.of(file).view(f"V{size}")
            inside = (numbers >= start) & (numbers < start + len(places))
            found[inside] = places[numbers[inside] - start]
            there |= inside
        entries = self._resolved(found.view(self._format.dtype))
        return entries, there & (entries["size"] > 0)

    def _file_of(self, number: int) -> int:
        """Return the place in the row of the file that has entry NUMBER, or of the one before."""
        at = number * self._format.size
        return max(0, bisect_right(self.row.files, at, key=lambda file: file.start) - 1)

    def log_offsets(self) -> NDArray[np.int64]:
        """Return the log offsets of all entries, remembered: for batch queues, which are short."""
        if self._log_offsets is None:
            bounds = self.bounds()
            parts = [part["log_offset"] for _, part in self.read(bounds.first, bounds.end)]
            self._log_offsets = np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
        return self._log_offsets

    def read(self, first: int, end: int) -> Iterator[tuple[int, Rows]]:
        """Yield (number, entries) from entry FIRST to END, in pieces; nothing for places that no file covers."""
        for file in self.row.files:
            start = self.number_of(file)
            entries = self.of(file)
            low, high = max(first, start), min(end, start + len(entries))
            for at in range(low, high, _ENTRIES_AT_ONCE):
                part = entries[at - start : min(high, at + _ENTRIES_AT_ONCE) - start]
                yield at, self._resolved(part)

    def _resolved(self, entries: Rows) -> Rows:
        """Return ENTRIES with the tags codes that stand beside them, where a Java broker extended them."""
        return entries if self.folder.is_batch else self._extension.resolve(entries)


class _Probe:
    """Looks at single entries of FILE through its descriptor."""

    def __init__(self, store: StoreView, file: RowFile, entry_format: RowFormat) -> None:
        self._format = entry_format
        self._size = entry_format.size
        try:
            self._mapping: Mapping | None = store.disk.open_map(file.path, writable=False)
        except FileNotFoundError:
            self._mapping = None  # A live broker's retention deleted it.
        #: Places for entries.
        self.count = 0 if self._mapping is None else self._mapping.size // self._size

    def entries(self, at: int, count: int) -> Rows:
        """Return up to COUNT entries from place AT on."""
        assert self._mapping is not None
        return self._format.columns(self._mapping.read(at * self._size, count * self._size))

    def valid_count(self) -> int:
        """Return how many valid entries the file begins with.

        Where the file ends in a hole, the last of them stands just before it; else it is found by halving.
        """
        if not self.count:
            return 0
        assert self._mapping is not None
        end = self._mapping.data_end(0, self._mapping.size)
        high = min(self.count, -(-end // self._size))
        low = max(0, high - _ENTRIES_LOOKED_AT)
        sizes = self.entries(low, high - low)["size"]
        valid = np.flatnonzero(sizes > 0)
        if len(valid):
            return low + int(valid[-1]) + 1
        return _prefix(low, lambda at: int(self.entries(at, 1)["size"][0]) > 0)

    def count_before(self, log_offset: int) -> int:
        """Return how many entries at the file's beginning are pre-blank, or of records before LOG_OFFSET."""

        def is_gone(at: int) -> bool:
            found = self.entries(at, 1)
            size = int(found["size"][0])
            return size == PRE_BLANK_SIZE or (size > 0 and int(found["log_offset"][0]) < log_offset)

        return _prefix(self.count, is_gone) if self.count and is_gone(0) else 0


def _prefix(count: int, holds: Callable[[int], bool]) -> int:
    """Return how many of the first COUNT numbers HOLDS is true for; it is true for a prefix of them."""
    return bisect_left(range(count), 1, key=lambda at: not holds(at))
