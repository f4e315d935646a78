"""What lies unread in one queue: its bytes, and when the oldest was stored. Entries and record heads, never bodies.

One pass over the entries behind the lowest offset serves all groups of a queue.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...proto.record import head_store_time_ms
from ...proto.record_run import LEAST_SIZE, Longs
from ...store.apache.queue import JavaQueue
from ...store.apache.store import JavaReading
from ...store.format.log_file import begins_record
from ..stores.queue_entries import QueueEntries, entries_of

#: So many records that cannot be read are passed over, one by one, to find the oldest that can.
_BAD_HEADS_MAX: Final = 64


@dataclass(slots=True)
class Unread:
    """The unread messages from one offset on: how many have entries, their bytes, when the oldest was stored."""

    messages: int = 0
    size_bytes: int = 0
    oldest_stored_ms: int | None = None
    _bad_heads: int = field(default=0, repr=False)


def unread_from(
    store: JavaReading, queue: JavaQueue, offsets: Collection[int]
) -> dict[int, Unread]:
    """Return what is unread in QUEUE from each of OFFSETS on; offsets below its minimum begin there."""
    found = {offset: Unread() for offset in offsets if offset < queue.max_offset}
    if not found:
        return found
    heads: dict[int, int | None] = {}
    for entries in entries_of(queue, min(found), queue.max_offset):
        for offset, unread in found.items():
            _add(store, heads, unread, entries, offset)
    return found


def _add(
    store: JavaReading,
    heads: dict[int, int | None],
    unread: Unread,
    entries: QueueEntries,
    offset: int,
) -> None:
    """Count in UNREAD those of ENTRIES that hold messages from OFFSET on."""
    ends = entries.queue_offset + entries.count
    first = 0 if len(ends) and ends[0] > offset else int(np.searchsorted(ends, offset, "right"))
    if first == len(ends):
        return
    unread.messages += int(
        ends[first:].sum() - np.maximum(entries.queue_offset[first:], offset).sum()
    )
    unread.size_bytes += int(entries.size[first:].sum())
    if unread.oldest_stored_ms is None and unread._bad_heads < _BAD_HEADS_MAX:
        _find_oldest(store, heads, unread, entries.physical_offset[first:], entries.size[first:])


def _find_oldest(
    store: JavaReading,
    heads: dict[int, int | None],
    unread: Unread,
    places: Longs,
    sizes: Longs,
) -> None:
    """Set when the first of the records at PLACES that can be read was stored."""
    first = int(places[0])
    if first not in heads:
        heads[first] = stored_ms(store, first, int(sizes[0]))
    unread.oldest_stored_ms = heads[first]
    if heads[first] is not None:
        return
    inside = np.flatnonzero(_are_in_log(store, places))
    for row in inside[: _BAD_HEADS_MAX - unread._bad_heads].tolist():
        place = int(places[row])
        if place not in heads:
            heads[place] = stored_ms(store, place, int(sizes[row]))
        if heads[place] is not None:
            unread.oldest_stored_ms = heads[place]
            return
        unread._bad_heads += 1


def _are_in_log(store: JavaReading, places: Longs) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell for each of PLACES whether a log file holds it."""
    files = store.log.files
    if not files:
        return np.zeros(len(places), np.bool_)
    starts = np.array([file.start for file in files], np.int64)
    ends = np.array([file.start + file.wrote for file in files], np.int64)
    number = np.searchsorted(starts, places, "right") - 1
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (number >= 0) & (places < ends[number])
    return found


def stored_ms(store: JavaReading, place: int, size: int) -> int | None:
    """Return when the record of SIZE bytes at log offset PLACE was stored; None if there is no such record."""
    file = store.log.find(place)
    if file is None:
        return None
    at = place - file.start
    head = file.mapping.read(at, min(LEAST_SIZE, file.wrote - at))
    if len(head) < LEAST_SIZE or not begins_record(head, size):
        return None
    return head_store_time_ms(head)
