"""The timer files of a live store: the wheel, its slots in memory, and the files of the timer log.

Formats: format/timer_wheel.py, format/timer_log.py. The wheel has pages of 4 KiB (128 slots). A page is read when one
of its slots is first needed, and written back by `write_dirty` through the descriptor, so that a full disk raises
StoreFull. Opening reads the allocated parts of the file once, and keeps the pages of pending slots.

Memory: 32 bytes per slot in used pages (2.8 MB per day with slots of one second, up to 38.7 MB), plus 1.2 MB with one
byte per slot, so that finding the next pending slot is a search for a byte.

Pending slots have a time of at least `read_time`, within less than a turn of the wheel. All times here are in units of
the precision. Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import Longs, as_bytes
from ..disk import Buffer, Disk, Mapping
from ..files import MappedFile, MappedFiles, Syncable, bytes_of
from ..format.rows import Rows
from ..format.timer_log import BLANK_SIZE, NONE, RECORD, RECORD_SIZE, blank, sound_rows
from ..format.timer_wheel import SLOT, SLOT_SIZE, SLOTS, WHEEL_SIZE

PAGE_SIZE: Final = 4096
_PAGE_SLOTS: Final = PAGE_SIZE // SLOT_SIZE
_PAGES: Final = WHEEL_SIZE // PAGE_SIZE
_CHUNK_PAGES: Final = 16
_USED: Final = b"\1"
_UNTOUCHED, _READ, _DIRTY = 0, 1, 2

Found = tuple[int, int, int]


class TimerRing:
    """The wheel in the file PATH, created by `create`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._mapping: Mapping | None = None
        self._rows = SLOT.zeros(SLOTS)  # Pages of zeros take no memory until they are touched.
        self._data = bytes_of(self._rows)
        self._pages = bytearray(_PAGES)
        self._page_states = as_bytes(self._pages)
        self._used = bytearray(SLOTS)
        self._used_flags = as_bytes(self._used)
        #: Slots of an earlier time are not pending.
        self.read_time = 0
        #: The sum of the pending slots' counts.
        self.pending = 0

    @property
    def is_open(self) -> bool:
        return self._mapping is not None

    def create(self) -> None:
        """Open the file; create or lengthen it if it is missing or short; cut it if it is longer."""
        if self._mapping is not None:
            return
        if self._disk.exists(self._path) and self._disk.size(self._path) > WHEEL_SIZE:
            self._disk.truncate(self._path, WHEEL_SIZE)
        self._mapping = self._disk.open_map(self._path, size=WHEEL_SIZE, create=True)
        self._disk.sync_folder(os.path.dirname(self._path))

    def begin(self, read_time: int) -> None:
        """Begin without a file: nothing is pending, and slots from READ_TIME on can be used."""
        self.read_time = read_time

    def load(self, read_time: int) -> None:
        """Read the file: slots from READ_TIME (at least 1) on are pending."""
        assert self._mapping is not None, "opened before"
        assert read_time > 0, "an unused slot has the time 0"
        self.read_time = read_time
        size = _CHUNK_PAGES * PAGE_SIZE
        for at in range(0, WHEEL_SIZE, size):
            end = min(at + size, WHEEL_SIZE)
            if self._mapping.data_end(at, end) > at:
                self._load_chunk(at, self._mapping.read(at, end - at))

    def _load_chunk(self, at: int, data: bytes) -> None:
        rows = SLOT.columns(data)
        numbers = np.arange(at // SLOT_SIZE, at // SLOT_SIZE + len(rows))
        times = rows["time"].astype(np.int64)
        pending = (times >= self.read_time) & (times < self.read_time + SLOTS)
        pending &= times % SLOTS == numbers
        if not pending.any():
            return
        self._used_flags[numbers[pending]] = 1
        self.pending += int(rows["count"][pending].sum(dtype=np.int64))
        for page in np.unique(numbers[pending] // _PAGE_SLOTS).tolist():
            start = page * PAGE_SIZE
            self._data[start : start + PAGE_SIZE] = data[start - at : start - at + PAGE_SIZE]
            self._pages[page] = _READ

    def clear(self) -> None:
        """Empty every slot, in memory and in the file."""
        assert self._mapping is not None, "opened before"
        self._mapping.zero(0, WHEEL_SIZE)
        for page in np.flatnonzero(self._page_states).tolist():
            self._data[page * PAGE_SIZE : (page + 1) * PAGE_SIZE] = bytes(PAGE_SIZE)
        self._page_states[:] = _UNTOUCHED
        self._used[:] = bytes(SLOTS)
        self.pending = 0

    def write_dirty(self) -> int:
        """Write changes to the file; return the number of pages. StoreFull or DiskFailure leave the rest as changed."""
        dirty = np.flatnonzero(self._page_states == _DIRTY)
        if not len(dirty):
            return 0
        assert self._mapping is not None, "opened before anything changed"
        for run in np.split(dirty, np.flatnonzero(np.diff(dirty) > 1) + 1):
            start, end = int(run[0]), int(run[-1]) + 1
            data = self._data[start * PAGE_SIZE : end * PAGE_SIZE]
            self._mapping.write(start * PAGE_SIZE, data)
            self._page_states[start:end] = _READ
        return len(dirty)

    def sync(self) -> None:
        """Sync the file. Thread-safe."""
        if self._mapping is not None:
            self._mapping.sync()

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None

    def _touch(self, page: int, state: int) -> None:
        if self._pages[page] == _UNTOUCHED and self._mapping is not None:
            start = page * PAGE_SIZE
            if self._mapping.data_end(start, start + PAGE_SIZE) > start:
                self._data[start : start + PAGE_SIZE] = self._mapping.read(start, PAGE_SIZE)
        self._pages[page] = max(self._pages[page], state)

    @property
    def end_time(self) -> int:
        """Slots of this time or later cannot be used: they would be a pending one's, or the one before the first."""
        return self.read_time + SLOTS - 1

    def get(self, time: int) -> Found | None:
        """Return first position, newest position and count of the slot of TIME; None for an empty one."""
        number = time % SLOTS
        self._touch(number // _PAGE_SLOTS, _READ)
        found, first, last, count, _ = SLOT.read(self._data, number * SLOT_SIZE)
        return (first, last, count) if found == time and found else None

    def put(self, time: int, first: int, last: int, count: int) -> None:
        """Fill the slot of TIME; one before `read_time` does not count as pending."""
        number = time % SLOTS
        self._touch(number // _PAGE_SLOTS, _DIRTY)
        if time >= self.read_time:
            known = self.get(time) if self._used[number] else None
            self.pending += count - (known[2] if known else 0)
            self._used[number] = 1
        SLOT.write(self._data, number * SLOT_SIZE, time, first, last, count, 0)

    def get_many(self, times: Longs) -> tuple[Longs, Longs, Longs]:
        """Return first, newest and count of each of the slots of TIMES; −1, −1, 0 for an empty one."""
        numbers = times % SLOTS
        self._touch_many(numbers, _READ)
        rows = self._rows[numbers]
        same = rows["time"] == times
        return (
            np.where(same, rows["first"], NONE).astype(np.int64),
            np.where(same, rows["last"], NONE).astype(np.int64),
            np.where(same, rows["count"], 0).astype(np.int64),
        )

    def put_many(self, times: Longs, firsts: Longs, lasts: Longs, counts: Longs) -> None:
        """Fill the slots of TIMES, all different and pending."""
        before = self.get_many(times)[2]
        numbers = times % SLOTS
        self._touch_many(numbers, _DIRTY)
        for name, values in (("time", times), ("first", firsts), ("last", lasts)):
            self._rows[name][numbers] = values
        self._rows["count"][numbers] = counts
        self._used_flags[numbers] = 1
        self.pending += int((counts - before).sum())

    def _touch_many(self, numbers: Longs, state: int) -> None:
        pages = numbers // _PAGE_SLOTS
        if (self._page_states[pages] < state).any():
            for page in np.unique(pages).tolist():
                self._touch(page, state)

    def empty(self, time: int) -> None:
        """Make the slot of TIME an unused one."""
        number = time % SLOTS
        found = self.get(time)
        if found is not None:
            self._touch(number // _PAGE_SLOTS, _DIRTY)
            self._data[number * SLOT_SIZE : (number + 1) * SLOT_SIZE] = bytes(SLOT_SIZE)
            if self._used[number]:
                self.pending -= found[2]
                self._used[number] = 0

    def next_time(self, time: int) -> int | None:
        """Return the time of the first pending slot from TIME on; takes about 0.1 ms if there is none."""
        time = max(time, self.read_time)
        if time >= self.read_time + SLOTS:
            return None
        number, begin = time % SLOTS, self.read_time % SLOTS
        end = begin if number < begin else SLOTS
        found = self._used.find(_USED, number, end)
        if found < 0 and number >= begin:
            found = self._used.find(_USED, 0, begin)
        return None if found < 0 else time + (found - number) % SLOTS

    def pass_to(self, time: int) -> int:
        """Make TIME the read time: earlier slots are not pending any more; return how many were."""
        passed, at = 0, self.read_time
        while (found := self.next_time(at)) is not None and found < time:
            slot = self.get(found)
            self.pending -= slot[2] if slot else 0
            self._used[found % SLOTS] = 0
            passed, at = passed + 1, found + 1
        self.read_time = time
        return passed

    def pending_times(self) -> Longs:
        """Return the times of all pending slots, ascending."""
        numbers = np.flatnonzero(self._used_flags)
        times = self.read_time + (numbers - self.read_time) % SLOTS
        found: NDArray[np.int64] = np.sort(times).astype(np.int64)
        return found


class TimerLog:
    """The sequence of timer log files in FOLDER.

    min_offset: start of the first file;  max_offset: position of the next record, unless a blank precedes it.
    """

    def __init__(self, disk: Disk, folder: str, file_size: int) -> None:
        self.files = MappedFiles.load(disk, folder, file_size, what="timer log")
        self.file_records = (file_size - BLANK_SIZE) // RECORD_SIZE

    @property
    def min_offset(self) -> int:
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        return self.files.max_offset

    def places(self, count: int) -> list[tuple[int, int]]:
        """Return the places of COUNT new records: position of the first and number, for each file they use."""
        last = self.files.last
        at = end = fits = 0
        if last is not None:
            at, end, fits = self.max_offset, last.end, max(0, last.room - BLANK_SIZE) // RECORD_SIZE
        found: list[tuple[int, int]] = []
        while count:
            if fits:
                found.append((at, min(fits, count)))
                count -= found[-1][1]
            at, end, fits = end, end + self.files.file_size, self.file_records
        return found

    def append(self, data: Buffer, places: list[tuple[int, int]]) -> None:
        """Append DATA, complete records, at PLACES; if it raises StoreFull, nothing was appended."""
        end = self.max_offset
        rest = memoryview(data)
        try:
            for at, count in places:
                file = self._file_for(at)
                file.append(rest[: count * RECORD_SIZE])
                rest = rest[count * RECORD_SIZE :]
        except BaseException:
            self.files.truncate(end)
            raise

    def _file_for(self, at: int) -> MappedFile:
        """Return the last file with its position at AT; close the previous one with a blank if needed."""
        last = self.files.last
        if last is None or not last.room or last.start + last.position != at:
            if last is not None and last.room >= BLANK_SIZE:
                last.append(blank(last.room))
            last = self.files.roll()
        return last

    def file_rows(self, file: MappedFile) -> Rows:
        """Return the records of FILE up to its position, without a copy; a blank may be the last."""
        count = min(file.position // RECORD_SIZE, self.file_records)
        return RECORD.columns(file.view, count)

    def rows_at(self, positions: Longs) -> Rows:
        """Return the records at POSITIONS of the log, in the same order."""
        rows = RECORD.zeros(len(positions))
        for file in self.files.files:
            inside = (positions >= file.start) & (positions < file.start + file.position)
            if inside.any():
                rows[inside] = self.file_rows(file)[(positions[inside] - file.start) // RECORD_SIZE]
        return rows

    def holds(self, position: int) -> bool:
        """Return whether POSITION is a possible position of a record."""
        file = self.files.file_at(position)
        if file is None or (position - file.start) % RECORD_SIZE:
            return False
        return position - file.start + RECORD_SIZE <= file.position

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files all of whose messages are before MIN_LOG_OFFSET; return how many.

        RocketMQ's rule checks only the last record of a file. That rule applies here, too, except for files with
        rewritten records out of order: they stay until the last of their messages is deleted.
        """
        gone = 0
        for file in self.files.files[:-1]:
            rows = self.file_rows(file)
            last = rows[-1:]
            if not sound_rows(last).all() or int(last["log_offset"][0]) >= min_log_offset:
                break
            if int(rows["log_offset"].max()) >= min_log_offset:
                break
            gone += 1
        return self.files.delete_leading(gone)

    def take_dirty(self) -> list[Syncable]:
        """Return what must be synced so that everything up to `max_offset` is on disk."""
        return self.files.take_dirty()

    def close(self) -> None:
        self.files.close()
