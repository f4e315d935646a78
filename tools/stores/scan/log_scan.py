"""Messages straight from the commit log: which bytes of which files are worth reading, and the rows in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....proto.record_run import RunColumns, parse_run
from ....proto.run_check import crc_mismatches
from ....store.disk import Disk
from ....store.listing import RowFile, hole_from, require_joined, row_files
from ..schemas import arrow
from .bad_records import BadRecords
from .conditions import Conditions, Span
from .log_range import WINDOW_BYTES, Damage, Found, LogRange, log_in_use
from .message_columns import MessageColumns, Refused

if TYPE_CHECKING:
    import pyarrow

#: Enough for the head of any record, between hosts of any kind.
_HEAD_BYTES: Final = 128
_MOST_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogPart:
    """The records that begin in bytes [BEGIN, END) of the log, all in FILE; nothing from LIMIT on is read."""

    file: RowFile
    begin: int
    end: int
    limit: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def split(self, size_bytes: int) -> Iterator[LogPart]:
        """Yield it in parts of about SIZE_BYTES."""
        for begin in range(self.begin, self.end, max(1, size_bytes)):
            yield replace(self, begin=begin, end=min(begin + size_bytes, self.end))


def log_parts(
    disk: Disk, folder: str, conditions: Conditions, *, fail_on_data_loss: bool
) -> list[LogPart]:
    """Return the parts of the log in FOLDER, a file each, that may hold records that meet CONDITIONS.

    The end of the log is fixed here: what a live broker appends later is not read. Raises OffsetOutOfRange where a file
    between others is missing, unless told otherwise.
    """
    files = row_files(disk, folder)
    if fail_on_data_loss:
        require_joined(files, folder)
    files, log_ends = log_in_use(disk, files)
    wanted = [file for file in files if conditions.log_offsets.meets(file.start, file.end - 1)]
    if not conditions.store_ms.is_all:
        wanted = _of_time(disk, wanted, conditions.store_ms)
    parts = []
    for file in wanted:
        limit = min(log_ends, _data_limit(disk, file))
        begin = max(file.start, conditions.log_offsets.low)
        end = min(limit, conditions.log_offsets.high + 1)
        if begin < end:
            parts.append(LogPart(file, begin, end, limit))
    return parts


def _data_limit(disk: Disk, file: RowFile) -> int:
    """Return where it is enough to end reading FILE: one that age closed is a hole behind its blank."""
    try:
        return min(file.end, hole_from(disk, file) + WINDOW_BYTES)
    except FileNotFoundError:  # A live broker's retention deleted it; reading it says so.
        return file.end


def _of_time(disk: Disk, files: Sequence[RowFile], span: Span) -> list[RowFile]:
    """Return those of FILES that may hold records stored within SPAN: store times never fall, so first records tell."""
    firsts = [store_ms_at(disk, file, file.start) for file in files]
    kept = []
    for (file, first), (_, following) in pairwise(
        [*zip(files, firsts, strict=True), (None, _MOST_MS)]
    ):
        begins = -_MOST_MS if first is None else first
        ends = _MOST_MS if following is None else following
        if file is not None and (begins > ends or span.meets(begins, ends)):
            kept.append(file)
    return kept


def store_ms_at(disk: Disk, file: RowFile, log_offset: int) -> int | None:
    """Return the store time of the record at LOG_OFFSET of FILE; None if none says that it stands there."""
    data = disk.read_at(file.path, log_offset - file.start, _HEAD_BYTES)
    if len(data) < _HEAD_BYTES:
        return None
    columns = parse_run(data, np.zeros(1, np.int64))
    return int(columns.store_ms[0]) if int(columns.log_offset[0]) == log_offset else None


class MessageRows:
    """Batches of at most ROWS_MAX rows from records that were found, and what becomes of bad ones."""

    def __init__(
        self,
        columns: MessageColumns,
        conditions: Conditions,
        bad: BadRecords,
        *,
        rows_max: int,
        check_crc: bool,
    ) -> None:
        """CHECK_CRC: is a record whose body does not fit its CRC a bad one?"""
        self._check_crc = check_crc
        self._columns = columns
        self._conditions = conditions
        self._bad = bad
        self._rows_max = rows_max
        self._shows_bad = bad.policy == "rows" and conditions == Conditions(
            log_offsets=conditions.log_offsets
        )

    def of_log(
        self, disk: Disk, part: LogPart, keep: Callable[[Found], list[bool]] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of PART that KEEP wants. FileNotFoundError if its file is gone."""
        for found in LogRange(disk, part.file, part.begin, part.end, limit=part.limit):
            if isinstance(found, Damage):
                yield from self.damaged([found])
            else:
                if keep is not None:
                    found = self._kept(found, keep)
                yield from self.of_found(found, part.file.path)

    def _kept(self, found: Found, keep: Callable[[Found], list[bool]]) -> Found:
        """Return those records of FOUND that KEEP wants; it is asked of wanted ones alone."""
        wanted = self._conditions.of_records(found.data, found.columns)
        chosen = Found(found.data, found.base, wanted)
        return replace(chosen, columns=wanted.take(np.array(keep(chosen), np.bool_)))

    def of_found(self, found: Found, path: str) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of FOUND, which stand in the file PATH, that are wanted."""
        wanted = self._conditions.of_records(found.data, found.columns)
        if self._check_crc:
            wrong = crc_mismatches(found.data, wanted)
            why = "the body does not fit its CRC"
            rows = np.flatnonzero(wrong).tolist()
            yield from self.damaged([_refused(path, wanted, row, why) for row in rows])
            wanted = wanted.take(~wrong)
        first = 0
        while first < len(wanted):
            columns = wanted.take(slice(first, first + self._rows_max))
            refused: list[Damage] = []

            def refuse(
                rows: list[Refused],
                columns: RunColumns = columns,
                refused: list[Damage] = refused,
            ) -> None:
                refused += [_refused(path, columns, row, why) for row, why in rows]

            batch, count = self._columns.leading(found.data, columns, refuse)
            first += count
            yield from self.damaged(refused)
            if batch.num_rows:
                yield batch

    def damaged(self, damages: Sequence[Damage]) -> Iterator[pyarrow.RecordBatch]:
        """Count DAMAGES, or raise CorruptRecord; yield them as rows if that is asked for."""
        for damage in damages:
            self._bad.meet(damage)
            inside = self._conditions.log_offsets.meets(damage.start, damage.end - 1)
            if self._shows_bad and inside:
                yield self._row_of(damage)

    def _row_of(self, damage: Damage) -> pyarrow.RecordBatch:
        row: dict[str, Any] = {
            "brokerName": self._columns.broker_name,
            "physicalOffset": damage.start,
            "storeSize": damage.size,
            "badRecord": damage.why,
        }
        schema = self._columns.schema
        return arrow().RecordBatch.from_pylist(
            [{name: row.get(name) for name in schema.names}], schema=schema
        )


def _refused(path: str, columns: RunColumns, row: int, why: str) -> Damage:
    start = int(columns.log_offset[row])
    return Damage(path, start, start + int(columns.sizes[row]), why)
