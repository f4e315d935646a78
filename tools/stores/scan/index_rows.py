"""Index files as rows: one row per entry, in the order in which keys were put (store/format/index.py has the format).

key_hash is the key's; store_timestamp has whole seconds, counted from the file's begin time; previous is the number of
the entry before in the chain of the slot, 0 at its end. Entry 0 is never used, so the first row is entry 1.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....store.disk import Disk
from ....store.format.index import ENTRY, HEADER_SIZE, IndexHeader, IndexShape
from ....store.log_range import LogDamage
from ..schemas import arrow
from .bad_records import BadRecords
from .byte_range_columns import ConstantColumn, instants
from .conditions import Conditions, combined

if TYPE_CHECKING:
    import pyarrow

_SECOND_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class IndexPart:
    """The entries [BEGIN, END) of the index file PATH, which has SLOTS hash slots and begins at BEGIN_MS."""

    path: str
    slots: int
    begin_ms: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return (self.end - self.begin) * ENTRY.size

    def split(self, size_bytes: int) -> Iterator[IndexPart]:
        """Yield it in parts of about SIZE_BYTES."""
        step = max(1, size_bytes // ENTRY.size)
        for begin in range(self.begin, self.end, step):
            yield replace(self, begin=begin, end=min(begin + step, self.end))


def index_parts(
    disk: Disk, folder: str, slots: int, entries: int, bad: BadRecords
) -> Iterator[IndexPart]:
    """Yield every file in FOLDER that holds keys. A file of another length, or with a head that cannot be, is BAD."""
    wanted = IndexShape(slots, entries).file_size
    for found in disk.list(folder):
        path = f"{folder}/{found.name}"
        if found.is_folder or not found.name.isdigit():
            continue
        header = IndexHeader.parse(disk.read_at(path, 0, HEADER_SIZE))
        why = ""
        if found.size != wanted:
            why = f"an index file of maxHashSlotNum={slots}, maxIndexNum={entries} has {wanted:,} bytes"
        elif not 0 <= header.next_entry <= entries or header.begin_ms < 0:
            why = f"its head says that entry {header.next_entry} is next, of {entries}"
        if why:
            bad.meet(LogDamage(path, 0, found.size, why))
        elif header.next_entry > 1:
            yield IndexPart(path, slots, header.begin_ms, 1, header.next_entry)


class IndexColumns:
    """Makes batches with the columns of SCHEMA (one of `schemas.projected("index", …)`) of BROKER's index entries."""

    def __init__(self, schema: pyarrow.Schema, broker: str, conditions: Conditions) -> None:
        self.schema = schema
        self._broker = ConstantColumn(broker)
        self._conditions = conditions

    def batches(self, disk: Disk, part: IndexPart, rows_max: int) -> Iterator[pyarrow.RecordBatch]:
        """Yield the entries of PART that are wanted, at most ROWS_MAX in a batch."""
        file = ConstantColumn(posixpath.basename(part.path))
        shape = IndexShape(part.slots, part.end)
        for piece in part.split(rows_max * ENTRY.size):
            data = disk.read_at(part.path, shape.entry_at(piece.begin), piece.size)
            batch = self._batch(piece, file, ENTRY.columns(data))
            if batch.num_rows:
                yield batch

    def _batch(self, part: IndexPart, file: ConstantColumn, entries: Any) -> pyarrow.RecordBatch:
        times = part.begin_ms + entries["seconds"].astype(np.int64) * _SECOND_MS
        wanted = combined(
            [
                self._conditions.log_offsets.mask(entries["log_offset"]),
                self._conditions.store_ms.mask(times),
            ]
        )
        if wanted is not None:
            entries, times = entries[wanted], times[wanted]
        pa = arrow()
        count = len(entries)
        hashes = entries["key_hash"].astype(np.int32)
        makers: dict[str, Any] = {
            "broker": lambda: self._broker.rows(count),
            "file": lambda: file.rows(count),
            "slot": lambda: pa.array(hashes % np.int32(part.slots)),
            "key_hash": lambda: pa.array(hashes),
            "log_offset": lambda: pa.array(entries["log_offset"].astype(np.int64)),
            "store_timestamp": lambda: instants(times),
            "previous": lambda: pa.array(entries["previous"].astype(np.int32)),
        }
        arrays = [makers[name]() for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
