"""The entries of one queue as columns, after a recovery. Formats: format/queues.py.

An entry of a plain queue is one message, and its number is its queue offset. An entry of a batch queue is a record of
several messages, numbered from its own base. Pre-blank entries are not messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..proto.record_run import Longs
from .apache.files import JavaFile
from .apache.queue import JavaQueue
from .consume_queues import Queue
from .format.queues import BATCH_ENTRY, ENTRY, PRE_BLANK_SIZE
from .format.rows import RowFormat, Rows
from .lite_queues import LiteQueue

_RECOVERED_AT_ONCE: Final = 300_000


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """Entries in the order of their files; one array per column, all of one length."""

    queue_offset: Longs
    physical_offset: Longs
    size: Longs
    tags_code: Longs
    count: Longs

    def __len__(self) -> int:
        return len(self.queue_offset)

    def take(self, rows: Any) -> QueueEntries:
        """Return the chosen ROWS."""
        return QueueEntries(*(getattr(self, name)[rows] for name in QueueEntries.__slots__))


def entries_of(queue: JavaQueue, begin: int, end: int) -> Iterator[QueueEntries]:
    """Yield the entries of QUEUE with messages in [BEGIN, END), up to _RECOVERED_AT_ONCE at a time.

    Offsets in a hole, where a file is missing, have none. Each range is read once, and no other part of the file.
    """
    begin, end = max(begin, queue.min_offset), min(end, queue.max_offset)
    if begin >= end:
        return
    for file in queue.files.files:
        if queue.kind == "BatchCQ":
            yield from _of_batches(file, begin, end)
        else:
            yield from _of_messages(file, begin, end)


def _of_messages(file: JavaFile, begin: int, end: int) -> Iterator[QueueEntries]:
    number = file.start // ENTRY.size
    first, last = max(0, begin - number), min(file.wrote // ENTRY.size, end - number)
    for at in range(first, last, _RECOVERED_AT_ONCE):
        rows = _rows(file, ENTRY, at, min(last, at + _RECOVERED_AT_ONCE))
        numbers = np.arange(number + at, number + at + len(rows), dtype=np.int64)
        yield _columns(rows, numbers, np.ones(len(rows), np.int64))


def _of_batches(file: JavaFile, begin: int, end: int) -> Iterator[QueueEntries]:
    last = file.wrote // BATCH_ENTRY.size
    for at in range(0, last, _RECOVERED_AT_ONCE):
        rows = _rows(file, BATCH_ENTRY, at, min(last, at + _RECOVERED_AT_ONCE))
        numbers, counts = rows["base"].astype(np.int64), rows["count"].astype(np.int64)
        wanted = (numbers + counts > begin) & (numbers < end)
        if wanted.any():
            yield _columns(rows[wanted], numbers[wanted], counts[wanted])


def _rows(file: JavaFile, kind: RowFormat, first: int, last: int) -> Rows:
    return kind.columns(file.mapping.read(first * kind.size, (last - first) * kind.size))


def _columns(rows: Rows, numbers: Longs, counts: Longs) -> QueueEntries:
    found = QueueEntries(
        numbers,
        rows["log_offset"].astype(np.int64),
        rows["size"].astype(np.int64),
        rows["tags_code"].astype(np.int64),
        counts,
    )
    blank = found.size == PRE_BLANK_SIZE
    return found.take(~blank) if blank.any() else found


def reached_entries(queue: Queue) -> tuple[Longs, Longs]:
    """Return queue offset and log offset of each entry of QUEUE, a PocketMQ queue, that a consumer can reach."""
    numbers, offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for file in queue.files.files:
        entries = queue.all_of(file)
        if queue.is_batch:
            number = entries["base"].astype(np.int64)
        else:
            number = file.start // queue.entry_size + np.arange(len(entries))
        kept = (number >= queue.min_offset) & (entries["size"] != PRE_BLANK_SIZE)
        numbers.append(number[kept])
        offsets.append(entries["log_offset"][kept].astype(np.int64))
    return np.concatenate(numbers), np.concatenate(offsets)


def reached_lite_entries(queue: LiteQueue) -> Longs:
    """Return the log offset of each entry of QUEUE, of a lite topic, that a consumer can reach."""
    offsets = [np.zeros(0, np.int64)]
    at = queue.min_offset
    while at < queue.max_offset:
        found, *_ = queue.entries(at, queue.max_offset - at)
        offsets.append(found[found >= 0])
        at += len(found)
    return np.concatenate(offsets)
