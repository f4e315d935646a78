"""Messages straight from the commit log: which bytes of which files are worth reading, and the rows in them.

The tail of the log is what is in the log and not yet in the queues: the newest records of a store that runs, or was not
stopped cleanly. A broker appends to the log first, then enters records in their queues, then in the index. So
everything before the end that the newest index file names is in the queues. From there on the log itself is read,
without the records that their queues have already.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....proto.record_run import RunColumns, crc_mismatches, parse_run
from ....store.disk import Disk
from ....store.format.index import HEADER_SIZE, IndexHeader
from ....store.listing import RowFile, hole_from, require_joined, row_files
from ....store.log_range import WINDOW_BYTES, LogDamage, LogRange, PlacedRecords, log_in_use
from ..schemas import arrow
from .bad_records import BadRecords
from .conditions import Conditions, Span
from .entry_columns import QueuePart, read_entries
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
    between others is missing, unless that is allowed.
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
    """Return where reading FILE can end: after the blank of an old file there is a hole."""
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
    """Return the store time of the record at LOG_OFFSET of FILE; None if none says that it is there."""
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
        self,
        disk: Disk,
        part: LogPart,
        keep: Callable[[PlacedRecords], list[bool]] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of PART that KEEP wants. FileNotFoundError if its file is gone."""
        for found in LogRange(disk, part.file, part.begin, part.end, limit=part.limit):
            if isinstance(found, LogDamage):
                yield from self.damaged([found])
            else:
                if keep is not None:
                    found = self._kept(found, keep)
                yield from self.of_found(found, part.file.path)

    def _kept(
        self, found: PlacedRecords, keep: Callable[[PlacedRecords], list[bool]]
    ) -> PlacedRecords:
        """Return those records of FOUND that KEEP wants; it is asked of wanted ones alone."""
        wanted = self._conditions.of_records(found.data, found.columns)
        chosen = PlacedRecords(found.data, found.base, wanted)
        return replace(chosen, columns=wanted.take(np.array(keep(chosen), np.bool_)))

    def of_found(self, found: PlacedRecords, path: str) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of FOUND, which are in the file PATH, that are wanted."""
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
            refused: list[LogDamage] = []

            def refuse(
                rows: list[Refused],
                columns: RunColumns = columns,
                refused: list[LogDamage] = refused,
            ) -> None:
                refused += [_refused(path, columns, row, why) for row, why in rows]

            batch, count = self._columns.leading(found.data, columns, refuse)
            first += count
            yield from self.damaged(refused)
            if batch.num_rows:
                yield batch

    def damaged(self, damages: Sequence[LogDamage]) -> Iterator[pyarrow.RecordBatch]:
        """Count DAMAGES, or raise CorruptRecord; yield them as rows if that is asked for."""
        for damage in damages:
            self._bad.meet(damage)
            inside = self._conditions.log_offsets.meets(damage.start, damage.end - 1)
            if self._shows_bad and inside:
                yield self._row_of(damage)

    def _row_of(self, damage: LogDamage) -> pyarrow.RecordBatch:
        row: dict[str, Any] = {
            "broker": self._columns.broker_name,
            "log_offset": damage.start,
            "store_size": damage.size,
            "bad_record": damage.why,
        }
        schema = self._columns.schema
        return arrow().RecordBatch.from_pylist(
            [{name: row.get(name) for name in schema.names}], schema=schema
        )


def _refused(path: str, columns: RunColumns, row: int, why: str) -> LogDamage:
    start = int(columns.log_offset[row])
    return LogDamage(path, start, start + int(columns.sizes[row]), why)


@dataclass(frozen=True, slots=True)
class LogTailPart:
    """The records of LOG after the last one of their queue; NEWEST: (topic, queue id, its log offset)."""

    log: LogPart
    newest: tuple[tuple[str, int, int], ...]

    @property
    def size(self) -> int:
        return self.log.size

    def is_new(self, found: PlacedRecords) -> list[bool]:
        """Return which records of FOUND are after the newest one that their queue has."""
        newest = {(topic, queue_id): at for topic, queue_id, at in self.newest}
        return [
            at > newest.get(queue, -1)
            for queue, at in zip(_queues_of(found), found.columns.log_offset.tolist(), strict=True)
        ]

    def rows(self, disk: Disk, rows: MessageRows) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of the part."""
        yield from rows.of_log(disk, self.log, self.is_new)


def _queues_of(found: PlacedRecords) -> Iterator[tuple[str, int]]:
    columns: RunColumns = found.columns
    ends = (columns.topic_start + columns.topic_size).tolist()
    places = zip(columns.topic_start.tolist(), ends, columns.queue_id.tolist(), strict=True)
    for start, end, queue_id in places:
        yield found.data[start:end].tobytes().decode("utf-8", "replace"), queue_id


def dispatched_until(disk: Disk, root: str) -> int | None:
    """Return a log offset up to which every record is in its queue; None where all are, after a clean stop.

    Ask before the queues are looked at: what a broker dispatches in between is then in the queues or after this offset.
    """
    if not disk.exists(posixpath.join(root, "abort")):
        return None
    return _indexed_until(disk, root, row_files(disk, posixpath.join(root, "commitlog")))


def log_tails(
    disk: Disk, root: str, begin: int | None, queues: Sequence[QueuePart], conditions: Conditions
) -> Iterator[LogTailPart]:
    """Yield what of the log at ROOT from BEGIN on (None: nothing) may not be in QUEUES."""
    if begin is None or _ends_below(queues, conditions):
        return
    files, log_ends = log_in_use(disk, row_files(disk, posixpath.join(root, "commitlog")), begin)
    newest = tuple((topic, queue_id, at) for (topic, queue_id), at in _newest(disk, queues).items())
    for file in files:
        if begin < file.end:
            start = max(begin, file.start)
            end = min(log_ends, file.end)
            if start < end:
                yield LogTailPart(LogPart(file, start, end, end), newest)


def _ends_below(queues: Sequence[QueuePart], conditions: Conditions) -> bool:
    """Do QUEUES hold every queue offset that is wanted?"""
    ends: dict[tuple[str, int], int] = {}
    for part in queues:
        end = -1 if part.is_batch else part.end // part.entry_bytes
        ends[part.topic, part.queue_id] = end
    return bool(ends) and all(conditions.queue_offsets.high < end for end in ends.values())


def _newest(disk: Disk, queues: Sequence[QueuePart]) -> Mapping[tuple[str, int], int]:
    """Return the log offset of the last entry of each of QUEUES that has one."""
    newest: dict[tuple[str, int], int] = {}
    for part in queues:
        last = replace(part, begin=part.end - part.format.size)
        if last.begin >= part.begin:
            entries = read_entries(disk, last)
            if len(entries):
                at = int(np.max(entries["log_offset"]))
                newest[part.topic, part.queue_id] = at
    return newest


def _indexed_until(disk: Disk, root: str, files: Sequence[RowFile]) -> int:
    """Return the log offset of the last record in the index; where the last log file begins if it is not known."""
    folder = posixpath.join(root, "index")
    names = [entry.name for entry in disk.list(folder) if not entry.is_folder]
    if not files:
        return 0
    if names:
        data = disk.read_at(posixpath.join(folder, names[-1]), 0, HEADER_SIZE)
        if len(data) == HEADER_SIZE:
            at = IndexHeader.parse(data).end_log_offset
            for file in files:
                if file.start <= at < file.end and store_ms_at(disk, file, at) is not None:
                    return at
    return files[-1].start
