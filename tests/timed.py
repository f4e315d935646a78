"""Timed messages for tests of the store: appended to the timer topic, entered as the broker enters them, read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pocketmq.proto.java_hash import java_hash
from pocketmq.proto.properties import REAL_TOPIC, TIMER_DELETE_KEY, TIMER_OUT_MS
from pocketmq.proto.property_ranges import PropertyRanges
from pocketmq.proto.record_run import parse_run, starts_of
from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.format.timer_log import DELETE
from pocketmq.store.message_store import MessageStore
from pocketmq.store.timers.entry import TimerBatch
from pocketmq.store.timers.reentry import numbers
from pocketmq.store.timers.slot import TimerSlot
from pocketmq.store.timers.store import TimerStore

from .runs import Hand, make_run, open_store

TOPIC = "Timed"
NOW = 1_700_000_000_000
SECOND = 1000
DAY = 86_400_000


@dataclass(frozen=True)
class Message:
    """A message that is due after OUT_MS; KEY is its id, DELETES makes it a recall of that id."""

    key: str
    out_ms: int
    deletes: str | None = None
    rolls: int = 0

    def properties(self) -> dict[str, str]:
        found = {"UNIQ_KEY": self.key, TIMER_OUT_MS: str(self.out_ms), REAL_TOPIC: TOPIC}
        if self.deletes is not None:
            found[TIMER_DELETE_KEY] = self.deletes
        if self.rolls:
            found["TIMER_ROLL_TIMES"] = str(self.rolls)
        return found


def messages(count: int, out_ms: int, name: str = "m") -> list[Message]:
    """Return COUNT messages that are due after OUT_MS."""
    return [Message(key, out_ms) for key in names(count, name=name)]


def names(count: int, begin: int = 0, name: str = "m") -> list[str]:
    """Return the ids of COUNT `messages`, from the one with number BEGIN on."""
    return [f"{name}{number}" for number in range(begin, begin + count)]


def opened(path: Path, clock: Hand | None = None, **changes: Any) -> MessageStore:
    """Open a store whose timer log has small files."""
    return open_store(path, now_ms=clock or Hand(NOW), timer_log_file_size_bytes=1104, **changes)


def send(store: MessageStore, messages: Sequence[Message]) -> None:
    """Append MESSAGES to the timer topic; nothing is entered."""
    bodies = [message.key.encode() for message in messages]
    store.append(make_run(TIMER_TOPIC, 0, bodies, [one.properties() for one in messages]))


def enter(store: MessageStore, now_ms: int, most: int = 1000) -> int:
    """Enter what the timer topic holds behind `queue_offset`, at most MOST messages as one batch; return how many."""
    timers = store.timers
    if timers.queue_offset >= store.queue_bounds(TIMER_TOPIC, 0)[1]:
        return 0
    batch = batch_at(store, timers.queue_offset, most)
    timers.enqueue(batch, now_ms)
    return len(batch)


def enter_all(store: MessageStore, now_ms: int) -> None:
    """Enter all that the timer topic holds."""
    while enter(store, now_ms):
        pass


def batch_at(store: MessageStore, offset: int, most: int) -> TimerBatch:
    """Return the batch of at most MOST messages from queue offset OFFSET on."""
    records, sizes = bytearray(), list[int]()
    end = min(offset + most, store.queue_bounds(TIMER_TOPIC, 0)[1])
    while offset < end:  # A read may end with a file of the queue.
        slices = store.read_queue(TIMER_TOPIC, 0, offset, end - offset, 1 << 20)
        records += slices.records
        sizes += slices.sizes.tolist()
        offset = slices.next_offset
    columns = parse_run(records, starts_of(sizes))
    ranges = PropertyRanges(records, columns)
    hashes = [
        java_hash(records[at : at + size].decode()) if size > 0 else 0
        for at, size in zip(*(found.tolist() for found in ranges.find(REAL_TOPIC)), strict=True)
    ]
    return TimerBatch(
        log_offsets=columns.log_offset,
        sizes=columns.sizes.astype(np.int32),
        out_ms=numbers(bytes(records), *ranges.find(TIMER_OUT_MS)),
        deletes=ranges.find(TIMER_DELETE_KEY)[1] > 0,
        topic_hashes=np.array(hashes, np.int32),
        next_queue_offset=offset,
    )


def put(store: MessageStore, now_ms: int, messages: Sequence[Message]) -> None:
    """Append MESSAGES and enter them, as one batch."""
    if messages:
        send(store, messages)
        enter(store, now_ms, len(messages))


def read_slot(store: MessageStore, slot_ms: int, *, page: int = 100) -> TimerSlot:
    """Return the slot of SLOT_MS, read to its end in pages of PAGE records."""
    slot = store.timers.slot(slot_ms)
    while not slot.read(page):
        pass
    return slot


def keys_of(store: MessageStore, slot_ms: int, *, page: int = 3) -> list[str]:
    """Return the ids of the messages in the slot of SLOT_MS, in their order; a recall's with a minus in front."""
    found = read_slot(store, slot_ms, page=page).records()
    keys = []
    for log_offset, size, magic in zip(
        found.log_offsets.tolist(), found.sizes.tolist(), found.magics.tolist(), strict=True
    ):
        record = store.read_at(log_offset, size)
        assert record is not None
        columns = parse_run(record, starts_of([len(record)]))
        start, length = int(columns.body_start[0]), int(columns.body_size[0])
        key = record[start : start + length].decode()
        keys.append(f"-{key}" if magic & DELETE else key)
    return keys


def waiting(store: MessageStore) -> dict[int, list[str]]:
    """Return the ids of what waits, by slot."""
    timers: TimerStore = store.timers
    found: dict[int, list[str]] = {}
    slot_ms = timers.next_slot(timers.read_ms)
    while slot_ms is not None:
        found[slot_ms] = keys_of(store, slot_ms)
        slot_ms = timers.next_slot(slot_ms + 1)
    return found


def slots_of(timers: TimerStore) -> dict[int, tuple[int, int, int] | None]:
    """Return what the wheel holds of each slot that waits."""
    times = timers.ring.pending_times().tolist()
    return {time: timers.ring.get(time) for time in times}
