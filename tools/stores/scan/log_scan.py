"""Messages straight from the commit log: which bytes of which files are worth reading, and the rows in them.

The tail of the log is what is in the log and not yet in the queues: the newest records of a store that runs, or was not
stopped cleanly. A broker appends to the log first, then enters records in their queues, then in the index. So what lies
before the end that the newest index file names is in the queues; from there on the log itself is read, and each record
left out that its queue has already.

Messages of some topics, found through their consume queues: only their own bytes are read.

An entry names place and size of a record, so that a range of queue offsets is a range of bytes of the queue, and the
records are picked out of the log. Rows are the same as those of a scan of the log, but for records that are in no
queue: half messages' outcomes, and what recovery marked as damaged.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....proto.errors import OffsetOutOfRange
from ....proto.record_run import Bytes, Longs, RunColumns, as_bytes, crc_mismatches, parse_run
from ....store import log_range
from ....store.disk import Disk, Mapping as MappedFile
from ....store.format.index import HEADER_SIZE, IndexHeader
from ....store.format.queues import names_record
from ....store.listing import RowFile, hole_from, require_joined, row_files
from ..schemas import arrow
from .conditions import BadRecords, Conditions, Span
from .entry_columns import QueuePart, queue_offsets, read_entries
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
    files, log_ends = log_range.log_in_use(disk, files)
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
        return min(file.end, hole_from(disk, file) + log_range.WINDOW_BYTES)
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
        self,
        disk: Disk,
        part: LogPart,
        keep: Callable[[log_range.PlacedRecords], list[bool]] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of PART that KEEP wants. FileNotFoundError if its file is gone."""
        for found in log_range.LogRange(disk, part.file, part.begin, part.end, limit=part.limit):
            if isinstance(found, log_range.LogDamage):
                yield from self.damaged([found])
            else:
                if keep is not None:
                    found = self._kept(found, keep)
                yield from self.of_found(found, part.file.path)

    def _kept(
        self, found: log_range.PlacedRecords, keep: Callable[[log_range.PlacedRecords], list[bool]]
    ) -> log_range.PlacedRecords:
        """Return those records of FOUND that KEEP wants; it is asked of wanted ones alone."""
        wanted = self._conditions.of_records(found.data, found.columns)
        chosen = log_range.PlacedRecords(found.data, found.base, wanted)
        return replace(chosen, columns=wanted.take(np.array(keep(chosen), np.bool_)))

    def of_found(self, found: log_range.PlacedRecords, path: str) -> Iterator[pyarrow.RecordBatch]:
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
            refused: list[log_range.LogDamage] = []

            def refuse(
                rows: list[Refused],
                columns: RunColumns = columns,
                refused: list[log_range.LogDamage] = refused,
            ) -> None:
                refused += [_refused(path, columns, row, why) for row, why in rows]

            batch, count = self._columns.leading(found.data, columns, refuse)
            first += count
            yield from self.damaged(refused)
            if batch.num_rows:
                yield batch

    def damaged(self, damages: Sequence[log_range.LogDamage]) -> Iterator[pyarrow.RecordBatch]:
        """Count DAMAGES, or raise CorruptRecord; yield them as rows if that is asked for."""
        for damage in damages:
            self._bad.meet(damage)
            inside = self._conditions.log_offsets.meets(damage.start, damage.end - 1)
            if self._shows_bad and inside:
                yield self._row_of(damage)

    def _row_of(self, damage: log_range.LogDamage) -> pyarrow.RecordBatch:
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


def _refused(path: str, columns: RunColumns, row: int, why: str) -> log_range.LogDamage:
    start = int(columns.log_offset[row])
    return log_range.LogDamage(path, start, start + int(columns.sizes[row]), why)


@dataclass(frozen=True, slots=True)
class LogTailPart:
    """The records of LOG that stand behind the last one of their queue; NEWEST: (topic, queue id, its log offset)."""

    log: LogPart
    newest: tuple[tuple[str, int, int], ...]

    @property
    def size(self) -> int:
        return self.log.size

    def is_new(self, found: log_range.PlacedRecords) -> list[bool]:
        """Tell which records of FOUND stand behind the newest one that their queue has."""
        newest = {(topic, queue_id): at for topic, queue_id, at in self.newest}
        return [
            at > newest.get(queue, -1)
            for queue, at in zip(_queues_of(found), found.columns.log_offset.tolist(), strict=True)
        ]

    def rows(self, disk: Disk, rows: MessageRows) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of the part."""
        yield from rows.of_log(disk, self.log, self.is_new)


def _queues_of(found: log_range.PlacedRecords) -> Iterator[tuple[str, int]]:
    columns: RunColumns = found.columns
    ends = (columns.topic_start + columns.topic_size).tolist()
    places = zip(columns.topic_start.tolist(), ends, columns.queue_id.tolist(), strict=True)
    for start, end, queue_id in places:
        yield found.data[start:end].tobytes().decode("utf-8", "replace"), queue_id


def dispatched_until(disk: Disk, root: str) -> int | None:
    """Return a log offset up to which every record is in its queue; None where all are, after a clean stop.

    Ask before the queues are looked at: what a broker dispatches in between is then in the queues or behind this.
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
    files, log_ends = log_range.log_in_use(
        disk, row_files(disk, posixpath.join(root, "commitlog")), begin
    )
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
    """Return the log offset of the last record in the index; where the last log file begins if that is not told."""
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


# ---------------------------------------------------------------- messages of some topics


Rows: TypeAlias = NDArray[np.intp] | NDArray[np.bool_] | slice
#: Entries that are worked off at a time.
_ENTRIES: Final = 8_192
#: Places in a buffer of Arrow's have 31 bits: a file up to this length is used as it is mapped.
_MAP_BYTES_MAX: Final = (1 << 31) - 1
#: Bytes between two records that are read rather than asked for apart, where a request takes long.
_GAP_BYTES: Final = 256 << 10
_READ_BYTES: Final = 8 << 20
#: A queue file with fewer entries in question is read whole.
_HALVE_LEAST: Final = 1_024


@dataclass(frozen=True, slots=True)
class MessageQueuePart:
    """The messages that the entries of ENTRIES name; LOG_FILES are those of the log when the scan was planned."""

    entries: QueuePart
    log_files: tuple[RowFile, ...]

    @property
    def size(self) -> int:
        return self.entries.size

    def split(self, size_bytes: int) -> Iterator[MessageQueuePart]:
        """Yield it in parts of about SIZE_BYTES of entries."""
        for piece in self.entries.split(size_bytes):
            yield replace(self, entries=piece)


def message_queue_parts(
    disk: Disk,
    log_folder: str,
    queues: Sequence[QueuePart],
    conditions: Conditions,
    *,
    fail_on_data_loss: bool,
) -> Iterator[MessageQueuePart]:
    """Yield the parts of QUEUES that may hold what meets CONDITIONS, with the log files that their records are in."""
    log = row_files(disk, log_folder)
    if fail_on_data_loss:
        require_joined(log, log_folder)
    for queue in queues:
        part = queue.within(conditions.queue_offsets)
        if part.begin < part.end:
            part = _of_time_in_queue(disk, part, log, conditions.store_ms)
        if part.begin < part.end:
            yield MessageQueuePart(part, _named(disk, part, log))


def _named(disk: Disk, part: QueuePart, log: Sequence[RowFile]) -> tuple[RowFile, ...]:
    """Return the files of LOG from that of the first entry of PART to that of its last."""
    size = part.format.size
    first = read_entries(disk, replace(part, end=part.begin + size))
    last = read_entries(disk, replace(part, begin=part.end - size))
    if not len(first) or not len(last):
        return ()
    low, high = int(first["log_offset"][0]), int(last["log_offset"][0])
    return tuple(file for file in log if low < file.end and file.start <= high)


def _of_time_in_queue(disk: Disk, part: QueuePart, log: Sequence[RowFile], span: Span) -> QueuePart:
    """Return what of PART may hold messages stored within SPAN: store times of a queue never fall, so it is halved."""
    size = part.format.size
    places = range(part.begin, part.end, size)
    if span.is_all or part.is_batch or len(places) < _HALVE_LEAST:
        return part

    def stored_ms(place: int) -> int:
        found = read_entries(disk, replace(part, begin=place, end=place + size))
        log_offset = int(found["log_offset"][0]) if len(found) else -1
        file = next((one for one in log if one.start <= log_offset < one.end), None)
        time_ms = None if file is None else store_ms_at(disk, file, log_offset)
        if time_ms is None:
            raise LookupError
        return time_ms

    try:
        low = bisect_left(places, span.low, key=stored_ms)
        high = bisect_left(places, span.high + 1, key=stored_ms)
    except LookupError:  # A record that is gone or damaged tells no time.
        return part
    return replace(part, begin=part.begin + low * size, end=part.begin + high * size)


class MessageQueueReader:
    """Reads the messages of parts of queues, with ROWS, from the log files on DISK."""

    def __init__(
        self, disk: Disk, rows: MessageRows, conditions: Conditions, *, is_local: bool, strict: bool
    ) -> None:
        """IS_LOCAL: are files mapped, or asked for by ranges? STRICT: is a log file that is gone an error?"""
        self._disk = disk
        self._rows = rows
        self._conditions = conditions
        self._is_local = is_local
        self._strict = strict

    def read(self, part: MessageQueuePart) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of PART. FileNotFoundError if a file is gone."""
        with ExitStack() as opened:
            maps = {
                file.start: opened.enter_context(
                    closing(self._disk.open_map(file.path, writable=False))
                )
                for file in part.log_files
            }
            for piece in part.entries.split(_ENTRIES * part.entries.format.size):
                yield from self._read_piece(piece, part.log_files, maps)

    def _read_piece(
        self, piece: QueuePart, files: Sequence[RowFile], maps: dict[int, MappedFile]
    ) -> Iterator[pyarrow.RecordBatch]:
        entries = read_entries(self._disk, piece)
        offsets = queue_offsets(piece, entries)
        log_offsets = entries["log_offset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        wanted = names_record(entries)
        mask = self._conditions.queue_offsets.mask(offsets)
        if mask is not None and not piece.is_batch:
            wanted &= mask
        named = _Named(offsets[wanted], log_offsets[wanted], sizes[wanted])
        for file in files:
            inside = named.of_file(file)
            if len(inside):
                yield from self._read_file(file, maps[file.start], inside)
        if self._strict and files:
            named.require_files(files, piece)

    def _read_file(
        self, file: RowFile, mapping: MappedFile, named: _Named
    ) -> Iterator[pyarrow.RecordBatch]:
        for data, base, group in self._fetched(file, mapping, named):
            columns = parse_run(data, group.log_offsets - base)
            sound = columns.well_formed & (columns.sizes == group.sizes)
            sound &= columns.log_offset == group.log_offsets
            if not sound.all():
                columns = columns.take(sound)
                yield from self._rows.damaged(group.damages(file, ~sound))
            # In the place of a message that is lost an entry may repeat a neighbour: each is read in its own place.
            own = columns.queue_offset == group.offsets[sound]
            yield from self._rows.of_found(
                log_range.PlacedRecords(data, base, columns.take(own)), file.path
            )

    def _fetched(
        self, file: RowFile, mapping: MappedFile, named: _Named
    ) -> Iterator[tuple[Bytes, int, _Named]]:
        """Yield bytes of FILE, where they begin in the log, and the entries whose records are in them."""
        if self._is_local and mapping.size <= _MAP_BYTES_MAX:
            yield mapping.array, file.start, named
            return
        for group in named.groups():
            begin = int(group.log_offsets[0])
            size = int((group.log_offsets + group.sizes).max()) - begin
            data = as_bytes(mapping.read(begin - file.start, size))
            yield data, begin, group


class _Named:
    """Entries of a queue: queue offset, place in the log, and size of each."""

    def __init__(self, offsets: Longs, log_offsets: Longs, sizes: Longs) -> None:
        self.offsets = offsets
        self.log_offsets = log_offsets
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.offsets)

    def _take(self, rows: Rows) -> _Named:
        return _Named(self.offsets[rows], self.log_offsets[rows], self.sizes[rows])

    def of_file(self, file: RowFile) -> _Named:
        """Return those in FILE, in order of their places there."""
        rows = np.flatnonzero((self.log_offsets >= file.start) & (self.log_offsets < file.end))
        if (np.diff(self.log_offsets[rows]) < 0).any():
            rows = rows[np.argsort(self.log_offsets[rows], kind="stable")]
        return self._take(rows)

    def require_files(self, files: Sequence[RowFile], piece: QueuePart) -> None:
        """Raise OffsetOutOfRange for an entry that points between FILES: the log file has gone meanwhile."""
        known = np.zeros(len(self), np.bool_)
        for file in files:
            known |= (self.log_offsets >= file.start) & (self.log_offsets < file.end)
        known |= self.log_offsets < files[0].start
        known |= self.log_offsets >= files[-1].end
        if not known.all():
            at = int(self.log_offsets[int(known.argmin())])
            raise OffsetOutOfRange(
                f"{piece.topic}/{piece.queue_id}: the record at {at:,} is in no log file; with failOnDataLoss=false "
                "it is left out",
                field="failOnDataLoss",
                offset=at,
            )

    def groups(self) -> Iterator[_Named]:
        """Yield neighbours that one request can fetch."""
        ends = self.log_offsets + self.sizes
        first = 0
        for row in range(1, len(self) + 1):
            whole = row == len(self)
            if (
                whole
                or int(self.log_offsets[row] - ends[row - 1]) > _GAP_BYTES
                or int(ends[row] - self.log_offsets[first]) > _READ_BYTES
            ):
                yield self._take(slice(first, row))
                first = row

    def damages(self, file: RowFile, rows: Rows) -> list[log_range.LogDamage]:
        """Return ROWS as damage of FILE."""
        bad = self._take(rows)
        places = zip(bad.log_offsets.tolist(), bad.sizes.tolist(), strict=True)
        return [
            log_range.LogDamage(
                file.path,
                at,
                at + min(size, log_range.RECORD_BYTES_MAX),
                "no record of the size that its queue entry names",
            )
            for at, size in places
        ]
