"""Messages of some topics, found through their consume queues: only their own bytes are read.

An entry has the place and size of a record, so that a range of queue offsets is a range of bytes of the queue, and the
records are picked out of the log. Rows are the same as those of a scan of the log, but for records that are in no
queue: operation messages of transactions, and what recovery marked as damaged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....proto.errors import OffsetOutOfRange
from ....proto.record_run import Bytes, Longs, as_bytes, parse_run
from ....store.disk import Disk, Mapping as MappedFile
from ....store.format.queues import names_record
from ....store.listing import RowFile, require_joined, row_files
from ....store.log_range import RECORD_BYTES_MAX, LogDamage, PlacedRecords
from .conditions import Conditions, Span
from .entry_columns import QueuePart, queue_offsets, read_entries
from .log_scan import MessageRows, store_ms_at

if TYPE_CHECKING:
    import pyarrow

Rows: TypeAlias = NDArray[np.intp] | NDArray[np.bool_] | slice
#: Entries that are processed at a time.
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
    except LookupError:  # A record that is gone or damaged has no time.
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
            yield from self._rows.of_found(PlacedRecords(data, base, columns.take(own)), file.path)

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

    def damages(self, file: RowFile, rows: Rows) -> list[LogDamage]:
        """Return ROWS as damage of FILE."""
        bad = self._take(rows)
        places = zip(bad.log_offsets.tolist(), bad.sizes.tolist(), strict=True)
        return [
            LogDamage(
                file.path,
                at,
                at + min(size, RECORD_BYTES_MAX),
                "no record of the size that its queue entry names",
            )
            for at, size in places
        ]
