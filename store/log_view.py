"""The commit log as it lies: walked over all its files (`LogWalk`), or read in ranges of one file (`LogRange`).

A record is *sound* if its lengths agree and it says that it stands where it stands; whether its body fits its CRC is
for those to look at who want it. Nothing is written, and a live broker may append meanwhile.

`LogWalk` is for local files, which it maps. It yields stretches of records, and what stands between them: a record
begins a stretch if its lengths agree; what it says of its own place may contradict (`displaced`). Behind something that
is no record, reading goes on at the next sound one. The log ends in its last file that holds records, where no sound
record follows. Cost: some 0.2 µs a record; a stretch has STRETCH_BYTES at most, so that memory is bounded and progress
can be told.

`LogRange` is for any disk, and for work that is cut among tasks. A range may begin at any byte and end at any byte: it
owns the records that *begin* inside it. If it begins where the file does, reading starts there; anywhere else it starts
at the first sound record (format/log_and_queues.py). So a file can be cut into ranges that together give every record
once. Damage is what lies between two sound records, or between the last one and the end. It belongs to the range that
owns the record in front of it, so it, too, is told once. The zeros behind the last record, and the blank that closes a
file, are no damage; neither is a record that was cut short at the very end of the log: a writer may just be at it.
Memory: one window of some MiB, or the largest record; RECORD_BYTES_MAX is the most that is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ..proto.record_run import LEAST_SIZE, Bytes, RunColumns, as_bytes, parse_run, walk
from ..proto.topics import RECORD_SIZE_MAX
from .disk import Disk
from .format.log_and_queues import (
    BLANK_SIZE,
    HEAD_BYTES,
    MAGIC_AT,
    MAGIC_PATTERN,
    find_run,
    is_blank,
    no_record,
    placed_record,
    placed_starts,
    size_and_magic,
)
from .listing import RowFile, zeros_from
from .view import StoreView

STRETCH_BYTES: Final = 4 << 20
#: A file that has no record in its first bytes is one that was made ahead of need.
_UNUSED_BYTES: Final = 8 << 20
#: What is read and parsed at a time: it should fit the processor's cache.
WINDOW_BYTES: Final = 1 << 20
#: Apache's limit is 4 MiB for a body unless it is configured; a size above this is damage.
RECORD_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class LogStretch:
    """Records end to end in one file; positions in COLUMNS count from the file's beginning."""

    file: RowFile
    view: memoryview
    columns: RunColumns

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each record stands in the log."""
        return self.columns.starts + self.file.start

    @property
    def displaced(self) -> NDArray[np.bool_]:
        """Which records say that they stand elsewhere."""
        wrong: NDArray[np.bool_] = self.columns.log_offset != self.offsets
        return wrong


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes [START, END) of the log without a record. `blank`: what closes a file; `damaged`; `missing`: no file."""

    start: int
    end: int
    kind: Literal["blank", "damaged", "missing"]
    why: str


class LogWalk:
    """The log of FILES, as its files were when this was made.

    KNOWN_END is where it ended when it was last seen. A stretch has some STRETCH_BYTES at most.
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
        """The files up to the last one that holds a record."""
        return tuple(file for file in self.row.files if file.start < max(self.end, 1))

    @property
    def end(self) -> int:
        """Where the log ends, with the blank that may close its last file."""
        return self._found_ends()[1]

    @property
    def records_end(self) -> int:
        """Where the log's last sound record ends; found by halving the last file, not by walking it."""
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

    # --- walking -------------------------------------------------------------------------------------------------

    def walk(self, begin: int, end: int | None = None) -> Iterator[LogStretch | Gap]:
        """Yield what stands in [BEGIN, END) (END None: to the log's end), in order.

        A BEGIN within a record begins at the next one.
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
        """Return AT if a record or a blank begins there, the next sound record otherwise."""
        if _is_blank(view, at) or _is_sound(view, file.start, at):
            return at
        limit = min(limit, self._files.data_end(file))  # Behind a blank a gigabyte may be a hole.
        following = next_sound(view, file.start, at, limit)
        if following is not None:
            return following
        # Nothing but the closing blank may follow: walk to it from the last record in front.
        return _last_end(view, file.start, 0, limit) if limit else at

    # --- finding -------------------------------------------------------------------------------------------------

    def first(self) -> LogStretch | None:
        """Return the first sound record, alone; None for a log without any."""
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

        CHOSEN tells which rows of a stretch count; None: all.
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

        Store times do not fall along the log; where they do, one of the places at which they pass is found.
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
        """Tell for each of OFFSETS whether a sound record stands there."""
        found = np.zeros(len(offsets), np.bool_)
        for file in self.used:
            rows = np.flatnonzero((offsets >= file.start) & (offsets < file.end))
            if len(rows):
                columns = parse_run(self._files.view(file), offsets[rows] - file.start)
                found[rows] = columns.well_formed & (columns.log_offset == offsets[rows])
        return found

    @property
    def has_stale_tail(self) -> bool:
        """Do bytes of an earlier life stand behind the log's end, which Apache's broker takes for a record?"""
        file = self.row.at(self.end)
        if file is None:
            return False
        view = self._files.view(file)
        return bool(one_record(file, view, self.end - file.start).columns.well_formed[0])


def read_stretch(
    file: RowFile, view: memoryview, at: int, limit: int, size: int
) -> tuple[LogStretch | None, int]:
    """Return the records within SIZE bytes from position AT of FILE, below LIMIT, and where they end.

    A record that is larger comes alone; None if there is none.
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
    """Return what stands at position AT of FILE as a record; `well_formed` tells whether it is one."""
    return LogStretch(file, view, parse_run(view, np.array([at], np.int64)))


def next_sound(view: memoryview, start: int, at: int, end: int) -> int | None:
    """Return the position from AT on of the next sound record in VIEW, a file that begins at START; None if none."""
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
    """Return STRETCH without the records that begin at position END or behind it."""
    inside = int(np.searchsorted(stretch.columns.starts, end))
    if inside == len(stretch.columns):
        return stretch
    return LogStretch(stretch.file, stretch.view, stretch.columns.take(slice(0, inside)))


def _halve(
    view: memoryview, start: int, low: int, high: int, goes_on: Callable[[int], bool]
) -> int:
    """Return a position near the last sound record for which GOES_ON holds; it holds for all in front of it."""
    while high - low > 2 * RECORD_SIZE_MAX:
        middle = (low + high) // 2
        found = next_sound(view, start, middle, min(high, middle + 2 * RECORD_SIZE_MAX))
        if found is not None and goes_on(found):
            low = found
        else:
            high = middle
    return low


def _last_end(view: memoryview, start: int, first: int, end: int) -> int:
    """Return where the last sound record ends in VIEW that begins in [FIRST, END)."""
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
    """Return what is wrong with the bytes at AT, where no record stands."""
    if at + BLANK_SIZE > len(view):
        return "the file ends"
    size, magic = size_and_magic(view, at)
    if not size and not magic:
        return "zeros"
    return no_record(size, magic)


_NO_RECORDS: Final = parse_run(b"", np.zeros(0, np.int64))


# ---------------------------------------------------------------- ranges of a file


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Bytes [START, END) of the log, in the file PATH, that hold no sound record."""

    path: str
    start: int
    end: int
    why: str

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """Sound records: COLUMNS, whose places count in DATA, whose first byte stands at BASE of the log."""

    data: Bytes
    base: int
    columns: RunColumns


class LogRange:
    """The bytes [BEGIN, END) of FILE; nothing from LIMIT on is looked at. All count from the beginning of the log."""

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
        """Yield what the range holds, in order. FileNotFoundError if the file is gone."""
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
        """Return where the last record of FOUND that begins inside the range ends."""
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
        """Return the first sound records from AT on, as many as a window holds; None if no more follow."""
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
        """Return start and size of the first record in DATA that may be whole with more bytes behind it."""
        for start in placed_starts(data, at).tolist():
            size, _ = size_and_magic(data.data, start)
            fits = size <= RECORD_BYTES_MAX and at + start + size <= self._limit
            if start + size > len(data) and fits:
                return start, size
        return None

    def _read(self, at: int, size: int) -> Bytes:
        size = min(size, self._limit - at)
        return as_bytes(self._disk.read_at(self._file.path, at - self._file.start, size))

    # --- what is no record ---------------------------------------------------------------------------------------

    def _is_over(self, at: int, follows: bool) -> bool:
        """Does the log, or the file's part of it, end at AT, behind a record?"""
        if not follows:
            return False
        if self._file.end - at < BLANK_SIZE:
            return True
        head = self._disk.read_at(self._file.path, at - self._file.start, BLANK_SIZE)
        return len(head) < BLANK_SIZE or is_blank(head, 0, self._file.end - at)

    def _tail(self, at: int) -> Iterator[LogDamage]:
        """Yield the rest of the file from AT on, behind which no record stands; nothing if all of it is zero."""
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
    """Return FILES up to the last one that holds a record, and where that record ends; 0 without files.

    A broker makes the next file, and the one behind it, before it needs them. At KNOWN, if that is in a file, stands a
    record: what lies before it in its file is not looked at.
    """
    for count in range(len(files), 0, -1):
        last = files[count - 1]
        end = log_end(disk, last, known if last.start <= known < last.end else None)
        if end > last.start or count == 1:
            return list(files[:count]), end
    return [], 0


def log_end(disk: Disk, file: RowFile, begin: int | None = None) -> int:
    """Return where the last sound record of FILE, behind which none has any, ends; its beginning without records.

    With BEGIN, where a record stands, what lies before it is not looked at. What lies behind damage and is older than
    what lies in front of it is a rest of an earlier life of the file.
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
