"""Do the entries of a queue agree with the records that the log holds?

They agree if every record that has a place in the queue has its entry there, with its log offset and size. Any other
entry, also of a queue of which the log holds no sound record, may point to what the log no longer holds (a file of it
is missing), or repeat a neighbour (the record between is damaged, see ConsumeQueue.put). Pure but for reading maps;
arrays throughout.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record_run import Longs, RunColumns
from ..batch_consume_queue import BatchConsumeQueue
from ..commit_log import CommitLog
from ..consume_queue import ConsumeQueue
from ..format.queue_entries import PRE_BLANK_SIZE

_STRANGERS: Final = "entries point to records that are damaged or of other queues"

Rows = NDArray[np.intp]
Entries = NDArray[Any]


@dataclass(slots=True)
class QueueRecords:
    """The records of one queue in order of the log, one array for each log file: numbers are queue offsets."""

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
        """Yield file and rows of the records that end behind LOG_END."""
        for number, file in enumerate(self.files):
            offsets = self.offsets[number]
            if len(offsets) and int(offsets[-1]) + int(self.sizes[number][-1]) > log_end:
                chosen = offsets + self.sizes[number] > log_end
                yield file, self.rows[number][chosen].astype(np.intp)


def plain_fault(
    queue: ConsumeQueue, records: QueueRecords, log: CommitLog, read_from: int
) -> str | None:
    """Return how the entries of QUEUE contradict RECORDS; None if there is nothing but missing ones at its end.

    RECORDS are all that the LOG holds from log offset READ_FROM on.
    """
    if not records.files:
        nothing = np.zeros(0, np.int64)
        files = queue.files.files
        strange = (
            _has_strangers(queue.row.all_of(one), nothing, (-1, -1), log, read_from)
            for one in files
        )
        return _STRANGERS if any(strange) else None
    numbers, offsets, sizes = records.joined()
    if not (numbers[1:] > numbers[:-1]).all():
        return None  # Numbered anew, or numbers given twice: ConsumeQueue.put decides.
    claimed = np.zeros(len(numbers), np.bool_)
    for file in queue.files.files:
        entries = queue.row.all_of(file)
        first = file.start // queue.row.entry_size
        low, high = np.searchsorted(numbers, (first, first + len(entries)))
        places = numbers[low:high] - first
        own = entries[places]
        if not ((own["log_offset"] == offsets[low:high]) & (own["size"] == sizes[low:high])).all():
            return "entries point elsewhere than to their records"
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
        return "the last entries are of other records"
    return None


def _has_strangers(
    entries: Entries, own: Longs, edges: tuple[int, int], log: CommitLog, read_from: int
) -> bool:
    """Is there an entry that is none of OWN, points to log bytes, and repeats neither of the OWN around it?

    EDGES are the log offsets of the queue's records before and behind this file; −1 for none. Only what lies at log
    offset READ_FROM or behind it is known.
    """
    others = np.ones(len(entries), np.bool_)
    others[own] = False
    others[: bisect_left(range(len(entries)), read_from, key=_offset_in(entries))] = False
    rows = np.flatnonzero(others)
    if not len(rows):
        return False
    around = np.concatenate(
        (np.array([edges[0]]), entries["log_offset"][own].astype(np.int64), np.array([edges[1]]))
    )
    place = np.searchsorted(own, rows)
    offsets = entries["log_offset"][rows].astype(np.int64)
    strange = (offsets != around[place]) & (offsets != around[place + 1])
    strange &= entries["size"][rows] != PRE_BLANK_SIZE
    return any(log.files.index_of(offset) is not None for offset in offsets[strange].tolist())


def _offset_in(entries: Entries) -> Callable[[int], int]:
    offsets = entries["log_offset"]
    return lambda row: int(offsets[row])


def batch_fault(queue: BatchConsumeQueue, records: QueueRecords) -> str | None:
    """Return how the entries of QUEUE contradict RECORDS; None if there is nothing but missing ones at its end."""
    _, offsets, sizes = records.joined()
    entries = np.concatenate([queue.row.all_of(file) for file in queue.files.files])
    known = entries["log_offset"].astype(np.int64)
    first = int(np.searchsorted(known, offsets[0]))
    known, known_sizes = known[first:], entries["size"][first:].astype(np.int64)
    count = min(len(known), len(offsets))
    same = (known[:count] == offsets[:count]) & (known_sizes[:count] == sizes[:count])
    if len(known) > len(offsets) or not same.all():
        return "entries point elsewhere than to their records"
    return None
