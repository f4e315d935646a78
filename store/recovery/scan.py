"""Reads a log file from record to record: finds valid records, and the damage between them.

A record is *valid* if its lengths are consistent, its own log offset is right, its body matches its CRC, its queue id
and queue offset are possible, and its end was written. The last check matters because a kill or a power cut during a
write leaves zeros there, and no CRC covers topic and properties.

After an invalid record, reading continues at the next valid one: a position with magic, log offset, lengths and CRC,
and a store time not older than that of the records before. So one flipped bit costs one record. No CRC covers the store
time, so the second newest one is compared. Cost for 1 KiB records: about 0.7 ms per MiB, most of it for the CRC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import (
    Longs,
    RunColumns,
    crc_mismatches,
    impossible_places,
    parse_run,
    torn,
    walk,
)
from ..files import MappedFile
from ..format.log import MAGIC_AT, MAGIC_PATTERN, is_blank, no_record, placed_record, size_and_magic

#: A record with an empty body, a topic of one character and no properties: the smallest part that can be replaced.
RECORD_SIZE_LEAST: Final = 92


#: Possible faults of a record with consistent lengths.
_FAULTS: Final = (
    "its queue id or queue offset is impossible",
    "the body does not fit its CRC",
    "the end of its topic or properties was not written",
)


@dataclass(frozen=True, slots=True)
class FileDamage:
    """Bytes [START, END) of a file without a valid record. IS_FRAMED: only the contents are wrong, not the lengths."""

    start: int
    end: int
    why: str
    is_framed: bool = False


class ScannedFile:
    """The result of scanning a file. END is the end of its valid part; HAS_BLANK is whether a blank follows.

    Its length is the number of valid records. `columns` are their fields. After `release` they are parsed again when
    needed, so that a long log takes only a few bytes per record.
    """

    __slots__ = ("_columns", "_starts", "damages", "end", "file", "has_blank", "newest_ms")

    def __init__(
        self,
        file: MappedFile,
        columns: RunColumns,
        end: int,
        has_blank: bool,
        damages: list[FileDamage],
    ) -> None:
        self.file = file
        self.end = end
        self.has_blank = has_blank
        self.damages = damages
        self._keep(columns)

    def _keep(self, columns: RunColumns) -> None:
        self._columns: RunColumns | None = columns
        self._starts = columns.starts
        #: The second highest store time (one may be damaged); 0 without records.
        self.newest_ms = _second_highest(columns.store_ms)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def columns(self) -> RunColumns:
        """The fields of the valid records; positions count from the file's beginning."""
        return parse_run(self.file.view, self._starts) if self._columns is None else self._columns

    @property
    def log_offsets(self) -> Longs:
        """Log offsets of the valid records, in order."""
        offsets: Longs = self._starts + self.file.start
        return offsets

    @property
    def last_log_offset(self) -> int:
        """Log offset of the last valid record; −1 without records."""
        return self.file.start + int(self._starts[-1]) if len(self._starts) else -1

    def release(self) -> None:
        """Drop the columns except the positions of the records."""
        self._columns = None

    def cut_to(self, end: int) -> None:
        """Set the end to END, where a record or damage begins."""
        self.end = end
        self._keep(self.columns.take(slice(0, int(np.searchsorted(self._starts, end)))))
        self.has_blank = False
        self.damages = [damage for damage in self.damages if damage.end <= self.end]


class FileScan:
    """Scans one file from position AT up to END (None: its own end). Earlier records count as read."""

    def __init__(
        self,
        file: MappedFile,
        *,
        at: int = 0,
        end: int | None = None,
        check_crc: bool,
        oldest_ms: int,
    ) -> None:
        """OLDEST_MS is the store time of the newest record before."""
        self._file = file
        self._end = file.size if end is None else end
        self._view = file.view
        self._at = at
        self._check_crc = check_crc
        self._oldest_ms = oldest_ms
        self._runs: list[RunColumns] = []
        self._damages: list[FileDamage] = []

    def scan(self) -> ScannedFile:
        """Return the result of the scan."""
        end = self._at
        has_blank = False
        while True:
            end = self._read_run(end)
            if self._is_blank(end):
                has_blank = True
                break
            following = self._next_sound(end)
            if following is None:
                break
            self._damages.append(FileDamage(end, following, self._why(end)))
            end = following
        end = self._drop_trailing_damage(end, has_blank)
        return ScannedFile(self._file, _joined(self._runs), end, has_blank, self._damages)

    def _read_run(self, at: int) -> int:
        """Read valid records from AT on; return the position of the first invalid one."""
        starts, end = walk(self._view, at, self._end)
        if not len(starts):
            return at
        columns = parse_run(self._view, starts)
        placed = columns.well_formed & (columns.log_offset == starts + self._file.start)
        if not placed.all():
            count = int(placed.argmin())
            end = int(starts[count])
            columns = columns.take(slice(0, count))
        if len(columns):
            columns = self._without_wrong(columns)
        if len(columns):
            self._runs.append(columns)
            self._oldest_ms = max(self._oldest_ms, _second_highest(columns.store_ms))
        return end

    def _without_wrong(self, columns: RunColumns) -> RunColumns:
        faults = self._faults(columns)
        wrong = np.any(faults, axis=0)
        if not wrong.any():
            return columns
        for row in np.flatnonzero(wrong).tolist():
            start = int(columns.starts[row])
            end = start + int(columns.sizes[row])
            why = _FAULTS[[bool(fault[row]) for fault in faults].index(True)]
            self._damages.append(FileDamage(start, end, why, is_framed=True))
        return columns.take(~wrong)

    def _faults(self, columns: RunColumns) -> list[NDArray[np.bool_]]:
        """Return for each of _FAULTS which of the well-formed records of COLUMNS have it."""
        impossible = impossible_places(columns)
        if not self._check_crc:
            return [impossible]
        return [impossible, crc_mismatches(self._view, columns), torn(self._view, columns)]

    def _is_blank(self, at: int) -> bool:
        return is_blank(self._view, at, self._file.size - at, end=self._end)

    def _next_sound(self, at: int) -> int | None:
        """Return the position after AT of the next valid record; None if none follows in the file."""
        end = self._file.mapping.data_end(at, self._end)
        position = at + RECORD_SIZE_LEAST + MAGIC_AT
        while (match := MAGIC_PATTERN.search(self._view, position, end)) is not None:
            found = match.start() - MAGIC_AT
            if self._is_sound(found):
                return found
            position = match.start() + 1
        return None

    def _is_sound(self, at: int) -> bool:
        columns = placed_record(self._view, at, self._file.start + at, end=self._end)
        if columns is None or int(columns.store_ms[0]) < self._oldest_ms:
            return False
        return not any(fault[0] for fault in self._faults(columns))

    def _why(self, at: int) -> str:
        size, magic = size_and_magic(self._view, at)
        columns = parse_run(self._view, np.array([at], np.int64))
        if columns.well_formed[0]:
            claimed = int(columns.log_offset[0])
            return f"the record has the log offset {claimed:,}"
        return no_record(size, magic)

    def _drop_trailing_damage(self, end: int, has_blank: bool) -> int:
        """Return the end without trailing records of wrong bodies: no valid record follows them."""
        while not has_blank and self._damages and self._damages[-1].end == end:
            end = self._damages.pop().start
        return end


def _second_highest(times: Longs) -> int:
    if not len(times):
        return 0
    return int(np.partition(times, -2)[-2]) if len(times) > 1 else int(times[0])


def _joined(runs: list[RunColumns]) -> RunColumns:
    if len(runs) == 1:
        return runs[0]
    if not runs:
        return parse_run(b"", np.zeros(0, np.int64))
    names = RunColumns.__slots__
    return RunColumns(*(np.concatenate([getattr(run, name) for run in runs]) for name in names))
