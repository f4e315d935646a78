"""A batch consume queue: an entry for each *inner batch*, a record that holds many messages of one topic and queue.

Only topics with the attribute queue.type=BatchCQ have them, in batchconsumequeue/<topic>/<queue>/. Entries
(format/queue_entries.py) are read, recovered, and made again from the log; nothing here writes new batches.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..proto.record_run import Longs
from .consume_queue import Placed
from .disk import Disk
from .entry_row import EntryRow, Sum
from .files import MappedFiles
from .format.queue_entries import BATCH_ENTRY, NOT_COMPACTED
from .format.rows import Rows


class _BatchRow(EntryRow):
    __slots__ = ()

    def valid(self, entries: Rows) -> NDArray[np.bool_]:
        sound: NDArray[np.bool_] = (
            (entries["size"] > 0) & (entries["base"] >= 0) & (entries["count"] > 0)
        )
        return sound


class BatchConsumeQueue:
    """Queue QUEUE of TOPIC.

    min_offset, max_offset: queue offsets of the oldest message that can be read, and of the next one to come.
    """

    is_batch = True

    def __init__(self, topic: str, queue: int, row: EntryRow) -> None:
        self.topic = topic
        self.queue = queue
        self.row = row
        self.min_offset = 0
        self.max_offset = 0

    @classmethod
    def load(
        cls, disk: Disk, folder: str, file_size: int, topic: str, queue: int
    ) -> BatchConsumeQueue:
        """Open the queue in FOLDER/TOPIC/QUEUE (none there: an empty one). Its end is not known until `recover`."""
        path = os.path.join(folder, topic, str(queue))
        return cls(
            topic, queue, _BatchRow.load(disk, path, file_size, BATCH_ENTRY, "batch consume queue")
        )

    @property
    def files(self) -> MappedFiles:
        return self.row.files

    @property
    def max_log_end(self) -> int:
        """Where the newest batch's record ends in the log; −1 without batches."""
        return self.row.max_log_end

    def put(
        self,
        log_offsets: Longs,
        sizes: Longs,
        tags_codes: Longs,
        store_ms: Longs,
        batches: tuple[Longs, Longs],
    ) -> Placed:
        """Enter batches read from the log, in its order; BATCHES are first queue offsets and numbers of messages.

        A batch that does not reach behind the newest one is known, one with a negative offset or no message has no
        place.
        """
        bases, counts = batches
        ends = log_offsets + sizes
        reached = np.maximum.accumulate(np.concatenate((np.array([self.max_log_end]), ends[:-1])))
        fresh = ends > reached
        sound = (bases >= 0) & (counts > 0) & (counts < 1 << 15)
        rows = np.flatnonzero(fresh & sound)
        if len(rows):
            entries = BATCH_ENTRY.zeros(len(rows))
            entries["log_offset"] = log_offsets[rows]
            entries["size"] = sizes[rows]
            entries["tags_code"] = tags_codes[rows]
            entries["store_ms"] = store_ms[rows]
            entries["base"] = bases[rows]
            entries["count"] = counts[rows]
            entries["compacted"] = NOT_COMPACTED
            first = not self.row.end
            self.row.append(entries)
            self._find_max()
            if first:
                self.min_offset = int(bases[rows[0]])
        return Placed(
            added=len(rows),
            known=int(np.count_nonzero(~fresh)),
            misplaced=int(np.count_nonzero(fresh & ~sound)),
        )

    def entries(self, first: int, count: int) -> tuple[Longs, Longs, Longs, Longs, Longs]:
        """Return log offsets, sizes, tags codes, first queue offsets and numbers of messages of up to COUNT batches,
        from the one on that holds queue offset FIRST; fewer at the end of a file."""
        number = self._batch_of(first)
        entries = self.row.read(number, count) if number is not None else BATCH_ENTRY.none()
        names = ("log_offset", "size", "tags_code", "base", "count")
        columns = [entries[name].astype(np.int64) for name in names]
        return columns[0], columns[1], columns[2], columns[3], columns[4]

    def _batch_of(self, offset: int) -> int | None:
        """Return the number of the entry whose batch holds queue OFFSET, or of the next one; None if none follows."""
        if offset >= self.max_offset:
            return None
        chosen = None
        for file in self.files.files:
            bases = self.row.all_of(file)["base"]
            if not len(bases) or (chosen is not None and int(bases[0]) > offset):
                break
            place = int(np.searchsorted(bases, offset, "right"))
            chosen = file.start // self.row.entry_size + max(0, place - 1)
        return chosen

    # --- after a stop, and cleaning ------------------------------------------------------------------------------

    def recover(self, last_files: int | None = 3, sums: Iterable[Sum] = ()) -> bool:
        """Find the end of the queue, and return whether it is as SUMS say, see `EntryRow.recover`."""
        as_summed = self.row.recover(last_files, sums)
        self._find_max()
        first = self.row.read(self.row.first, 1)
        self.min_offset = int(first["base"][0]) if len(first) else 0
        return as_summed

    def _find_max(self) -> None:
        self.max_offset = 0
        last = next((file for file in reversed(self.files.files) if file.position), None)
        if last is not None:
            entries = self.row.all_of(last)
            self.max_offset = int(entries["base"][-1]) + int(entries["count"][-1])

    def truncate(self, log_end: int) -> int:
        """Take out the batches whose records begin at LOG_END or behind it; return how many."""
        count = self.row.truncate(log_end)
        self._find_max()
        self.min_offset = min(self.min_offset, self.max_offset)
        return count

    def correct_min_offset(self, min_log_offset: int) -> None:
        """Set `min_offset` to the first message whose record lies at MIN_LOG_OFFSET or behind it."""
        entries = self.row.read(self.row.first_from(min_log_offset), 1)
        self.min_offset = int(entries["base"][0]) if len(entries) else self.max_offset

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files that only hold batches before MIN_LOG_OFFSET, never the last; return how many."""
        count = self.row.delete_expired(min_log_offset)
        self.correct_min_offset(min_log_offset)
        return count

    def destroy(self) -> None:
        """Delete the queue with its folder; it is empty then."""
        self.row.destroy()
        self.min_offset = self.max_offset = 0
