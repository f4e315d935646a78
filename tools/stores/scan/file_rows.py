"""The files of a store as rows: what kind each is, how long, how much of it is in use, and from when to when.

usedBytes and the times are told where a few small reads find them, else they are null: a log file is used up to its
end but for the last one, and begins with its first record; an index file says both in its head; a queue file tells how
far it is used.

Index files as rows: an entry each, in the order in which keys were put (store/format/index.py has the format).

keyHash is the key's; storeTimestamp has whole seconds, counted from the file's begin time; previous is the number of
the entry before in the chain of the slot, 0 at its end. Entry 0 is never used, so the first row is entry 1.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....store.disk import Disk
from ....store.format.index import ENTRY, HEADER_SIZE, IndexHeader, IndexShape
from ....store.listing import queue_folders, row_files
from ....store.log_range import LogDamage, log_in_use
from ..schemas import arrow
from .conditions import BadRecords, Conditions, combined
from .entry_columns import QueuePart, live_part
from .log_scan import store_ms_at
from .message_columns import ConstantColumn, instants

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]
#: Kind of the files in each folder of a store; queues and the log are looked at more closely.
_FOLDERS: Final = {
    "config": "config",
    "timerlog": "timerlog",
    "rocksdbstore": "rocksdb",
    "compaction": "compaction",
    "pocketmq": "pocketmq",
}
_FOLDERS_DEEP: Final = 4


@dataclass(frozen=True, slots=True)
class FilePart:
    """All files of one store."""

    root: str
    size: int = 0


def file_rows(disk: Disk, root: str) -> Iterator[Row]:
    """Yield a row for each file of the store at ROOT, without the broker's name."""
    yield from _log_rows(disk, posixpath.join(root, "commitlog"))
    for kind, is_batch in (("consumequeue", False), ("batchconsumequeue", True)):
        for topic, queue_id, folder in queue_folders(disk, posixpath.join(root, kind)):
            yield from _queue_rows(disk, kind, folder, topic, queue_id, is_batch=is_batch)
    yield from _index_rows(disk, posixpath.join(root, "index"))
    for folder, kind in _FOLDERS.items():
        for path, size in _walk(disk, posixpath.join(root, folder), _FOLDERS_DEEP):
            yield _row(kind, path, size, size)
    for entry in disk.list(root):
        if not entry.is_folder:
            yield _row(entry.name, posixpath.join(root, entry.name), entry.size, entry.size)


def _walk(disk: Disk, folder: str, deep: int) -> Iterator[tuple[str, int]]:
    for entry in disk.list(folder):
        path = posixpath.join(folder, entry.name)
        if not entry.is_folder:
            yield path, entry.size
        elif deep:
            yield from _walk(disk, path, deep - 1)


def _log_rows(disk: Disk, folder: str) -> Iterator[Row]:
    files = row_files(disk, folder)
    firsts = [store_ms_at(disk, file, file.start) for file in files]
    _, end = log_in_use(disk, files)
    for file, first, following in zip(files, firsts, [*firsts[1:], None], strict=False):
        used = max(0, min(end, file.end) - file.start)
        yield _row("commitlog", file.path, file.size, used, file.start, (first, following))
    known = {file.path for file in files}
    for path, size in _walk(disk, folder, 0):
        if path not in known:
            yield _row("commitlog", path, size, None)


def _queue_rows(
    disk: Disk, kind: str, folder: str, topic: str, queue_id: int, *, is_batch: bool
) -> Iterator[Row]:
    files = row_files(disk, folder)
    for file in files:
        used = file.size
        if file is files[-1]:
            whole = QueuePart(topic, queue_id, is_batch, file, file.start, file.end)
            used = live_part(disk, whole, 0, is_first=False).end - file.start
        yield _row(kind, file.path, file.size, used, file.start)


def _index_rows(disk: Disk, folder: str) -> Iterator[Row]:
    for path, size in _walk(disk, folder, 0):
        data = disk.read_at(path, 0, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            yield _row("index", path, size, None)
            continue
        header = IndexHeader.parse(data)
        keys = max(0, header.next_entry - 1)
        times = (header.begin_ms or None, header.end_ms or None)
        used = min(size, HEADER_SIZE + keys * ENTRY.size)
        yield _row("index", path, size, used, header.begin_log_offset, times)


def _row(
    kind: str,
    path: str,
    size: int,
    used: int | None,
    base: int | None = None,
    times_ms: tuple[int | None, int | None] = (None, None),
) -> Row:
    return {
        "kind": kind,
        "path": path,
        "baseOffset": base,
        "sizeBytes": size,
        "usedBytes": used,
        "firstTimestamp": _instant(times_ms[0]),
        "lastTimestamp": _instant(times_ms[1]),
    }


def _instant(time_ms: int | None) -> datetime | None:
    """Return TIME_MS as a time of day; None for what no calendar has."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


# ---------------------------------------------------------------- index files as rows


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
            "brokerName": lambda: self._broker.rows(count),
            "file": lambda: file.rows(count),
            "slot": lambda: pa.array(hashes % np.int32(part.slots)),
            "keyHash": lambda: pa.array(hashes),
            "physicalOffset": lambda: pa.array(entries["log_offset"].astype(np.int64)),
            "storeTimestamp": lambda: instants(times),
            "previous": lambda: pa.array(entries["previous"].astype(np.int32)),
        }
        arrays = [makers[name]() for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
