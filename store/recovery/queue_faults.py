"""Finds contradictions between the entries of a queue and the records of the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import Longs, RunColumns
from ..commit_log import CommitLog
from ..consume_queue import BatchConsumeQueue, ConsumeQueue
from ..format.agreement import foreign_entries, same_place
from ..format.rows import Rows as Entries

_STRANGERS: Final = "entries point to records that are damaged or of other queues"

Rows = NDArray[np.intp]


@dataclass(slots=True)
class QueueRecords:
    """The records of one queue in order of the log, one array per log file; numbers are queue offsets."""

    files: list[int] = field(default_factory=list)
    rows: list[NDArray[np.int32]] = field(default_factory=list)
    numbers: list[Longs] = field(default_factory=list)
    offsets: list[Longs] = field(default_factory=list)
    sizes: list[NDArray[np.int32]] = field(default_factory=list)

    def add(self, file: int, columns: RunColumns, rows: Rows) -> None:
        """Add the records ROWS of the log file with the number FILE."""
        self.files.append(file)
        self.rows.append(rows.astype(np.int32))
        self.numbers.append(columns.queue_offset[rows])
        self.offsets.append(columns.log_offset[rows])
        self.sizes.append(columns.sizes[rows].astype(np.int32))

    def has(self, log_offset: int) -> bool:
        """Is there a record at LOG_OFFSET?"""
        return any(bool((offsets == log_offset).any()) for offsets in self.offsets)

    def joined(self) -> tuple[Longs, Longs, Longs]:
        """Return queue offsets, log offsets and sizes of all."""
        numbers, offsets = np.concatenate(self.numbers), np.concatenate(self.offsets)
        return numbers, offsets, np.concatenate(self.sizes).astype(np.int64)

    def beyond(self, log_end: int) -> Iterator[tuple[int, Rows]]:
        """Yield file and rows of the records that end after LOG_END."""
        for number, file in enumerate(self.files):
            offsets = self.offsets[number]
            if len(offsets) and int(offsets[-1]) + int(self.sizes[number][-1]) > log_end:
                chosen = offsets + self.sizes[number] > log_end
                yield file, self.rows[number][chosen].astype(np.intp)


def plain_fault(
    queue: ConsumeQueue, records: QueueRecords, log: CommitLog, read_from: int
) -> str | None:
    """Return how the entries of QUEUE contradict RECORDS; None if only entries at its end are missing.

    RECORDS are all those in the LOG from log offset READ_FROM on.
    """
    if not records.files:
        nothing = np.zeros(0, np.int64)
        files = queue.files.files
        strange = (
            _has_strangers(queue.all_of(one), nothing, (-1, -1), log, read_from) for one in files
        )
        return _STRANGERS if any(strange) else None
    numbers, offsets, sizes = records.joined()
    if not (numbers[1:] > numbers[:-1]).all():
        return None  # Queue offsets that restart or repeat: ConsumeQueue.put decides.
    claimed = np.zeros(len(numbers), np.bool_)
    for file in queue.files.files:
        entries = queue.all_of(file)
        first = file.start // queue.entry_size
        low, high = np.searchsorted(numbers, (first, first + len(entries)))
        places = numbers[low:high] - first
        if not same_place(entries[places], offsets[low:high], sizes[low:high]).all():
            return "entries do not point to their records"
        edges = (
            int(offsets[low - 1]) if low else -1,
            int(offsets[high]) if high < len(offsets) else -1,
        )
        if _has_strangers(entries, places, edges, log, read_from):
            return _STRANGERS
        claimed[low:high] = True
    lacking = np.flatnonzero(~claimed)
    if not len(lacking):
        return None
    if int(numbers[lacking[0]]) < queue.max_offset:
        return "entries of records in the log are missing in the middle"
    if int(offsets[lacking[0]] + sizes[lacking[0]]) <= queue.max_log_end:
        return "the last entries belong to other records"
    return None


def _has_strangers(
    entries: Entries, own: Longs, edges: tuple[int, int], log: CommitLog, read_from: int
) -> bool:
    """Is there an entry that points to log bytes at READ_FROM or after it, but belongs to no record of the queue?

    OWN and EDGES are those of `foreign_entries`.
    """
    begin = bisect_left(range(len(entries)), read_from, key=_offset_in(entries))
    foreign = foreign_entries(entries, own, edges, begin)
    return any(log.files.index_of(offset) is not None for offset in foreign)


def _offset_in(entries: Entries) -> Callable[[int], int]:
    offsets = entries["log_offset"]
    return lambda row: int(offsets[row])


def batch_fault(queue: BatchConsumeQueue, records: QueueRecords) -> str | None:
    """Return how the entries of QUEUE contradict RECORDS; None if only entries at its end are missing."""
    _, offsets, sizes = records.joined()
    entries = np.concatenate([queue.all_of(file) for file in queue.files.files])
    known = entries[np.searchsorted(entries["log_offset"].astype(np.int64), offsets[0]) :]
    count = min(len(known), len(offsets))
    same = same_place(known[:count], offsets[:count], sizes[:count])
    if len(known) > len(offsets) or not same.all():
        return "entries do not point to their records"
    return None
