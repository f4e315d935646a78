"""Where the records of a repeated run are: what the table remembers of the last runs, looked up in the store.

Of a record whose place is not known any more, queue offset and log offset are −1. The queue offset of a delayed message
is that in the queue where it waits; so is that of a half message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...proto.errors import InvalidRecord
from ...proto.properties import TIMER_DELIVER_MS, TIMER_OUT_MS
from ...proto.record import Record, decode_record
from ...proto.record_run import Longs
from ...proto.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from ...store.message_store import MessageStore
from .sequence import Stored
from .sequences import Numbered


@dataclass(frozen=True, slots=True)
class Places:
    """One value a record; −1: not known, or not stored. All that is stored lies in the log before END_OFFSET.

    due_ms: when each is due, 0: at once;  store_ms: when the newest of them was stored, 0: not known.
    """

    queue_offsets: Longs
    log_offsets: Longs
    due_ms: Longs
    store_ms: int
    end_offset: int


def places_of(store: MessageStore, run: Numbered) -> Places:
    """Return where the records of RUN are that are stored already."""
    numbers, sequence = run.numbers, run.sequence
    assert sequence is not None, "something of it is stored"
    queue_offsets: Longs = np.full(numbers.count, -1, np.int64)
    log_offsets = queue_offsets.copy()
    due_ms: Longs = np.zeros(numbers.count, np.int64)
    store_ms = 0
    for stored in sequence.runs:
        begin, end = max(stored.first, numbers.first), min(stored.end, numbers.end)
        if begin >= end:
            continue
        store_ms = max(store_ms, stored.store_ms)
        rows = slice(begin - numbers.first, end - numbers.first)
        chosen = slice(begin - stored.first, end - stored.first)
        if stored.log_offsets is None:
            found = _in_queue(store, run.key[1], run.key[2], stored, chosen)
            if found is not None:
                queue_offsets[rows], log_offsets[rows] = found
        else:
            for row, log_offset in enumerate(stored.log_offsets[chosen].tolist(), rows.start):
                if log_offset >= 0 and (record := _record(store, log_offset)) is not None:
                    queue_offsets[row], log_offsets[row] = record.queue_offset, log_offset
                    due_ms[row] = _due_ms(store, record)
    return Places(queue_offsets, log_offsets, due_ms, store_ms, sequence.end_offset)


def _in_queue(
    store: MessageStore, topic: str, queue: int, stored: Stored, rows: slice
) -> tuple[Longs, Longs] | None:
    """Return queue and log offsets of ROWS of a run whose records follow each other in their queue."""
    entries = store.queues.get(topic, queue)
    if entries is None or entries.log_offset(stored.queue_offset) != stored.log_offset:
        return None  # It was deleted, or the queue begins anew.
    first, end = stored.queue_offset + rows.start, stored.queue_offset + rows.stop
    found: list[Longs] = []
    at = first
    while at < end:  # An answer ends with a file.
        found.append(entries.entries(at, end - at)[0])
        if not len(found[-1]):
            return None
        at += len(found[-1])
    return np.arange(first, end), np.concatenate(found)


def _record(store: MessageStore, log_offset: int) -> Record | None:
    data = store.read_at(log_offset)
    try:
        return None if data is None else decode_record(data)
    except InvalidRecord:
        return None


def _due_ms(store: MessageStore, record: Record) -> int:
    """Return when RECORD is due; 0: it does not wait."""
    if record.topic == SCHEDULE_TOPIC:
        levels_ms = store.config.delay_levels_ms
        return record.store_timestamp_ms + levels_ms[min(record.queue_id, len(levels_ms) - 1)]
    if record.topic != TIMER_TOPIC:
        return 0
    out_ms = record.properties.get(TIMER_OUT_MS, "")
    deliver_ms = record.properties.get(TIMER_DELIVER_MS, "")
    return int(deliver_ms if deliver_ms.isdecimal() else out_ms if out_ms.isdecimal() else 0)
