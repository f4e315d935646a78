"""Reads the entries of one queue from its files, without a recovery. Formats: format/queues.py.

An entry is valid if its size is positive; zeros follow the last valid one. Pre-blank entries, which precede the first
one of a queue that begins above 0, are not messages.
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

#: Entries read at a time: about 1 MB of a queue in its files; 6 MB, as many as most files have, of an opened one.
_ENTRIES_AT_ONCE: Final = 1 << 16
#: One page of them, and one more.
_ENTRIES_LOOKED_AT: Final = 256


@dataclass(frozen=True, slots=True)
class QueueExtent:
    """The extent of a queue: entry numbers [FIRST, END), queue offsets [MIN_OFFSET, MAX_OFFSET), and the end of the
    newest entry's record in the log (None without entries)."""

    first: int
    end: int
    min_offset: int
    max_offset: int
    log_end: int | None


class QueueView:
    """The queue in FOLDER. Entries before LOG_BEGIN have lost their records and are ignored."""

    def __init__(self, store: StoreView, folder: QueueFolder, log_begin: int) -> None:
        self._store = store
        self.folder = folder
        self._log_begin = log_begin
        self._format = entry_format(is_batch=folder.is_batch)
        self.row: FileRow = store.row(folder.path)
        self._log_offsets: NDArray[np.int64] | None = None
        self._extension = QueueExtension(store.disk, folder.path)

    def of(self, file: RowFile) -> Rows:
        """Return all entries in FILE, including unused ones."""
        return self._format.columns(self._store.view(file))

    def number_of(self, file: RowFile) -> int:
        """Return the number of the first entry of FILE."""
        return file.start // self._format.size

    def bounds(self) -> QueueExtent:
        """Return the extent of the queue. It is read through descriptors, because page faults cost more."""
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
        """Return the number of the first entry whose record is at LOG_OFFSET or after it."""
        for file in self.row.files:
            probe = _Probe(self._store, file, self._format)
            at = probe.count_before(log_offset)
            if at < probe.count:
                return self.number_of(file) + at
        return self.row.end // self._format.size

    def gather(self, numbers: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the plain entries with NUMBERS, and which of them exist; the others are zeros."""
        size = self._format.size
        found = np.zeros(len(numbers), f"V{size}")
        there = np.zeros(len(numbers), np.bool_)
        low, high = int(numbers.min()), int(numbers.max())
        for file in self.row.files[self._file_of(low) :]:
            start = self.number_of(file)
            if start > high:
                break
            # As plain bytes: numpy copies a structured array field by field.
            places = self.of(file).view(f"V{size}")
            inside = (numbers >= start) & (numbers < start + len(places))
            found[inside] = places[numbers[inside] - start]
            there |= inside
        entries = self._resolved(found.view(self._format.dtype))
        return entries, there & (entries["size"] > 0)

    def _file_of(self, number: int) -> int:
        """Return the index of the file with entry NUMBER, or of the previous file."""
        at = number * self._format.size
        return max(0, bisect_right(self.row.files, at, key=lambda file: file.start) - 1)

    def log_offsets(self) -> NDArray[np.int64]:
        """Return the log offsets of all entries. They are cached: only for batch queues, which are short."""
        if self._log_offsets is None:
            bounds = self.bounds()
            parts = [part["log_offset"] for _, part in self.read(bounds.first, bounds.end)]
            self._log_offsets = np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
        return self._log_offsets

    def read(self, first: int, end: int) -> Iterator[tuple[int, Rows]]:
        """Yield (number, entries) from entry FIRST to END, in pieces; nothing where a file is missing."""
        for file in self.row.files:
            start = self.number_of(file)
            entries = self.of(file)
            low, high = max(first, start), min(end, start + len(entries))
            for at in range(low, high, _ENTRIES_AT_ONCE):
                part = entries[at - start : min(high, at + _ENTRIES_AT_ONCE) - start]
                yield at, self._resolved(part)

    def _resolved(self, entries: Rows) -> Rows:
        """Return ENTRIES with addresses of an extension replaced by the tags codes there."""
        return entries if self.folder.is_batch else self._extension.resolve(entries)


class _Probe:
    """Reads single entries of FILE through its descriptor."""

    def __init__(self, store: StoreView, file: RowFile, entry_format: RowFormat) -> None:
        self._format = entry_format
        self._size = entry_format.size
        try:
            self._mapping: Mapping | None = store.disk.open_map(file.path, writable=False)
        except FileNotFoundError:
            self._mapping = None  # The retention of a running broker deleted it.
        #: Number of entries that fit the file.
        self.count = 0 if self._mapping is None else self._mapping.size // self._size

    def entries(self, at: int, count: int) -> Rows:
        """Return up to COUNT entries from position AT on."""
        assert self._mapping is not None
        return self._format.columns(self._mapping.read(at * self._size, count * self._size))

    def valid_count(self) -> int:
        """Return the number of valid entries at the start of the file.

        If the file ends in a hole, the last of them is just before it; otherwise it is found by a binary search.
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
        """Return how many entries at the file's start are pre-blank, or have records before LOG_OFFSET."""

        def is_gone(at: int) -> bool:
            found = self.entries(at, 1)
            size = int(found["size"][0])
            return size == PRE_BLANK_SIZE or (size > 0 and int(found["log_offset"][0]) < log_offset)

        return _prefix(self.count, is_gone) if self.count and is_gone(0) else 0


def _prefix(count: int, holds: Callable[[int], bool]) -> int:
    """Return for how many of the first COUNT numbers HOLDS is true; it must be true for a prefix of them."""
    return bisect_left(range(count), 1, key=lambda at: not holds(at))
