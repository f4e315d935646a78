"""Enters the messages of the timer topic again, after the timer log lost records.

A message that was rolled is in the topic twice. Of the copies with the same UNIQ_KEY and TIMER_OUT_MS, only the one
with the most TIMER_ROLL_TIMES is entered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.byte_ranges import hash_ranges
from ...proto.properties import (
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
)
from ...proto.property_ranges import PropertyRanges
from ...proto.record_run import Ints, Longs, as_bytes, parse_run, starts_of
from ...proto.topics import TIMER_TOPIC
from ..format.agreement import Entries, QueueName
from ..parts import StoreParts
from ..slices import read_entries, warn_of_missing
from .entry import TimerBatch
from .store import TimerStore

_TIMERS: Final = QueueName(TIMER_TOPIC)
#: Messages examined together, and their bytes.
_MESSAGES: Final = 4096
_BYTES: Final = 8 << 20
#: Times beyond the year 6400 are damage; sums with such a time must not overflow.
_TIME_MAX: Final = 1 << 47

Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages of the timer topic: the fields that decide about each."""

    next_offset: int
    log_offsets: Longs
    sizes: Longs
    store_ms: Longs
    out_ms: Longs
    rolls: Longs
    keys: list[bytes]
    deletes: NDArray[np.bool_]
    topic_hashes: Ints


def enter_again(timers: TimerStore, parts: StoreParts, write_ms: int) -> None:
    """Enter the undelivered messages before TIMERS' queue offset, at WRITE_MS, into an empty log.

    Memory: one entry for each rolled message.
    """
    end = timers.queue_offset
    read_ms = timers.read_ms
    newest: dict[Key, int] = {}
    for messages in _messages(parts, end):
        for row in np.flatnonzero(messages.rolls > 0).tolist():
            key = messages.keys[row], int(messages.out_ms[row])
            newest[key] = max(newest.get(key, 0), int(messages.rolls[row]))
    for messages in _messages(parts, end):
        filed_ms = np.maximum(
            messages.out_ms, messages.store_ms // timers.precision_ms * timers.precision_ms
        )
        wanted = (messages.out_ms >= 0) & (filed_ms >= read_ms)
        if newest:
            wanted &= _unrolled(messages, newest)
        timers.enqueue(_batch(messages, wanted), write_ms)
    timers.go_on_at(end)


def _unrolled(messages: _Messages, newest: dict[Key, int]) -> NDArray[np.bool_]:
    """Return which of MESSAGES have no copy that was rolled more often."""
    rows = zip(messages.keys, messages.out_ms.tolist(), messages.rolls.tolist(), strict=True)
    return np.array([rolls >= newest.get((key, out), rolls) for key, out, rolls in rows], np.bool_)


def _batch(messages: _Messages, wanted: NDArray[np.bool_]) -> TimerBatch:
    return TimerBatch(
        log_offsets=messages.log_offsets,
        sizes=messages.sizes.astype(np.int32),
        out_ms=messages.out_ms,
        deletes=messages.deletes,
        topic_hashes=messages.topic_hashes,
        next_queue_offset=messages.next_offset,
    ).take(wanted)


def _messages(parts: StoreParts, end: int) -> Iterator[_Messages]:
    """Yield the messages of the timer topic up to queue offset END, some thousand at a time."""
    queue = parts.queues.get(TIMER_TOPIC, 0)
    if queue is None:
        return
    offset = queue.min_offset
    while offset < end:
        entries = Entries(offset, *queue.entries(offset, min(_MESSAGES, end - offset)))
        if not len(entries):
            offset = queue.offset_behind_hole(offset)
            continue
        entries = entries.up_to(_BYTES)
        offset += len(entries)
        found = read_entries(parts.log, entries, _TIMERS)
        warn_of_missing(entries, found)
        if len(rows := found.rows):
            yield _parsed(found.records, entries.log_offsets[rows], entries.sizes[rows], offset)


def _parsed(records: bytes, log_offsets: Longs, sizes: Longs, next_offset: int) -> _Messages:
    columns = parse_run(records, starts_of(sizes.tolist()))
    array = as_bytes(records)
    ranges = PropertyRanges(array, columns)
    topic_at, topic_size = ranges.find(REAL_TOPIC)
    named = topic_size > 0
    hashes = np.zeros(len(columns), np.int32)
    if named.any():
        hashes[named] = hash_ranges(array, topic_at[named], topic_size[named])
    key_at, key_size = ranges.find(UNIQ_KEY)
    return _Messages(
        next_offset,
        log_offsets,
        sizes,
        columns.store_ms,
        numbers(records, *ranges.find(TIMER_OUT_MS)),
        numbers(records, *ranges.find(TIMER_ROLL_TIMES)),
        [
            records[at : at + max(size, 0)]
            for at, size in zip(key_at.tolist(), key_size.tolist(), strict=True)
        ],
        ranges.find(TIMER_DELETE_KEY)[1] > 0,
        hashes,
    )


def numbers(records: bytes, starts: Longs, sizes: Longs) -> Longs:
    """Return the decimal number in each range of RECORDS; −1 where there is none below _TIME_MAX."""
    found = np.full(len(starts), -1, np.int64)
    for row, (at, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        text = records[at : at + size] if 0 < size < 19 else b""
        if text.isdigit() and int(text) < _TIME_MAX:
            found[row] = int(text)
    return found
