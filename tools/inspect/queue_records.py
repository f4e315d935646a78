"""The records that a queue's entries point to, in the queue's order, a stretch at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...proto.record_run import parse_run
from ...store.view import StoreView
from .log_walk import LogWalk, Stretch
from .queue_entries import QueueEntries


def queue_records(
    files: StoreView, walk: LogWalk, topic: str, queue_id: int, first: int = 0
) -> Iterator[Stretch]:
    """Yield the sound records of queue QUEUE_ID of TOPIC from queue offset FIRST on; none for an unknown queue."""
    folder = files.queue(topic, queue_id)
    if folder is None:
        return
    entries = QueueEntries(files, folder, walk.begin)
    bounds = entries.bounds()
    for _, part in entries.read(max(first, bounds.first), bounds.end):
        offsets = part["log_offset"].astype(np.int64)
        for file in walk.used:
            inside = offsets[(offsets >= file.start) & (offsets < file.end)]
            if len(inside):
                view = files.view(file)
                columns = parse_run(view, inside - file.start)
                sound = columns.well_formed & (columns.log_offset == inside)
                yield Stretch(file, view, columns.take(sound))
