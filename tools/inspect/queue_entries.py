"""The entries of one queue as its files lie, and whether they fit the records that they point to.

An entry is valid if its size is positive; behind the last valid one stand zeros. (Formats:
store/format/queue_entries.py.) Whole columns of entries are held against the log at a time; the verdicts, worst first,
are those of `ENTRY_FAULTS`. An entry whose record is gone with its file, or that fills the place in front of a queue's
beginning, is fine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.property_ranges import PropertyRanges, tags_codes
from ...proto.record import SYS_PREPARED
from ...proto.record_run import Bytes, Longs, RunColumns, as_bytes, parse_run
from ...proto.run_check import topic_is
from ...proto.topics import SCHEDULE_TOPIC
from ...store.config import parse_delay_levels
from ...store.disk import Mapping
from ...store.format.queue_entries import ADDRESS_MAX, PRE_BLANK_SIZE, entry_format
from ...store.format.rows import RowFormat, Rows
from ...store.listing import FileRow, RowFile
from ...store.queue_extension import QueueExtension
from ...store.view import QueueFolder, StoreView
from .log_walk import LogWalk

_ENTRIES_AT_ONCE: Final = 1 << 16
#: A page of them, and one more.
_ENTRIES_LOOKED_AT: Final = 256


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

    def __init__(self, files: StoreView, folder: QueueFolder, log_begin: int) -> None:
        self._files = files
        self.folder = folder
        self._log_begin = log_begin
        self._format = entry_format(is_batch=folder.is_batch)
        self.row: FileRow = files.row(folder.path)
        self._log_offsets: NDArray[np.int64] | None = None
        self._extension = QueueExtension(files.disk, folder.path)

    def of(self, file: RowFile) -> Rows:
        """Return all places for entries in FILE."""
        return self._format.columns(self._files.view(file))

    def number_of(self, file: RowFile) -> int:
        """Return the number of the first entry of FILE."""
        return file.start // self._format.size

    def bounds(self) -> Bounds:
        """Return where the queue begins and ends; read by descriptor, for page faults cost more than the entries."""
        for file in reversed(self.row.files):
            probe = _Probe(self._files, file, self._format)
            count = probe.valid_count()
            last = probe.entries(count - 1, 1) if count else None
            if last is not None and int(last["size"][0]) != PRE_BLANK_SIZE:
                return self._bounds(self.number_of(file) + count, last)
        at = self.row.begin // self._format.size
        return Bounds(at, at, at, at, None)

    def _bounds(self, end: int, last: Rows) -> Bounds:
        first = min(self.first_from(self._log_begin), end)
        log_end = int(last["log_offset"][0]) + int(last["size"][0])
        if not self.folder.is_batch:
            return Bounds(first, end, first, end, log_end)
        begin = next(self.read(first, first + 1), None)
        behind = int(last["base"][0]) + int(last["count"][0])
        low = behind if begin is None else int(begin[1]["base"][0])
        return Bounds(first, end, low, behind, log_end)

    def first_from(self, log_offset: int) -> int:
        """Return the number of the first entry whose record stands at LOG_OFFSET or behind it."""
        for file in self.row.files:
            probe = _Probe(self._files, file, self._format)
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
            view = self._files.view(file)
            places = np.frombuffer(view, f"V{size}", len(view) // size)
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

    def __init__(self, files: StoreView, file: RowFile, entry_format: RowFormat) -> None:
        self._format = entry_format
        self._size = entry_format.size
        try:
            self._mapping: Mapping | None = files.disk.open_map(file.path, writable=False)
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


Codes = NDArray[np.int8]

FINE, GONE, PRE_BLANK, REPEATED = 0, 1, 2, 3
NO_FILE, BEHIND_END, NO_RECORD, OTHER_MESSAGE, WRONG_SIZE, WRONG_TAGS = 10, 11, 12, 13, 14, 15

ENTRY_FAULTS: Final = {
    NO_FILE: "its record's file is missing",
    BEHIND_END: "points behind the log's end",
    NO_RECORD: "points to no record",
    OTHER_MESSAGE: "points to another message's record",
    WRONG_SIZE: "says another size than its record",
    WRONG_TAGS: "has a wrong tags code",
}
ENTRY_NOTES: Final = {
    GONE: "its record is gone with its file",
    PRE_BLANK: "a place in front of the queue's beginning",
    REPEATED: "repeats the entry behind it: its own record is lost",
}
_LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
_INNER_BASE: Final = "INNER_BASE"


class EntryCheck:
    """Checks entries of the queues in FILES against the log WALK."""

    def __init__(self, files: StoreView, walk: LogWalk) -> None:
        self._files = files
        self._walk = walk
        self._delays_ms = np.array((0, *parse_delay_levels(files.settings.delay_levels)), np.int64)

    def check(self, folder: QueueFolder, first: int, entries: Rows) -> Codes:
        """Return a verdict for each of ENTRIES of the queue in FOLDER, which are numbered from FIRST on."""
        offsets = entries["log_offset"].astype(np.int64)
        codes = np.zeros(len(entries), np.int8)
        codes[offsets < self._walk.begin] = GONE
        codes[offsets >= self._walk.records_end] = BEHIND_END
        codes[entries["size"] == PRE_BLANK_SIZE] = PRE_BLANK
        open_ = codes == FINE
        codes[open_] = NO_FILE
        for file in self._walk.used:
            rows = np.flatnonzero(open_ & (offsets >= file.start) & (offsets < file.end))
            if len(rows):
                view = self._files.view(file)
                columns = parse_run(view, offsets[rows] - file.start)
                sound = columns.well_formed & (columns.log_offset == offsets[rows])
                codes[rows] = np.where(sound, FINE, NO_RECORD)
                rows = rows[sound]
                found = Found(as_bytes(view), columns.take(sound))
                codes[rows] = self._compare(folder, first + rows, entries[rows], found)
        self._find_repeats(offsets, codes)
        return codes

    def _compare(self, folder: QueueFolder, numbers: Longs, entries: Rows, found: Found) -> Codes:
        """Return the verdicts for entries whose sound records are FOUND."""
        codes = np.zeros(len(entries), np.int8)
        columns = found.columns
        if not len(columns):
            return codes
        codes[entries["tags_code"] != self.tags_codes(folder.topic, found)] = WRONG_TAGS
        # Where the extension of an entry is gone, readers ask the record.
        codes[entries["tags_code"] <= ADDRESS_MAX] = FINE
        codes[entries["size"] != columns.sizes] = WRONG_SIZE
        if not folder.topic.startswith(_LIGHT_QUEUE_PREFIX):
            same = (columns.queue_id == folder.queue_id) & topic_is(
                found.data, columns, folder.topic
            )
            same &= (columns.sys_flag & SYS_PREPARED) == 0
            if folder.is_batch:
                bases = [int(text) if text else -1 for text in found.ranges.texts(_INNER_BASE)]
                same &= np.array(bases, np.int64) == entries["base"]
            else:
                same &= columns.queue_offset == numbers
            codes[~same] = OTHER_MESSAGE
        return codes

    def tags_codes(self, topic: str, found: Found) -> Longs:
        """Return the tags codes that entries of the records FOUND, all of TOPIC, have."""
        codes = tags_codes(found.data, found.ranges)
        if topic == SCHEDULE_TOPIC:
            texts = found.ranges.texts("DELAY")
            levels = np.array([_level(text) for text in texts], np.int64)
            delays = self._delays_ms[np.minimum(levels, len(self._delays_ms) - 1)]
            codes = np.where(levels > 0, found.columns.store_ms + delays, codes)
        return codes

    def _find_repeats(self, offsets: Longs, codes: Codes) -> None:
        """Mark entries that repeat the one behind them: recovery fills gaps so."""
        for row in np.flatnonzero(codes == OTHER_MESSAGE)[::-1].tolist():
            if row + 1 < len(offsets) and offsets[row] == offsets[row + 1]:
                codes[row] = REPEATED if codes[row + 1] in (FINE, REPEATED) else codes[row]


class Found:
    """Sound records in DATA."""

    def __init__(self, data: Bytes, columns: RunColumns) -> None:
        self.data = data
        self.columns = columns
        self._ranges: PropertyRanges | None = None

    @property
    def ranges(self) -> PropertyRanges:
        """Where the values of their properties stand."""
        if self._ranges is None:
            self._ranges = PropertyRanges(self.data, self.columns)
        return self._ranges


def _level(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


def fault_of(code: int) -> str | None:
    """Return what the verdict CODE says; None for a fine entry."""
    return ENTRY_FAULTS.get(code) or ENTRY_NOTES.get(code)
