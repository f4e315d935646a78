"""Stale records at the end of a log: bytes of an earlier life of the file that join the new end by chance.

A broker that cuts its log without zeroing (Apache) and writes on leaves old records behind the new end. They even say
that they stand where they stand. What gives them away is both that their store time lies before that of the record in
front of them, and that their queue offsets were given to other records already. One alone is no proof: clocks step
back.
"""

from __future__ import annotations

import numpy as np

from ..dispatch import by_queue
from .scan import ScannedFile


def stale_begin(scanned: ScannedFile, oldest_ms: int) -> int | None:
    """Return the row of the first stale record of the log's last file; None if there is none.

    OLDEST_MS is the store time of the newest record before the file.
    """
    columns = scanned.columns
    if not len(columns):
        return None
    reached = np.maximum(np.maximum.accumulate(columns.store_ms), oldest_ms)
    older = np.flatnonzero(columns.store_ms < reached)
    if not len(older):
        return None
    first = int(older[0])
    given: dict[tuple[str, int], int] = {}
    for topic, queue, rows in by_queue(scanned.file.data, columns, np.arange(first)):
        given[topic, queue] = int(columns.queue_offset[rows].max())
    for topic, queue, rows in by_queue(scanned.file.data, columns, np.arange(first, len(columns))):
        if int(columns.queue_offset[rows].max()) > given.get((topic, queue), -1):
            return None
    return first
