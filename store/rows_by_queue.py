"""The rows of a batch of records, grouped by topic and queue."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..proto.byte_ranges import hash_ranges, left_aligned
from ..proto.record_run import RunColumns

Bytes = NDArray[np.uint8]
Rows = NDArray[np.intp]


def by_queue(
    array: Bytes, columns: RunColumns, chosen: Rows | None
) -> Iterator[tuple[str, int, Rows]]:
    """Yield topic, queue and rows, in order, for each queue of the CHOSEN records (None: all).

    The topics are not checked: in damaged records they may contain any characters.
    """
    rows = np.arange(len(columns)) if chosen is None else chosen
    if not len(rows):
        return
    hashes = hash_ranges(array, columns.topic_start[rows], columns.topic_size[rows])
    keys = hashes.astype(np.int64) << 32 | columns.queue_id[rows].view(np.uint32)
    if (keys != keys[0]).any():
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
    cuts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    for group in np.split(rows, cuts):
        yield from _by_topic(array, columns, group)


def _by_topic(array: Bytes, columns: RunColumns, rows: Rows) -> Iterator[tuple[str, int, Rows]]:
    """Yield topic, queue and rows. ROWS have the same queue number and most likely the same topic."""
    while len(rows):
        size = int(columns.topic_size[rows[0]])
        names = left_aligned(array, columns.topic_start[rows], columns.topic_size[rows], size)
        same = (names == names[0]).all(axis=1) & (columns.topic_size[rows] == size)
        topic = names[0].tobytes().decode("utf-8", "replace")
        yield topic, int(columns.queue_id[rows[0]]), rows[same]
        rows = rows[~same]
