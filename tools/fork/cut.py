"""The cut of a store at a moment: the end of its log at that time, and the rows of files up to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...proto.record_run import parse_run
from ...store.apache.settings import ApacheSettings
from ...store.disk import Disk
from ...store.files import MappedFile, file_name
from ...store.format.index import HEADER_SIZE, IndexHeader
from ...store.format.queues import BATCH_ENTRY, ENTRY, leading
from ...store.format.rows import RowFormat
from ...store.os_disk import OsDisk
from ...store.recovery.scan import FileScan
from .skeleton import Copied, copy_rows, row_folders

#: Far behind any time of a record.
END_OF_TIME_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Cut:
    """The log up to LOG_OFFSET is what was stored at TIME_MS or before.

    last_offset, last_ms: log offset and store time of the last record before it (−1, 0: there is none);
    is_end: nothing in the log is after it.
    """

    time_ms: int
    log_offset: int
    last_offset: int
    last_ms: int
    is_end: bool


def find_cut(disk: Disk, log_folder: str, time_ms: int) -> Cut:
    """Return the cut at TIME_MS of the log in LOG_FOLDER on DISK.

    By halving over the files, then by the records of one. Store times never fall along a log, but where a clock was
    set back: then everything from the first later record of that file on is left out.
    """
    files = _files_before(disk, log_folder)
    if not files:
        return Cut(time_ms, 0, -1, 0, is_end=True)
    low, high = 0, len(files)
    while low < high:
        middle = (low + high) // 2
        first_ms = _first_ms(files[middle])
        if first_ms is not None and first_ms <= time_ms:
            low = middle + 1
        else:
            high = middle
    if not low:
        return Cut(time_ms, files[0].start, -1, 0, is_end=_first_ms(files[0]) is None)
    return _cut_in(files, low - 1, time_ms)


def _cut_in(files: list[MappedFile], number: int, time_ms: int) -> Cut:
    """Return the cut, which is in the file NUMBER or at its end."""
    file = files[number]
    scanned = FileScan(file, check_crc=False, oldest_ms=0).scan()
    times = scanned.columns.store_ms
    late = np.flatnonzero(times > time_ms)
    if len(late):
        row = int(late[0])
        offset = int(scanned.log_offsets[row])
    else:
        row = len(scanned)
        offset = file.end if scanned.has_blank else file.start + scanned.end
    last_offset = int(scanned.log_offsets[row - 1]) if row else -1
    last_ms = int(times[:row].max()) if row else 0
    later = any(_first_ms(other) is not None for other in files[number + 1 :])
    return Cut(time_ms, offset, last_offset, last_ms, is_end=not len(late) and not later)


def _first_ms(file: MappedFile) -> int | None:
    """Return the store time of the first valid record of FILE; None if it has none."""
    columns = parse_run(file.view, np.zeros(1, np.int64))
    if columns.well_formed[0] and int(columns.log_offset[0]) == file.start:
        return int(columns.store_ms[0])
    times = FileScan(file, check_crc=False, oldest_ms=0).scan().columns.store_ms
    return int(times[0]) if len(times) else None


def _files_before(disk: Disk, folder: str) -> list[MappedFile]:
    """Return the files of the log that are as long as most of them."""
    entries = [
        entry
        for entry in disk.list(folder)
        if not entry.is_folder and entry.size and entry.name.isascii() and entry.name.isdigit()
    ]
    return [
        MappedFile(
            disk, os.path.join(folder, entry.name), int(entry.name), entry.size, create=False
        )
        for entry in entries
    ]


class CutRows:
    """Copies the rows of SOURCE to TARGET, up to log offset END. DISK reads SOURCE."""

    def __init__(
        self, disk: Disk, source: str, target: str, settings: ApacheSettings, end: int
    ) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._settings = settings
        self._end = end

    def copy(self, copied: Copied) -> None:
        """Take over log, queues and index."""
        self._copy_log(copied)
        for kind, entry_format in (
            ("consumequeue", ENTRY),
            ("batchconsumequeue", BATCH_ENTRY),
        ):
            for folder, names in row_folders(os.path.join(self._source, kind)):
                self._copy_queue(copied, folder, names, entry_format)
        self._copy_index(copied)

    def copy_others(self, copied: Copied) -> None:
        """Take over the rows that no cut is known for."""
        copy_rows(self._source, self._target, copied, only=("consumequeue_ext",))

    def _place(self, path: str) -> str:
        return os.path.join(self._target, os.path.relpath(path, self._source))

    def _copy_log(self, copied: Copied) -> None:
        for folder, names in row_folders(os.path.join(self._source, "commitlog")):
            for name in names:
                path = os.path.join(folder, name)
                if not name.isdigit() or int(name) >= self._end:
                    continue
                if int(name) + self._settings.log_file_size <= self._end:
                    copied.link(path, self._place(path))
                else:
                    copied.copy(path, self._place(path), self._end - int(name))
            self._make_next_file(folder)

    def _make_next_file(self, folder: str) -> None:
        """Let the log continue in a file of its own if the cut is between two: nothing is written to the one before."""
        path = self._place(os.path.join(folder, file_name(self._end)))
        if self._end % self._settings.log_file_size == 0 and not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            OsDisk().open_map(path, size=self._settings.log_file_size, create=True).close()

    def _copy_queue(
        self, copied: Copied, folder: str, names: Sequence[str], entry_format: RowFormat
    ) -> None:
        """Take over the files of one queue up to the first entry after the cut.

        A queue that held nothing by then keeps its first file, empty, if it does not begin at 0: so its numbers
        continue.
        """
        paths = [os.path.join(folder, name) for name in names if name.isdigit()]
        for number in range(len(paths) - 1, -1, -1):
            used = self._used(paths[number], entry_format)
            if not used and (number or not int(os.path.basename(paths[0]))):
                continue
            for path in paths[:number]:
                copied.link(path, self._place(path))
            copied.copy(paths[number], self._place(paths[number]), used)
            return

    def _used(self, path: str, entry_format: RowFormat) -> int:
        """Return how many bytes of the queue file PATH hold entries before the cut."""
        size = entry_format.size
        if not self._places_before(self._disk.read_at(path, 0, size), entry_format):
            return 0
        mapping = self._disk.open_map(path, writable=False)
        count = -(-mapping.data_end(0, mapping.size) // size)
        data = mapping.read(0, min(count, mapping.size // size) * size)
        mapping.close()
        return size * self._places_before(data, entry_format)

    def _places_before(self, data: bytes, entry_format: RowFormat) -> int:
        """Return how many entries at the beginning of DATA point before the cut."""
        entries = entry_format.columns(data)
        offsets = entries["log_offset"]
        good = (offsets >= 0) & (offsets < self._end) & (entries["size"] > 0)
        return leading(good)

    def _copy_index(self, copied: Copied) -> None:
        for folder, names in row_folders(os.path.join(self._source, "index")):
            for name in names:
                path = os.path.join(folder, name)
                data = self._disk.read_at(path, 0, HEADER_SIZE)
                if len(data) < HEADER_SIZE:
                    continue
                header = IndexHeader.parse(data)
                if header.next_entry > 1 and header.begin_log_offset >= self._end:
                    continue
                full = header.next_entry >= self._settings.index_entries
                if full and header.end_log_offset < self._end and name != names[-1]:
                    copied.link(path, self._place(path))
                else:
                    copied.copy(path, self._place(path))
