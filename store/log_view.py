"""Reads the commit log of mapped files, from record to record over all files.

A record is *valid* if its lengths are consistent and it is at its own log offset. The caller checks whether its body
matches its CRC. Nothing is written, and a running broker may append meanwhile.

`LogWalk` yields stretches of records, and the gaps between them. A record begins a stretch if its lengths are
consistent; its own log offset may differ (`displaced`). After bytes that are not a record, reading continues at the
next valid one. The log ends in its last file with records, where no valid record follows. Cost: 0.2 µs per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ..proto.record_run import RunColumns, parse_run, walk
from ..proto.topics import RECORD_SIZE_MAX
from .format.log import (
    BLANK_SIZE,
    MAGIC_AT,
    MAGIC_PATTERN,
    is_blank,
    no_record,
    placed_record,
    size_and_magic,
)
from .listing import RowFile
from .view import StoreView

STRETCH_BYTES: Final = 4 << 20
#: A file without a record in its first bytes was created ahead and is unused.
_UNUSED_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class LogStretch:
    """Consecutive records in one file; positions in COLUMNS count from the file's beginning."""

    file: RowFile
    view: memoryview
    columns: RunColumns

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The log offset of each record."""
        return self.columns.starts + self.file.start

    @property
    def displaced(self) -> NDArray[np.bool_]:
        """Which records have another log offset in their head."""
        wrong: NDArray[np.bool_] = self.columns.log_offset != self.offsets
        return wrong


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes [START, END) of the log without a record. `blank`: closes a file; `damaged`; `missing`: no file."""

    start: int
    end: int
    kind: Literal["blank", "damaged", "missing"]
    why: str


class LogWalk:
    """The log of FILES, with the lengths that they had when this was created.

    KNOWN_END is an earlier end of the log. The size of a stretch is about STRETCH_BYTES or less.
    """

    def __init__(
        self,
        files: StoreView,
        known_end: int | None = None,
        *,
        stretch_bytes: int = STRETCH_BYTES,
    ) -> None:
        self._files = files
        self._stretch_bytes = stretch_bytes
        self._known_end = known_end
        self.row = files.log()
        self._ends: tuple[int, int] | None = None

    @property
    def begin(self) -> int:
        return self.row.begin

    @property
    def used(self) -> tuple[RowFile, ...]:
        """The files up to the last one with a record."""
        return tuple(file for file in self.row.files if file.start < max(self.end, 1))

    @property
    def end(self) -> int:
        """The end of the log, including a blank that closes its last file."""
        return self._found_ends()[1]

    @property
    def records_end(self) -> int:
        """The end of the last valid record, found by a binary search in the last file."""
        return self._found_ends()[0]

    def _found_ends(self) -> tuple[int, int]:
        if self._ends is None:
            last = self._find_end()
            file = self.row.at(last)
            closed = file is not None and _is_blank(self._files.view(file), last - file.start)
            self._ends = last, file.end if closed and file is not None else last
        return self._ends

    def _find_end(self) -> int:
        for file in reversed(self.row.files):
            view = self._files.view(file)
            first = next_sound(view, file.start, 0, min(len(view), _UNUSED_BYTES))
            if first is not None:
                known = self._known_end
                if known is not None and file.start <= known <= file.end:
                    first = known - file.start
                    if not any(view[first : first + BLANK_SIZE]):
                        return known
                return file.start + _last_end(view, file.start, first, self._files.data_end(file))
        return self.row.begin

    def walk(self, begin: int, end: int | None = None) -> Iterator[LogStretch | Gap]:
        """Yield the content of [BEGIN, END) (END None: to the log's end), in order.

        A BEGIN inside a record means the next record.
        """
        stop = self.end if end is None else min(end, self.end)
        behind = None
        for file in self.row.files:
            if file.start >= stop:
                break
            if behind is not None and behind < file.start and file.start > begin:
                yield Gap(behind, file.start, "missing", "no file covers this range")
            behind = file.end
            if file.end > begin:
                yield from self._walk_file(file, max(0, begin - file.start), stop - file.start)

    def _walk_file(self, file: RowFile, at: int, stop: int) -> Iterator[LogStretch | Gap]:
        view = self._files.view(file)
        is_last = self.end <= file.end
        end = min(len(view), stop)
        limit = min(len(view), self.end - file.start) if is_last else len(view)
        if 0 < at < end:
            at = self._aligned(view, file, at, limit)
        while at < end:
            stretch, at = read_stretch(file, view, at, limit, self._stretch_bytes)
            if stretch is not None:
                yield _cut(stretch, end)
                continue
            if _is_blank(view, at):
                yield Gap(file.start + at, file.end, "blank", "closes the file")
                return
            following = next_sound(view, file.start, at + 1, limit)
            reached = limit if following is None else following
            yield Gap(file.start + at, file.start + reached, "damaged", why(view, at))
            at = reached

    def _aligned(self, view: memoryview, file: RowFile, at: int, limit: int) -> int:
        """Return AT if a record or a blank begins there, the next valid record otherwise."""
        if _is_blank(view, at) or _is_sound(view, file.start, at):
            return at
        limit = min(limit, self._files.data_end(file))  # After a blank, a gigabyte may be a hole.
        following = next_sound(view, file.start, at, limit)
        if following is not None:
            return following
        # Only the closing blank may follow: walk to it from the last record before it.
        return _last_end(view, file.start, 0, limit) if limit else at

    def first(self) -> LogStretch | None:
        """Return the first valid record, alone; None for a log without any."""
        for file in self.used:
            view = self._files.view(file)
            found = next_sound(view, file.start, 0, self._files.data_end(file))
            if found is not None:
                return one_record(file, view, found)
        return None

    def last(
        self, count: int, chosen: Callable[[LogStretch], NDArray[np.intp]] | None = None
    ) -> int:
        """Return the log offset of the COUNTth record from the end; `begin` if there are fewer.

        CHOSEN selects the rows of a stretch that are counted; None: all.
        """
        size, end = 64 << 10, self.records_end
        while True:
            begin = max(self.begin, end - size)
            parts = [part for part in self.walk(begin) if isinstance(part, LogStretch)]
            found = [
                part.offsets if chosen is None else part.offsets[chosen(part)] for part in parts
            ]
            offsets = np.concatenate([np.empty(0, np.int64), *found])
            if len(offsets) >= count:
                return int(offsets[-count])
            if begin == self.begin:
                return begin
            size *= 4

    def at_time(self, time_ms: int) -> int:
        """Return the log offset of the first record stored at TIME_MS or later; the log's end if there is none.

        Store times normally do not decrease along the log. Where they do, one of several possible places is returned.
        """
        chosen = self.begin
        for file in self.used:
            view = self._files.view(file)
            found = next_sound(view, file.start, 0, min(len(view), _UNUSED_BYTES))
            if found is not None and _store_ms(view, found) >= time_ms:
                break
            chosen = file.start
        file_at = self.row.at(chosen)
        if file_at is None:
            return self.end
        view = self._files.view(file_at)
        limit = min(len(view), self.end - file_at.start)
        start = _halve(
            view, file_at.start, 0, limit, lambda found: _store_ms(view, found) < time_ms
        )
        for part in self.walk(file_at.start + start):
            if isinstance(part, LogStretch):
                late = np.flatnonzero(part.columns.store_ms >= time_ms)
                if len(late):
                    return int(part.offsets[late[0]])
        return self.end

    def sound(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each of OFFSETS whether a valid record is there."""
        found = np.zeros(len(offsets), np.bool_)
        for file in self.used:
            rows = np.flatnonzero((offsets >= file.start) & (offsets < file.end))
            if len(rows):
                columns = parse_run(self._files.view(file), offsets[rows] - file.start)
                found[rows] = columns.well_formed & (columns.log_offset == offsets[rows])
        return found

    @property
    def has_stale_tail(self) -> bool:
        """Is there an old record after the log's end that RocketMQ's broker would use?"""
        file = self.row.at(self.end)
        if file is None:
            return False
        view = self._files.view(file)
        return bool(one_record(file, view, self.end - file.start).columns.well_formed[0])


def read_stretch(
    file: RowFile, view: memoryview, at: int, limit: int, size: int
) -> tuple[LogStretch | None, int]:
    """Return the records within SIZE bytes from position AT of FILE, below LIMIT, and their end.

    A larger record is returned alone; None if there is none.
    """
    starts, end = walk(view, at, min(limit, at + size))
    if not len(starts) and at + size < limit:
        starts, end = walk(view, at, min(limit, at + RECORD_SIZE_MAX + size))
    if not len(starts):
        return None, at
    columns = parse_run(view, starts)
    if not columns.well_formed.all():
        count = int(columns.well_formed.argmin())
        end = int(starts[count])
        columns = columns.take(slice(0, count))
    return (LogStretch(file, view, columns) if len(columns) else None), end


def one_record(file: RowFile, view: memoryview, at: int) -> LogStretch:
    """Return the bytes at position AT of FILE as a record; `well_formed` is whether it is one."""
    return LogStretch(file, view, parse_run(view, np.array([at], np.int64)))


def next_sound(view: memoryview, start: int, at: int, end: int) -> int | None:
    """Return the position from AT on of the next valid record in VIEW, a file that begins at START; None if none."""
    position = at + MAGIC_AT
    while (match := MAGIC_PATTERN.search(view, position, max(position, end))) is not None:
        found = match.start() - MAGIC_AT
        if _is_sound(view, start, found):
            return found
        position = match.start() + 1
    return None


def _is_sound(view: memoryview, start: int, at: int) -> bool:
    return placed_record(view, at, start + at, end=len(view)) is not None


def _is_blank(view: memoryview, at: int) -> bool:
    return is_blank(view, at, len(view) - at)


def _cut(stretch: LogStretch, end: int) -> LogStretch:
    """Return STRETCH without the records that begin at position END or after it."""
    inside = int(np.searchsorted(stretch.columns.starts, end))
    if inside == len(stretch.columns):
        return stretch
    return LogStretch(stretch.file, stretch.view, stretch.columns.take(slice(0, inside)))


def _halve(
    view: memoryview, start: int, low: int, high: int, goes_on: Callable[[int], bool]
) -> int:
    """Return a position near the last valid record for which GOES_ON holds; it holds for all earlier records."""
    while high - low > 2 * RECORD_SIZE_MAX:
        middle = (low + high) // 2
        found = next_sound(view, start, middle, min(high, middle + 2 * RECORD_SIZE_MAX))
        if found is not None and goes_on(found):
            low = found
        else:
            high = middle
    return low


def _last_end(view: memoryview, start: int, first: int, end: int) -> int:
    """Return the end of the last valid record in VIEW that begins in [FIRST, END)."""
    at = _halve(view, start, first, end, lambda _: True)
    reached = first
    while True:
        starts, stop = walk(view, at)
        columns = parse_run(view, starts)
        if not columns.well_formed.all():
            stop = int(starts[int(columns.well_formed.argmin())])
        sound = (columns.log_offset == starts + start) & (starts < stop)
        if sound.any():
            row = int(np.flatnonzero(sound)[-1])
            reached = int(starts[row]) + int(columns.sizes[row])
        following = next_sound(view, start, max(stop, at + 1), end)
        if following is None:
            return reached
        at = following


def _store_ms(view: memoryview, at: int) -> int:
    return int(parse_run(view, np.array([at], np.int64)).store_ms[0])


def why(view: memoryview, at: int) -> str:
    """Return why the bytes at AT are not a record."""
    if at + BLANK_SIZE > len(view):
        return "the file ends"
    size, magic = size_and_magic(view, at)
    if not size and not magic:
        return "zeros"
    return no_record(size, magic)
