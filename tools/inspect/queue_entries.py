"""The entries of one queue as its files lie.

Plain entries (20 bytes): log offset, record size, tags code; entry N is queue offset N. Batch entries (46 bytes) carry
the first queue offset and the number of messages themselves. An entry is valid if its size is positive; behind the
last valid one stand zeros. Formats: store/consume_queue.py, store/batch_consume_queue.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...store.entry_row import PRE_BLANK_SIZE
from .store_files import FileRow, QueueFolder, RowFile, StoreFiles

Entries = NDArray[Any]

PLAIN: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
BATCH: Final = np.dtype(
    [
        *((name, PLAIN[name]) for name in ("log_offset", "size", "tags_code")),
        ("store_ms", ">i8"),
        ("base", ">i8"),
        ("count", ">i2"),
        ("compacted", ">i4"),
        ("reserved", ">i4"),
    ]
)
_ENTRIES_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a queue: entry numbers [FIRST, END), queue offsets [MIN_OFFSET, MAX_OFFSET), and where the newest entry's
    record ends in the log (None without entries)."""

    first: int
    end: int
    min_offset: int
    max_offset: int
    log_end: int | None


class QueueEntries:
    """The queue in FOLDER; entries before LOG_BEGIN have lost their records and do not count."""

    def __init__(self, files: StoreFiles, folder: QueueFolder, log_begin: int) -> None:
        self._files = files
        self.folder = folder
        self._log_begin = log_begin
        self._type = BATCH if folder.is_batch else PLAIN
        self.row: FileRow = files.row(folder.path)

    def of(self, file: RowFile) -> Entries:
        """Return all places for entries in FILE."""
        view = self._files.view(file)
        count = len(view) // self._type.itemsize
        return np.frombuffer(view, self._type, count)

    def number_of(self, file: RowFile) -> int:
        """Return the number of the first entry of FILE."""
        return file.start // self._type.itemsize

    def bounds(self) -> Bounds:
        """Return where the queue begins and ends; some 40 entries are looked at."""
        for file in reversed(self.row.files):
            entries = self.of(file)
            count = _prefix(len(entries), _is_valid(entries))
            if count and int(entries["size"][count - 1]) != PRE_BLANK_SIZE:
                return self._bounds(self.number_of(file) + count, entries[count - 1])
        at = self.row.begin // self._type.itemsize
        return Bounds(at, at, at, at, None)

    def _bounds(self, end: int, last: Any) -> Bounds:
        first = min(self._first(), end)
        log_end = int(last["log_offset"]) + int(last["size"])
        if not self.folder.is_batch:
            return Bounds(first, end, first, end, log_end)
        begin = next(self.read(first, first + 1), None)
        behind = int(last["base"]) + int(last["count"])
        low = behind if begin is None else int(begin[1]["base"][0])
        return Bounds(first, end, low, behind, log_end)

    def _first(self) -> int:
        """Return the number of the first entry whose record the log may still have."""
        for file in self.row.files:
            entries = self.of(file)
            at = _prefix(len(entries), self._is_gone(entries))
            if at < len(entries):
                return self.number_of(file) + at
        return self.row.end // self._type.itemsize

    def _is_gone(self, entries: Entries) -> Callable[[int], bool]:
        """Return a test of ENTRIES: is this one pre-blank, or its record before the log's begin?"""
        sizes, offsets, log_begin = entries["size"], entries["log_offset"], self._log_begin

        def is_gone(at: int) -> bool:
            size = int(sizes[at])
            return size == PRE_BLANK_SIZE or (size > 0 and int(offsets[at]) < log_begin)

        return is_gone

    def read(self, first: int, end: int) -> Iterator[tuple[int, Entries]]:
        """Yield (number, entries) from entry FIRST to END, in pieces; nothing for places that no file covers."""
        for file in self.row.files:
            start = self.number_of(file)
            entries = self.of(file)
            low, high = max(first, start), min(end, start + len(entries))
            for at in range(low, high, _ENTRIES_AT_ONCE):
                yield at, entries[at - start : min(high, at + _ENTRIES_AT_ONCE) - start]


def _is_valid(entries: Entries) -> Callable[[int], bool]:
    sizes = entries["size"]
    return lambda at: int(sizes[at]) > 0


def _prefix(count: int, holds: Callable[[int], bool]) -> int:
    """Return how many of the first COUNT numbers HOLDS is true for; it is true for a prefix of them."""
    return bisect_left(range(count), 1, key=lambda at: not holds(at))
