"""Looking at messages that a group has not looked at yet, through its filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...proto.record_run import starts_of
from ...store.message_store import MessageStore
from ...store.slices import Slices
from ..filters.choice import Choice, share_of_turn
from .changes import PopKey

#: A look through a filter reads so many times more messages each time that it finds too few.
_GROWTH: Final = 4


class Scanned(NamedTuple):
    """FOUND are (offset, record); everything from BEGIN to NEXT_OFFSET was looked at; END is where the queue ends.

    LOST: messages that were looked at and are damaged, or gone with a file.
    """

    found: Sequence[tuple[int, bytes]]
    next_offset: int
    end: int
    begin: int
    lost: int = 0


def scan(
    store: MessageStore,
    key: PopKey,
    offset: int,
    room: int,
    room_bytes: int,
    choice: Choice | None,
) -> Scanned:
    """Return wanted messages of the queue KEY from OFFSET on: up to ROOM, of ROOM_BYTES together, but at least one.

    With a CHOICE that wants few the look ends after a bounded number of messages, and goes on from there next time.
    """
    _, topic, queue = key
    low, end = store.queue_bounds(topic, queue)
    begin = offset = max(offset, low)
    if offset >= end or room <= 0:
        return Scanned((), offset, end, begin)
    if choice is None:
        seen = store.read_queue(topic, queue, offset, room, room_bytes)
        return Scanned(_pairs(seen), seen.next_offset, end, begin, seen.lost)
    lost = 0
    count, stop, turn = room, offset + choice.records_max, 0.0
    bytes_max = min(room_bytes, choice.bytes_max)
    while True:
        seen = store.read_queue(topic, queue, offset, count, bytes_max, choice.candidates)
        found, offset = _wanted(seen, choice, room)
        lost += seen.lost
        turn += share_of_turn(choice, seen)
        if found or offset >= min(end, stop) or turn >= 1:
            return Scanned(found, offset, end, begin, lost)
        count = min(count * _GROWTH, choice.records_max)


def read_one(store: MessageStore, topic: str, queue: int, offset: int) -> bytes | None:
    """Return the message at OFFSET; None if it is gone."""
    low, end = store.queue_bounds(topic, queue)
    if not low <= offset < end:
        return None
    seen = store.read_queue(topic, queue, offset, 1, 1)
    return seen.records if len(seen) and int(seen.queue_offsets[0]) == offset else None


def _pairs(seen: Slices) -> list[tuple[int, bytes]]:
    data = seen.records
    found = []
    at = 0
    for offset, size in zip(seen.queue_offsets.tolist(), seen.sizes.tolist(), strict=True):
        found.append((offset, data[at : at + size]))
        at += size
    return found


def _wanted(seen: Slices, choice: Choice, room: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return up to ROOM of what was SEEN and is wanted, and how far that is."""
    (rows,) = choice.wanted(seen).nonzero()
    next_offset = seen.next_offset
    if len(rows) > room:
        next_offset = int(seen.queue_offsets[rows[room]])
        rows = rows[:room]
    if not len(rows):
        return [], next_offset
    starts = starts_of(seen.sizes)[rows].tolist()
    offsets, sizes = seen.queue_offsets[rows].tolist(), seen.sizes[rows].tolist()
    records = [seen.records[at : at + size] for at, size in zip(starts, sizes, strict=True)]
    return list(zip(offsets, records, strict=True)), next_offset
