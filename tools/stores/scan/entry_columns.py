"""Consume queues as rows: from entries on disk to batches, some 20 ns a row and less.

An entry of a plain queue is a message, and its place is its queue offset; an entry of a batch queue is a whole inner
batch, and its queue offset that of its first message (store/format/queues.py).

A queue's rows begin where a broker would let its readers begin: an entry whose record is in no log file any more is
left out if it is in the queue's first file. (Apache looks at the first file alone, so entries in later ones stay.)
They end at the first entry that is not valid.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from ....store.disk import Disk
from ....store.format.queues import ENTRY, PRE_BLANK_SIZE, entry_format, names_record
from ....store.format.rows import RowFormat, Rows
from ....store.listing import RowFile, zeros_from
from ....store.queue_extension import QueueExtension
from ..schemas import arrow
from .byte_range_columns import ConstantColumn
from .conditions import Conditions, Span, combined

if TYPE_CHECKING:
    import pyarrow

READ_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class QueuePart:
    """The entries in bytes [BEGIN, END) of FILE, all counted from the beginning of the row of one queue's files."""

    topic: str
    queue_id: int
    is_batch: bool
    file: RowFile
    begin: int
    end: int

    #: Of a plain queue; what a split of messages is reckoned with.
    entry_bytes: ClassVar[int] = ENTRY.size

    @classmethod
    def of_files(
        cls, topic: str, queue_id: int, is_batch: bool, files: Sequence[RowFile]
    ) -> list[QueuePart]:
        """Return a part for each of FILES, all of it."""
        return [cls(topic, queue_id, is_batch, file, file.start, file.end) for file in files]

    @property
    def format(self) -> RowFormat:
        return entry_format(is_batch=self.is_batch)

    @property
    def size(self) -> int:
        return self.end - self.begin

    def split(self, size_bytes: int) -> Iterator[QueuePart]:
        """Yield it in parts of about SIZE_BYTES."""
        step = max(1, size_bytes // self.format.size) * self.format.size
        for begin in range(self.begin, self.end, step):
            yield replace(self, begin=begin, end=min(begin + step, self.end))

    def within(self, offsets: Span) -> QueuePart:
        """Return what of it may hold the queue OFFSETS: in a plain queue places tell, in a batch queue any may."""
        if self.is_batch or offsets.is_all:
            return self
        size = self.format.size
        begin, end = max(0, offsets.low) * size, (max(-1, offsets.high) + 1) * size
        return replace(self, begin=max(self.begin, begin), end=min(self.end, end))


def read_entries(disk: Disk, part: QueuePart) -> Rows:
    """Return the entries of PART; fewer where the file is shorter than it was."""
    data = disk.read_at(part.file.path, part.begin - part.file.start, part.size)
    return part.format.columns(data)


def live_part(disk: Disk, part: QueuePart, log_begin: int, *, is_first: bool) -> QueuePart:
    """Return what of PART, all of a file, is in use; of the first file of a queue what the log, from LOG_BEGIN, has.

    Reads some entries by halving, not the file.
    """
    size = part.format.size
    places = range(part.begin, min(zeros_from(disk, part.file), part.end) // size * size, size)

    def entry(place: int) -> tuple[int, int]:
        found = read_entries(disk, replace(part, begin=place, end=place + size))
        return (int(found["log_offset"][0]), int(found["size"][0])) if len(found) else (-1, 0)

    def is_unused(place: int) -> bool:
        log_offset, entry_size = entry(place)
        return log_offset < 0 or entry_size <= 0

    def is_served(place: int) -> bool:
        log_offset, entry_size = entry(place)
        return log_offset >= log_begin and entry_size != PRE_BLANK_SIZE

    used = bisect_left(places, True, key=is_unused)
    end = part.begin + used * size
    begin = part.begin
    if is_first and used and not is_served(begin) and is_served(end - size):
        begin += bisect_left(places[:used], True, key=is_served) * size
    return replace(part, begin=begin, end=end)


class QueueColumns:
    """Makes batches with the columns of SCHEMA (one of `schemas.projected("consumequeue", …)`) of BROKER's entries."""

    def __init__(self, schema: pyarrow.Schema, broker: str, conditions: Conditions) -> None:
        self.schema = schema
        self._broker = ConstantColumn(broker)
        self._topics: dict[str, ConstantColumn] = {}
        self._conditions = conditions

    def batches(self, disk: Disk, part: QueuePart, rows_max: int) -> Iterator[pyarrow.RecordBatch]:
        """Yield the entries of PART that are wanted, at most ROWS_MAX in a batch."""
        extension = None
        if "tags_code" in self.schema.names and not part.is_batch:
            extension = QueueExtension(disk, posixpath.dirname(part.file.path))
        for piece in part.split(min(READ_BYTES, rows_max * part.format.size)):
            entries = read_entries(disk, piece)
            if extension is not None:
                entries = extension.resolve(entries)
            batch = self._batch(piece, entries)
            if batch.num_rows:
                yield batch

    def _batch(self, part: QueuePart, entries: Rows) -> pyarrow.RecordBatch:
        offsets = queue_offsets(part, entries)
        wanted = combined(
            [
                names_record(entries),
                self._conditions.queue_offsets.mask(offsets),
                self._conditions.log_offsets.mask(entries["log_offset"]),
            ]
        )
        assert wanted is not None
        if not wanted.all():
            entries, offsets = entries[wanted], offsets[wanted]
        pa = arrow()
        count = len(entries)
        topic = self._topics.setdefault(part.topic, ConstantColumn(part.topic))
        makers: dict[str, Any] = {
            "broker": lambda: self._broker.rows(count),
            "topic": lambda: topic.rows(count),
            "queue": lambda: pa.array(np.full(count, part.queue_id, np.int32)),
            "queue_offset": lambda: pa.array(offsets),
            "log_offset": lambda: pa.array(entries["log_offset"].astype(np.int64)),
            "size": lambda: pa.array(entries["size"].astype(np.int32)),
            "tags_code": lambda: pa.array(entries["tags_code"].astype(np.int64)),
        }
        arrays = [makers[name]() for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def queue_offsets(part: QueuePart, entries: Rows) -> Any:
    """Return the queue offset of each of ENTRIES, which begin where PART does."""
    if part.is_batch:
        return entries["base"].astype(np.int64)
    first = part.begin // part.format.size
    return np.arange(first, first + len(entries), dtype=np.int64)
