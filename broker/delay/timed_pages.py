"""Timed messages in pages: from the timer topic into the timer log, and from the log into memory.

A page is what one turn of the loop takes: PAGE_MESSAGES or PAGE_BYTES, whichever is reached first, some milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np

from ...proto.record_run import Longs, parse_run, starts_of
from ...proto.topics import TIMER_TOPIC
from ...store.message_store import MessageStore
from ...store.slices import Entries, QueueName
from ...store.timers.entry import TimerBatch
from .delivered_note import DeliveredNote
from .horizon import NO_ROWS, LoadedSlot, Rows, noted
from .timed_records import TimedRecords, unique_hashes_of

logger = logging.getLogger(__name__)

_TIMERS: Final = QueueName(TIMER_TOPIC)
PAGE_MESSAGES: Final = 2_000
PAGE_BYTES: Final = 2 * 1024 * 1024
#: Looking up a slot costs about as much as so many messages.
_SLOT_MESSAGES: Final = 20


def fitting(sizes: Longs, bytes_max: int) -> int:
    """Return how many leading records of SIZES have at most BYTES_MAX bytes together."""
    return int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), bytes_max, "right"))


def enter_page(store: MessageStore, now_ms: int) -> Longs | None:
    """Enter the next page of the timer topic into the timer log of STORE; return TIMER_OUT_MS of each message.

    None: all were entered. A message without an instant is passed over with a warning. Raises what `enqueue` of the
    timer store raises; then nothing was entered.
    """
    timers = store.timers
    low, high = store.queue_bounds(TIMER_TOPIC, 0)
    offset = timers.queue_offset
    if offset < low:
        logger.warning(
            "timed messages were deleted before they were entered", extra={"count": low - offset}
        )
        offset = low
    if offset >= high:
        return None
    page = store.read_queue(TIMER_TOPIC, 0, offset, PAGE_MESSAGES, PAGE_BYTES)
    columns = parse_run(page.records, starts_of(page.sizes))
    records = TimedRecords(page.records, columns)
    sound, recalls = records.sound(), records.recalls()
    if not sound.all():
        odd = columns.log_offset[~sound]
        logger.warning(
            "messages of the timer topic without an instant are passed over",
            extra={"count": len(odd), "log_offset": int(odd[0])},
        )
    batch = TimerBatch(
        log_offsets=columns.log_offset,
        sizes=columns.sizes.astype(np.int32),
        out_ms=records.out_ms(),
        deletes=recalls,
        topic_hashes=records.topic_hashes(),
        next_queue_offset=page.next_offset,
    )
    if not sound.all():
        batch = batch.take(sound)
    timers.enqueue(batch, now_ms)
    signs = np.where(recalls, -1, 1) * sound
    for topic, count in records.topic_counts(signs).items():
        timers.metrics.add(topic, count)
    return batch.out_ms


class SlotLoader:
    """Brings slots into memory, page by page."""

    def __init__(self, store: MessageStore, note: DeliveredNote | None = None) -> None:
        """NOTE tells what an earlier process delivered of slots that are read again."""
        self._store = store
        self._note = note
        self._precision_ms = store.timers.precision_ms

    def load(self, slots: Sequence[LoadedSlot]) -> None:
        """Read one page of SLOTS, which are being loaded: the first ones first.

        Raises what the store raises: then nothing was taken off what is to be read.
        """
        pages: list[tuple[LoadedSlot, Rows]] = []
        try:
            self._choose(slots, pages)
            self._read_messages(pages)
        except BaseException:
            for slot, rows in pages:
                slot.give_back(rows)
            raise
        for slot, _ in pages:
            slot.ready |= not slot.is_loading

    def _choose(self, slots: Sequence[LoadedSlot], pages: list[tuple[LoadedSlot, Rows]]) -> None:
        """Take what is read next off SLOTS, and put it into PAGES; recalls are read here."""
        room, room_bytes = PAGE_MESSAGES, PAGE_BYTES
        for slot in slots:
            if room <= 0 or not slot.follow(PAGE_MESSAGES):
                break
            room -= _SLOT_MESSAGES
            if len(slot.markers):
                room -= self._read_markers(slot)
                if len(slot.markers):
                    break
            sizes = slot.unread["size"][: max(room, 1)]
            count = fitting(sizes, room_bytes)
            if count < len(sizes) and not pages:
                count = max(count, 1)
            rows = slot.next_unread(count)
            pages.append((slot, rows))
            room -= len(rows)
            room_bytes -= int(rows["size"].sum(dtype=np.int64))
            if slot.is_loading:
                break

    def read(self, rows: Rows) -> tuple[bytes, TimedRecords, Rows]:
        """Return the records of ROWS that are there, and which rows these are."""
        sizes = rows["size"].astype(np.int64)
        none = np.zeros(len(rows), np.int64)
        data, found = self._store.read_records(Entries(0, rows["log_offset"], sizes, none), _TIMERS)
        columns = parse_run(data, starts_of(sizes[found]))
        return data, TimedRecords(data, columns), rows[found]

    def _read_markers(self, slot: LoadedSlot) -> int:
        """Read a page of recalls of SLOT, and take out what they mean of what is in memory; return how many."""
        sizes = slot.markers["size"][:PAGE_MESSAGES]
        rows = slot.markers[: max(fitting(sizes, PAGE_BYTES), 1)]
        _, records, _ = self.read(rows)
        keys = set(records.recall_keys()) - slot.keys
        if keys and slot.in_memory:
            hashes = {one for key in keys for one in unique_hashes_of(key)}
            self._take_out(slot, slot.with_hashes(hashes), keys)
        # All was read: nothing of it is done twice.
        slot.keys |= keys
        slot.recalls.update(records.topic_counts(records.recalls().astype(np.int64)))
        slot.pass_markers(len(rows))
        return len(rows)

    def _take_out(self, slot: LoadedSlot, candidates: Rows, keys: set[bytes]) -> None:
        """Take those of CANDIDATES out of SLOT that recalls of KEYS mean."""
        for begin in range(0, len(candidates), PAGE_MESSAGES):
            _, records, rows = self.read(candidates[begin : begin + PAGE_MESSAGES])
            hit = records.recalled(keys)
            slot.recalled.update(records.topic_counts(hit.astype(np.int64)))
            slot.remove(rows["position"][hit])

    def _read_messages(self, pages: Sequence[tuple[LoadedSlot, Rows]]) -> None:
        """Find out when the rows of PAGES are due, and let them wait for that in their slots."""
        rows = np.concatenate([page for _, page in pages]) if pages else NO_ROWS
        if not len(rows):
            return
        slots_ms = np.repeat([slot.slot_ms for slot, _ in pages], [len(page) for _, page in pages])
        rows["due_ms"] = slots_ms  # Remembers the slot until the instant is known.
        _, records, rows = self.read(rows)
        sound = records.sound()
        slots_ms = rows["due_ms"].copy()
        due_ms = np.minimum(records.due_ms(self._precision_ms), slots_ms + self._precision_ms)
        rows["due_ms"] = np.where(rows["rolled"], slots_ms, due_ms)
        rows["unique_hash"] = records.unique_hashes()
        if not sound.all():
            odd = rows["log_offset"][~sound]
            logger.warning(
                "timer records of what is no timed message are passed over",
                extra={"count": len(odd), "log_offset": int(odd[0])},
            )
        for slot, _ in pages:
            mine = sound & (slots_ms == slot.slot_ms)
            note = None if self._note is None else self._note.of_slot(slot.slot_ms)
            if note is not None:
                done = mine & noted(rows, note)
                slot.begun |= bool(done.any())
                mine &= ~done
            if slot.keys and mine.any():
                hit = mine & records.recalled(slot.keys)
                slot.recalled.update(records.topic_counts(hit.astype(np.int64)))
                mine &= ~hit
            slot.waiting.add(rows[mine])
