"""The entries of one queue as columns: as its files lie (`QueueView`), and as a recovery left them (`entries_of`).

An entry of a plain queue is one message, and its number its queue offset; one of a batch queue is a record of several
messages, numbered from its own base on. As it lies an entry is valid if its size is positive; behind the last valid
one stand zeros. Pre-blank entries, which stand in front of a queue that begins above 0, are no messages. Formats:
format/log_and_queues.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..proto.record_run import Longs
from .apache.files import JavaFile
from .apache.queue import JavaQueue
from .consume_queues import Queue
from .disk import Mapping
from .format.log_and_queues import (
    BATCH_ENTRY,
    ENTRY,
    PRE_BLANK_SIZE,
    RowFormat,
    Rows,
    entry_format,
)
from .listing import FileRow, RowFile
from .queue_extension import QueueExtension
from .view import QueueFolder, StoreView

#: Entries that are read at a time: of a queue as it lies; of an opened one 6 MB, as many as a file usually holds.
_ENTRIES_AT_ONCE: Final = 1 << 16
_RECOVERED_AT_ONCE: Final = 300_000
#: A page of them, and one more.
_ENTRIES_LOOKED_AT: Final = 256


# ---------------------------------------------------------------- as it lies


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


# ---------------------------------------------------------------- as a recovery left it


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """Entries in the order of their files; one array a column, all of one length."""

    queue_offset: Longs
    physical_offset: Longs
    size: Longs
    tags_code: Longs
    count: Longs

    def __len__(self) -> int:
        return len(self.queue_offset)

    def take(self, rows: Any) -> QueueEntries:
        """Return the chosen ROWS."""
        return QueueEntries(*(getattr(self, name)[rows] for name in QueueEntries.__slots__))


def entries_of(queue: JavaQueue, begin: int, end: int) -> Iterator[QueueEntries]:
    """Yield the entries of QUEUE that hold messages of [BEGIN, END), up to _RECOVERED_AT_ONCE at a time.

    Offsets in a hole, where a file is missing, have none. Each range is read once, and nothing else of the file.
    """
    begin, end = max(begin, queue.min_offset), min(end, queue.max_offset)
    if begin >= end:
        return
    for file in queue.files.files:
        if queue.kind == "BatchCQ":
            yield from _of_batches(file, begin, end)
        else:
            yield from _of_messages(file, begin, end)


def _of_messages(file: JavaFile, begin: int, end: int) -> Iterator[QueueEntries]:
    number = file.start // ENTRY.size
    first, last = max(0, begin - number), min(file.wrote // ENTRY.size, end - number)
    for at in range(first, last, _RECOVERED_AT_ONCE):
        rows = _rows(file, ENTRY, at, min(last, at + _RECOVERED_AT_ONCE))
        numbers = np.arange(number + at, number + at + len(rows), dtype=np.int64)
        yield _columns(rows, numbers, np.ones(len(rows), np.int64))


def _of_batches(file: JavaFile, begin: int, end: int) -> Iterator[QueueEntries]:
    last = file.wrote // BATCH_ENTRY.size
    for at in range(0, last, _RECOVERED_AT_ONCE):
        rows = _rows(file, BATCH_ENTRY, at, min(last, at + _RECOVERED_AT_ONCE))
        numbers, counts = rows["base"].astype(np.int64), rows["count"].astype(np.int64)
        wanted = (numbers + counts > begin) & (numbers < end)
        if wanted.any():
            yield _columns(rows[wanted], numbers[wanted], counts[wanted])


def _rows(file: JavaFile, kind: RowFormat, first: int, last: int) -> Rows:
    return kind.columns(file.mapping.read(first * kind.size, (last - first) * kind.size))


def _columns(rows: Rows, numbers: Longs, counts: Longs) -> QueueEntries:
    found = QueueEntries(
        numbers,
        rows["log_offset"].astype(np.int64),
        rows["size"].astype(np.int64),
        rows["tags_code"].astype(np.int64),
        counts,
    )
    blank = found.size == PRE_BLANK_SIZE
    return found.take(~blank) if blank.any() else found


def reached_entries(queue: Queue) -> tuple[Longs, Longs]:
    """Return queue offset and log offset of each entry of QUEUE, one of our store's, that a consumer can reach."""
    numbers, offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for file in queue.files.files:
        entries = queue.all_of(file)
        if queue.is_batch:
            number = entries["base"].astype(np.int64)
        else:
            number = file.start // queue.entry_size + np.arange(len(entries))
        kept = (number >= queue.min_offset) & (entries["size"] != PRE_BLANK_SIZE)
        numbers.append(number[kept])
        offsets.append(entries["log_offset"][kept].astype(np.int64))
    return np.concatenate(numbers), np.concatenate(offsets)
