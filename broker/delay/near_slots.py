"""The slots of scheduled messages that are due next, in memory. Synchronous, without a clock.

A slot is opened HORIZON_MS before it begins, in order, and dropped when it has ended; slots are reported as delivered
(`delivered_up_to`) in order. A recall also removes its message from a slot in memory.

Limits: slots are opened while fewer than `slot_messages_max` messages and SLOTS_MAX slots are in memory (41 bytes per
message), but one slot always is. Only the code that accepts messages limits the size of a slot: a store that another
broker wrote may have larger ones. The event loop owns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from ...proto.record_run import Longs
from ...store.timers.store import TimerStore
from .progress import SlotNote
from .timed_pages import LoadedSlot, SlotLoader

#: How long before its begin a slot is loaded into memory.
HORIZON_MS: Final = 2_000
SLOTS_MAX: Final = 256
#: Timer records that are followed in one step at a stop.
_CHAIN_RECORDS: Final = 1 << 20


class NearSlots:
    """The slots of TIMERS, read by LOADER."""

    def __init__(self, timers: TimerStore, loader: SlotLoader, slot_messages_max: int) -> None:
        self._timers = timers
        self._loader = loader
        self._slot_messages_max = slot_messages_max
        self._precision_ms = timers.precision_ms
        self._slots: dict[int, LoadedSlot] = {}
        #: The times of the slots in memory, rising.
        self._order: list[int] = []
        #: Slots in memory with new records since they were read.
        self._stale: set[int] = set()
        #: No slot before this time has records that are not in memory; None: no slot at all.
        self._unread_ms: int | None = timers.read_ms

    def loaded(self) -> list[LoadedSlot]:
        """Return the slots in memory, oldest first."""
        return [self._slots[slot_ms] for slot_ms in self._order]

    def notes(self, slots: Iterable[LoadedSlot]) -> list[tuple[LoadedSlot, SlotNote]]:
        """Return the delivery notes of SLOTS; those of slots that are not read completely are left out."""
        return [
            (slot, slot.note())
            for slot in slots
            if slot.ready and not slot.is_loading and slot.slot_ms not in self._stale
        ]

    @property
    def delivered(self) -> int:
        """Return how many messages were delivered or recalled in slots that have not ended."""
        return sum(
            self._timers.count(slot.slot_ms) - slot.remaining
            for slot in self._slots.values()
            if slot.ready and slot.slot_ms not in self._stale
        )

    def next_due_ms(self) -> int | None:
        """Return when the next message in memory is due."""
        found = None
        for slot_ms in self._order:
            due_ms = self._slots[slot_ms].next_due_ms()
            if due_ms is not None:
                found = due_ms if found is None else min(found, due_ms)
        return found

    def next_change_ms(self) -> int | None:
        """Return when the next slot must be opened, or the first drained slot ends."""
        instants = []
        if self._unread_ms is not None and self._room() > 0:
            instants.append(self._unread_ms - HORIZON_MS)
        if self._order and self._slots[self._order[0]].is_drained:
            instants.append(self._order[0] + self._precision_ms)
        return min(instants, default=None)

    def note_entered(self, out_ms: Longs, now_ms: int) -> None:
        """Remember which slots messages of OUT_MS went to."""
        timers, precision_ms = self._timers, self._precision_ms
        write_ms = now_ms // precision_ms * precision_ms
        rolled = out_ms - write_ms >= timers.roll_window_slots * precision_ms
        slots_ms = np.maximum(out_ms // precision_ms * precision_ms, timers.read_ms)
        found = set(np.unique(slots_ms[~rolled]).tolist())
        self._stale |= found & self._slots.keys()
        unread = found - self._slots.keys()
        if rolled.any():  # It is due in half a roll window, or in a whole one.
            self._stale |= self._slots.keys()
            unread.add(write_ms + timers.roll_window_slots // 2 * precision_ms)
        if self._unread_ms is not None:
            unread.add(self._unread_ms)
        self._unread_ms = min(unread, default=None)

    def _room(self) -> int:
        """Return how many messages may still be loaded into memory; at 0 or less, no slot is opened."""
        room = self._slot_messages_max - sum(slot.remaining for slot in self._slots.values())
        if len(self._slots) >= SLOTS_MAX:
            room = 0
        # Slots are reported in order, so a slot before the last one in memory must be opened in any
        # case.
        is_before = bool(self._order) and (self._unread_ms or 0) < self._order[-1]
        return max(room, 1) if is_before else room

    def open(self, now_ms: int) -> None:
        """Start to load the slots that are near."""
        timers = self._timers
        last_ms = max(now_ms + HORIZON_MS, timers.read_ms)
        if self._unread_ms is None or self._unread_ms > last_ms:
            return
        room, before = self._room(), len(self._slots)
        while room > 0 and self._unread_ms <= last_ms:
            slot_ms = timers.next_slot(self._unread_ms)
            if slot_ms is None or slot_ms > last_ms:
                self._unread_ms = slot_ms
                break
            if slot_ms not in self._slots:
                self._slots[slot_ms] = LoadedSlot(slot_ms)
                self._stale.add(slot_ms)
                room = min(room - timers.count(slot_ms), SLOTS_MAX - len(self._slots))
            self._unread_ms = slot_ms + self._precision_ms
        if len(self._slots) > before:
            self._order = sorted(self._slots)

    def load(self) -> int | None:
        """Read a page of slots; return the time of the slot to read next, None if all are in memory."""
        if self._stale:
            for slot_ms in sorted(self._stale):
                slot = self._slots[slot_ms]
                if not slot.is_loading:
                    slot.read(self._timers.slot(slot_ms, after=slot.last))
                    self._stale.remove(slot_ms)
        loading = [slot for slot in self.loaded() if slot.is_loading]
        if loading:
            self._loader.load(loading)
        unread = self._stale | {slot.slot_ms for slot in loading if slot.is_loading}
        return min(unread, default=None)

    def finish(self, now_ms: int) -> None:
        """Drop the slots that have ended at NOW_MS, and report them as delivered."""
        precision_ms = self._precision_ms
        done = 0
        for slot_ms in self._order:
            slot = self._slots[slot_ms]
            if slot_ms + precision_ms > now_ms or not slot.is_drained or slot_ms in self._stale:
                break
            if self._unread_ms is not None and self._unread_ms <= slot_ms:
                break
            self._count_recalls(slot)
            del self._slots[slot_ms]
            done += 1
        if done:
            self._order = self._order[done:]
        read_ms = now_ms // precision_ms * precision_ms
        if self._order:
            read_ms = min(read_ms, self._order[0])
        if self._unread_ms is not None:
            read_ms = min(read_ms, self._unread_ms)
        if read_ms > self._timers.read_ms:
            self._timers.delivered_up_to(read_ms)

    def write_back_partial(self, noted_ms: Iterable[int] = ()) -> None:
        """Write partly delivered slots back without the messages that were delivered.

        The slots at NOTED_MS were partly delivered by an earlier process, and may not be in memory yet.
        """
        timers = self._timers
        for slot_ms in set(noted_ms) - self._slots.keys():
            if slot_ms >= timers.read_ms:
                self._slots[slot_ms] = LoadedSlot(slot_ms)
                self._stale.add(slot_ms)
        self._order = sorted(self._slots)
        while any(slot.is_loading for slot in self._slots.values()) or self._stale:
            self.load()
        for slot in self.loaded():
            if not slot.begun:
                continue
            while not slot.follow(_CHAIN_RECORDS):
                pass
            late = timers.slot(slot.slot_ms, after=slot.last)
            while not late.read(_CHAIN_RECORDS):
                pass
            positions = np.concatenate((slot.pending_positions(), late.records().positions))
            # A slot without pending messages ends with all slots before it, so only if they have
            # none either.
            if len(positions) or timers.next_slot(timers.read_ms) == slot.slot_ms:
                timers.replace_slot(slot.slot_ms, positions)
                self._count_recalls(slot)

    def _count_recalls(self, slot: LoadedSlot) -> None:
        """Correct the counts of waiting messages: a recall and its message were each subtracted once."""
        metrics = self._timers.metrics
        for topic in slot.recalls.keys() | slot.recalled.keys():
            change = slot.recalls[topic] - slot.recalled[topic]
            if change:
                metrics.add(topic, change)
