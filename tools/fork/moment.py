"""Where the log of a store stands at a moment: the cut between what was stored by then and what came later."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...proto.record_run import parse_run
from ...store.disk import Disk
from ...store.files import MappedFile
from ...store.recovery.scan import FileScan

#: Far behind any time of a record.
END_OF_TIME_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Cut:
    """The log up to LOG_OFFSET is what was stored at TIME_MS or before.

    last_offset, last_ms: log offset and store time of the last record before it (−1, 0: there is none);
    is_end: nothing in the log lies behind it.
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
    files = _files(disk, log_folder)
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
    """Return the cut, which lies in the file NUMBER or at its end."""
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
    """Return the store time of the first sound record of FILE; None if it has none."""
    columns = parse_run(file.view, np.zeros(1, np.int64))
    if columns.well_formed[0] and int(columns.log_offset[0]) == file.start:
        return int(columns.store_ms[0])
    times = FileScan(file, check_crc=False, oldest_ms=0).scan().columns.store_ms
    return int(times[0]) if len(times) else None


def _files(disk: Disk, folder: str) -> list[MappedFile]:
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
