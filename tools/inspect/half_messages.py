"""The half messages of transactions, and which of them have an outcome, from the two system topics.

A half message lies in RMQ_SYS_TRANS_HALF_TOPIC; a record of RMQ_SYS_TRANS_OP_HALF_TOPIC with the tag `d` names queue
offsets there that are done with, each followed by a comma. Whether an outcome was commit or rollback is not written
down; a committed message carries its half message's log offset. Source: store-format.md §7.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...broker.transactions.half_messages import resolved_offsets
from ...proto import properties as names
from ...proto.property_ranges import PropertyRanges
from ...proto.record_run import as_bytes, parse_run
from ...proto.topics import HALF_TOPIC, OP_HALF_TOPIC
from ...store.view import StoreView
from .log_walk import LogWalk, Stretch
from .queue_entries import QueueEntries

_DONE_TAG: Final = "d"
_PROPERTIES: Final = {
    "realTopic": names.REAL_TOPIC,
    "realQueueId": names.REAL_QUEUE_ID,
    "producerGroup": names.PRODUCER_GROUP,
    "messageId": names.UNIQ_KEY,
    "transactionId": names.TRANSACTION_ID,
    "checkTimes": names.TRANSACTION_CHECK_TIMES,
}


def half_messages(files: StoreView, walk: LogWalk) -> Iterator[dict[str, Any]]:
    """Yield every half message that the log still has, oldest first.

    `state` is "open" (waits for its outcome), "ended" (has one), or "put again" (was checked and lies further behind
    once more; its own mark was not written yet).
    """
    queues = [one.queue_id for one in files.queues() if one.topic == HALF_TOPIC]
    for queue_id in queues:
        done = _done(files, walk, queue_id)
        newest: dict[str | None, int] = {}
        for part in queue_records(files, walk, HALF_TOPIC, queue_id):
            ranges = PropertyRanges(as_bytes(part.view), part.columns)
            newest |= zip(
                ranges.texts(names.UNIQ_KEY), part.columns.queue_offset.tolist(), strict=True
            )
        for part in queue_records(files, walk, HALF_TOPIC, queue_id):
            for row in _rows(part):
                offset, key = row["queueOffset"], row["messageId"]
                again = key is not None and newest[key] > offset
                state = "ended" if offset in done else "put again" if again else "open"
                yield row | {"state": state}


def _rows(part: Stretch) -> Iterator[dict[str, Any]]:
    ranges = PropertyRanges(as_bytes(part.view), part.columns)
    texts = {field: ranges.texts(name) for field, name in _PROPERTIES.items()}
    columns = part.columns
    for row, offset in enumerate(columns.queue_offset.tolist()):
        checks = texts["checkTimes"][row] or "0"
        yield {
            "queueOffset": offset,
            "physicalOffset": int(part.offsets[row]),
            **{field: found[row] for field, found in texts.items()},
            "checkTimes": int(checks) if checks.isdecimal() else None,
            "bornTimestamp": int(columns.born_ms[row]),
            "storeTimestamp": int(columns.store_ms[row]),
        }


def _done(files: StoreView, walk: LogWalk, queue_id: int) -> set[int]:
    """Return the queue offsets of half messages of queue QUEUE_ID that have an outcome."""
    done: set[int] = set()
    for part in queue_records(files, walk, OP_HALF_TOPIC, queue_id):
        tags = PropertyRanges(as_bytes(part.view), part.columns).texts(names.TAGS)
        starts, sizes = part.columns.body_start.tolist(), part.columns.body_size.tolist()
        for tag, start, size in zip(tags, starts, sizes, strict=True):
            if tag == _DONE_TAG:
                done.update(resolved_offsets(bytes(part.view[start : start + size])))
    return done


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
