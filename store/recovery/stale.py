"""Stale records at the end of a log: bytes of an earlier life of the file that join the new end by chance.

A broker that cuts its log without zeroing (Apache) and writes on leaves old records behind the new end. They even say
that they stand where they stand. They are taken for stale if nothing from the first of them on is as young as the
record in front of it, and their queue offsets do not continue those of the records in front. One alone is no
proof: clocks step back, and acknowledged messages must not be thrown away for that.
"""

from __future__ import annotations

import numpy as np

from ..consume_queues import ConsumeQueues
from ..dispatch import by_queue
from .scan import ScannedFile


def stale_begin(scanned: ScannedFile, oldest_ms: int, queues: ConsumeQueues) -> int | None:
    """Return the row of the first stale record of the log's last file; None if there is none.

    OLDEST_MS is the store time of the newest record before the file. QUEUES tell what was numbered before it.
    """
    columns = scanned.columns
    if not len(columns):
        return None
    reached = np.maximum(np.maximum.accumulate(columns.store_ms), oldest_ms)
    older = columns.store_ms < reached
    if not older[-1]:
        return None
    first = len(older) - int(older[::-1].argmin()) if not older.all() else 0
    return None if _continues(scanned, first, queues) else first


def _continues(scanned: ScannedFile, first: int, queues: ConsumeQueues) -> bool:
    """Do the queue offsets from the record FIRST on continue those of the records in front?"""
    columns, data = scanned.columns, scanned.file.data
    following: dict[tuple[str, int], int] = {}
    for topic, queue, rows in by_queue(data, columns, np.arange(first)):
        following[topic, queue] = int(columns.queue_offset[rows[-1]]) + 1
    begin = int(columns.log_offset[first])
    for topic, queue, rows in by_queue(data, columns, np.arange(first, len(columns))):
        wanted = following.get((topic, queue))
        if wanted is None:
            known = queues.get(topic, queue)
            wanted = 0 if known is None else known.row.first_from(begin)
        if int(columns.queue_offset[rows[0]]) != wanted:
            return False
    return True
