"""Which records are in their queues already, so that Apache's dispatch would do nothing with them; by the column."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...proto.byte_ranges import hash_ranges, left_aligned
from ...proto.record import SYS_COMMIT, SYS_TRANSACTION
from ...proto.record_run import Longs, RunColumns
from .queue import JavaQueue, SimpleQueue

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]


class EnteredRecords:
    """Tells of records whether their entries lie in QUEUES (by topic and queue), or whether they have none.

    Only queues with an entry a message are looked at; a record of another one is not entered.
    """

    def __init__(self, queues: Mapping[tuple[str, int], JavaQueue]) -> None:
        self._queues = queues

    def __call__(self, array: Bytes, columns: RunColumns) -> Bools:
        """Tell it of each record of COLUMNS, which stand in ARRAY."""
        kind = columns.sys_flag & SYS_TRANSACTION
        has_entry = (kind == 0) | (kind == SYS_COMMIT)
        entered: Bools = columns.log_offset + columns.sizes <= self._ends(array, columns)
        entered |= ~has_entry
        return entered

    def _ends(self, array: Bytes, columns: RunColumns) -> Longs:
        """Return up to where in the log the queue of each record has entries; −1 where that is unknown."""
        hashes = hash_ranges(array, columns.topic_start, columns.topic_size).astype(np.int64)
        codes = hashes << 32 | columns.queue_id.astype(np.int64) & 0xFFFFFFFF
        _, first, group = np.unique(codes, return_index=True, return_inverse=True)
        ends = np.array([self._end(array, columns, row) for row in first.tolist()], np.int64)
        found: Longs = np.where(_same_topic(array, columns, first[group]), ends[group], -1)
        return found

    def _end(self, array: Bytes, columns: RunColumns, row: int) -> int:
        start, size = int(columns.topic_start[row]), int(columns.topic_size[row])
        topic = array[start : start + size].tobytes().decode("utf-8", "replace")
        queue = self._queues.get((topic, int(columns.queue_id[row])))
        return queue.max_log_offset if isinstance(queue, SimpleQueue) else -1


def _same_topic(array: Bytes, columns: RunColumns, other: NDArray[np.intp]) -> Bools:
    """Tell of each record whether its topic is that of the record OTHER; hashes alone do not tell."""
    sizes = columns.topic_size
    width = int(sizes.max(initial=0))
    topics = left_aligned(array, columns.topic_start, sizes, width)
    behind = np.arange(width) >= sizes[:, None]
    same: Bools = ((topics == topics[other]) | behind).all(axis=1)
    same &= sizes == sizes[other]
    return same
