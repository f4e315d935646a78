"""Delivering timed messages at the millisecond at which they are due.

What arrives in the timer topic is entered into the timer log at once. Slots are brought into memory two seconds before
they begin; from there each message is delivered at its own instant. A recall takes its message out of the slot, also
while that waits in memory. What was rolled (it is due after more than a roll window) goes back into the timer topic
when its slot begins, and is entered anew. What is overdue, as at a start after a long pause, goes first, oldest first.

One step of work at a time: a page is entered, a page of slots read, and a chunk delivered, then the loop has its turn,
so that sends and fetches go on while a backlog is worked off. A step takes some milliseconds. When there is nothing to
do, one timer waits for the next instant. If the store cannot take copies, they are tried again every RETRY_MS, in
their order, and nothing after them is delivered before. A slot is reported as handed on when its time is over and
everything of it was delivered; `close` leaves a slot that was begun with what is left of it. So nothing fires twice
after a clean stop, and after a kill what was due since the last report was saved.

Bounds: in memory are the slots of the next two seconds, 41 bytes a message; slots are opened as long as fewer than
`slot_messages_max` messages and SLOTS_MAX slots are there, but one always is. A slot itself is bounded by whoever
accepts messages (a store that another broker wrote may have larger ones). The event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import numpy as np

from ...proto.clock import Clock
from ...proto.errors import PocketMQError
from ...proto.record_run import Longs
from ...proto.topics import TIMER_TOPIC
from ...store.message_store import MessageStore
from ..appends import Appends
from ..timers import Timers
from ..timing_wheel import Timer
from .deliveries import TRY_AGAIN, Deliveries, TimedStamps
from .horizon import LoadedSlot, Rows
from .timed_pages import SlotLoader, enter_page, fitting

logger = logging.getLogger(__name__)

#: Slots are brought into memory so long before they begin.
HORIZON_MS: Final = 2_000
RETRY_MS: Final = 100
#: What is delivered in one turn of the loop.
CHUNK_MESSAGES: Final = 500
CHUNK_BYTES: Final = 1024 * 1024
SLOTS_MAX: Final = 256


class TimedDeliveries:
    """Enters and delivers the timed messages of STORE. `start` on a running loop; `close` before the store is."""

    def __init__(
        self,
        store: MessageStore,
        timers: Timers,
        clock: Clock,
        deliveries: Deliveries,
        appends: Appends,
        *,
        slot_messages_max: int,
        pause_ms: int = 0,
    ) -> None:
        """PAUSE_MS: two deliveries, and two entries, are so far apart, if the clock passes by itself (0 for one that
        is moved): what comes in between goes together, so much later at most, which is far cheaper."""
        self._store = store
        self._timers = timers
        self._clock = clock
        self._deliveries = deliveries
        self._slot_messages_max = slot_messages_max
        self._pause_ms = pause_ms
        self._precision_ms = store.timers.precision_ms
        self._loader = SlotLoader(store)
        self._slots: dict[int, LoadedSlot] = {}
        #: The times of the slots in memory, rising.
        self._order: list[int] = []
        #: Slots in memory to which something was entered since they were read.
        self._stale: set[int] = set()
        #: No slot before this one has records and is not in memory; None: no slot at all.
        self._unread_ms: int | None = None
        #: May there be messages that were not entered?
        self._arrived = True
        self._enter_after_ms = self._deliver_after_ms = 0
        #: Could the store not take what arrived?
        self._behind = False
        self._failing = False
        self._handle: asyncio.Handle | None = None
        self._timer: Timer | None = None
        self._running = False
        appends.listen(TIMER_TOPIC, 0, self._on_append)

    def start(self) -> None:
        """Begin, with what is overdue first."""
        self._running = True
        self._unread_ms = self._store.timers.read_ms
        self._soon()

    @property
    def waiting(self) -> int:
        """Return how many messages wait, recalls taken off."""
        timers = self._store.timers
        _, end = self._store.queue_bounds(TIMER_TOPIC, 0)
        done = sum(
            timers.count(slot.slot_ms) - slot.remaining
            for slot in self._slots.values()
            if slot.ready and slot.slot_ms not in self._stale
        )
        return max(0, timers.pending - done + end - timers.queue_offset)

    def close(self) -> None:
        """Deliver nothing any more, and leave to whoever opens the store next exactly what was not delivered."""
        if not self._running:
            return
        self._running = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._clock.release()
        if self._timer is not None:
            self._timers.cancel(self._timer)
        now_ms = self._clock.now_ms()
        try:
            while enter_page(self._store, now_ms) is not None:
                pass
            self._arrived = False
            self._finish(now_ms)
            self._leave_begun()
        except PocketMQError as error:
            logger.warning(
                "delayed messages of the last second will be delivered again: %s", error.message
            )

    def _leave_begun(self) -> None:
        timers = self._store.timers
        is_left = False
        for slot in self._loaded():
            if slot.begun:
                while not slot.follow(1 << 20):
                    pass
                late = timers.slot(slot.slot_ms, after=slot.last)
                late.read(1 << 62)
                positions = np.concatenate((slot.pending_positions(), late.records().positions))
                if len(positions) or not is_left:
                    timers.replace_slot(slot.slot_ms, positions)
                    self._count_recalls(slot)
                is_left |= len(positions) > 0
            elif slot.remaining or slot.is_loading:
                is_left = True

    # --- turns of the loop

    def _on_append(self) -> None:
        self._arrived = True
        if self._running:
            self._soon()

    def _soon(self) -> None:
        """Go on in the next turn of the loop, at this instant."""
        if self._handle is None:
            self._clock.hold()
            self._handle = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._handle = None
        try:
            self._step()
        finally:
            self._clock.release()

    def _step(self) -> None:
        """Do one step of work; see to it that there is another when there is something to do."""
        if not self._running:
            return
        now_ms = self._clock.now_ms()
        try:
            more = self._enter(now_ms)
            self._finish(now_ms)
            self._open_slots(now_ms)
            more |= self._load()
            more |= self._deliver(now_ms)
            self._finish(now_ms)
        except PocketMQError as error:
            self._fail(error)
            self._wake_at(now_ms + RETRY_MS)
        except Exception:  # The edge of the loop: a bug must not stop all timed messages.
            logger.exception("timed messages wait")
            self._wake_at(now_ms + RETRY_MS)
        else:
            wake_ms = now_ms if more else self._next_instant(now_ms)
            if wake_ms is not None and wake_ms <= now_ms:
                self._soon()
            elif wake_ms is not None:
                self._wake_at(wake_ms)

    def _wake_at(self, wake_ms: int) -> None:
        if self._timer is None:
            self._timer = self._timers.at(wake_ms, self._step)
        elif not self._timer.active or self._timer.deadline_ms != wake_ms:
            self._timers.reschedule(self._timer, wake_ms)

    def _next_instant(self, now_ms: int) -> int | None:
        deliver_ms = self._next_due_ms()
        if deliver_ms is not None:
            deliver_ms = max(deliver_ms, self._deliver_after_ms)
        instants = [deliver_ms]
        if self._arrived:
            instants.append(self._enter_after_ms)
        if self._unread_ms is not None and self._has_room():
            instants.append(max(self._unread_ms - HORIZON_MS, now_ms + 1))
        if self._order and self._slots[self._order[0]].is_drained:
            instants.append(max(self._order[0] + self._precision_ms, now_ms + 1))
        return min((instant for instant in instants if instant is not None), default=None)

    def _next_due_ms(self) -> int | None:
        found = None
        for slot_ms in self._order:
            due_ms = self._slots[slot_ms].next_due_ms()
            if due_ms is not None:
                found = due_ms if found is None else min(found, due_ms)
        return found

    def _fail(self, error: PocketMQError) -> None:
        if not self._failing:
            logger.warning("timed messages wait: %s", error.message)
        self._failing = True

    # --- entering

    def _enter(self, now_ms: int) -> bool:
        """Enter a page of what arrived; return whether there may be more."""
        if not self._arrived or now_ms < self._enter_after_ms:
            return False
        try:
            out_ms = enter_page(self._store, now_ms)
        except PocketMQError as error:
            self._fail(error)
            self._behind = True
            self._enter_after_ms = now_ms + RETRY_MS
            return False
        _, end = self._store.queue_bounds(TIMER_TOPIC, 0)
        self._arrived = self._store.timers.queue_offset < end
        self._behind = False
        if not self._arrived:
            self._enter_after_ms = now_ms + self._pause_ms
        if out_ms is not None and len(out_ms):
            self._note_entered(out_ms, now_ms)
        return self._arrived

    def _note_entered(self, out_ms: Longs, now_ms: int) -> None:
        """Remember which slots messages of OUT_MS went to."""
        timers, precision_ms = self._store.timers, self._precision_ms
        write_ms = now_ms // precision_ms * precision_ms
        rolled = out_ms - write_ms >= timers.roll_window_slots * precision_ms
        slots_ms = np.maximum(out_ms // precision_ms * precision_ms, timers.read_ms)
        found = set(np.unique(slots_ms[~rolled]).tolist())
        self._stale |= found & self._slots.keys()
        unread = found - self._slots.keys()
        if rolled.any():  # Half a window ahead, or a whole one.
            self._stale |= self._slots.keys()
            unread.add(write_ms + timers.roll_window_slots // 2 * precision_ms)
        if self._unread_ms is not None:
            unread.add(self._unread_ms)
        self._unread_ms = min(unread, default=None)

    # --- reading slots

    def _loaded(self) -> list[LoadedSlot]:
        """Return the slots in memory, oldest first."""
        return [self._slots[slot_ms] for slot_ms in self._order]

    def _has_room(self) -> bool:
        if not self._order or (self._unread_ms or 0) < self._order[-1]:
            return True  # Slots are handed on in their order.
        in_memory = sum(slot.remaining for slot in self._slots.values())
        return len(self._slots) < SLOTS_MAX and in_memory < self._slot_messages_max

    def _open_slots(self, now_ms: int) -> None:
        """Begin with the slots that are near."""
        timers = self._store.timers
        last_ms = max(now_ms + HORIZON_MS, timers.read_ms)
        opened = False
        while self._unread_ms is not None and self._unread_ms <= last_ms and self._has_room():
            slot_ms = timers.next_slot(self._unread_ms)
            if slot_ms is None or slot_ms > last_ms:
                self._unread_ms = slot_ms
                break
            if slot_ms not in self._slots:
                self._slots[slot_ms] = LoadedSlot(slot_ms)
                self._stale.add(slot_ms)
                opened = True
            self._unread_ms = slot_ms + self._precision_ms
        if opened:
            self._order = sorted(self._slots)

    def _load(self) -> bool:
        """Read a page of slots; return whether there is more to read."""
        if self._stale:
            for slot_ms in sorted(self._stale):
                slot = self._slots[slot_ms]
                if not slot.is_loading:
                    slot.read(self._store.timers.slot(slot_ms, after=slot.last))
                    self._stale.remove(slot_ms)
        loading = [slot for slot in self._loaded() if slot.is_loading]
        if loading:
            self._loader.load(loading)
        return bool(self._stale) or any(slot.is_loading for slot in loading)

    # --- delivering

    def _deliver(self, now_ms: int) -> bool:
        """Deliver a chunk of what is due; return whether more may be."""
        if now_ms < self._deliver_after_ms:
            return False
        taken: list[tuple[LoadedSlot, Rows]] = []
        room, room_bytes = CHUNK_MESSAGES, CHUNK_BYTES
        for slot in self._loaded():
            if not slot.ready:
                break
            due = slot.take_due(now_ms)
            if not len(due):
                continue
            count = fitting(due["size"][:room], room_bytes)
            chunk = due[: count if taken else max(count, 1)]
            taken.append((slot, chunk))
            room -= len(chunk)
            room_bytes -= int(chunk["size"].sum(dtype=np.int64))
            if len(chunk) < len(due) or not room:
                break
        if not taken:
            return False
        if not self._deliver_chunk(taken, now_ms):
            return False
        more = not room or len(taken[-1][0].due) > 0
        if not more:
            self._deliver_after_ms = now_ms + self._pause_ms
        return more

    def _deliver_chunk(self, taken: list[tuple[LoadedSlot, Rows]], now_ms: int) -> bool:
        """Deliver what was TAKEN from slots; return whether all of it is done."""
        rows = np.concatenate([chunk for _, chunk in taken])
        data, records, there = self._loader.read(rows)
        stamps = TimedStamps(there["write_ms"], there["rolled"], now_ms)
        delivered = self._deliveries.deliver(data, records.columns, stamps)
        signs = np.where(delivered.states == TRY_AGAIN, 0, np.where(records.recalls(), 1, -1))
        for topic, count in records.topic_counts(signs).items():
            self._store.timers.metrics.add(topic, count)
        left = there["position"][delivered.states == TRY_AGAIN]
        for slot, chunk in taken:
            slot.settle(~np.isin(chunk["position"], left))
        if delivered.error is not None:
            self._fail(delivered.error)
            self._deliver_after_ms = now_ms + RETRY_MS
            return False
        self._failing = False
        return True

    # --- what is over

    def _finish(self, now_ms: int) -> None:
        """Let go of the slots that are over, and say so.

        Not before everything that arrived is entered: what a slot's roll brought back may belong to the next one.
        """
        if self._arrived and not self._behind:
            return
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
        if read_ms > self._store.timers.read_ms:
            self._store.timers.delivered_up_to(read_ms)

    def _count_recalls(self, slot: LoadedSlot) -> None:
        """Correct the counts of what waits: a recall took one off when it came, and so did what it recalled now."""
        metrics = self._store.timers.metrics
        for topic in slot.recalls.keys() | slot.recalled.keys():
            change = slot.recalls[topic] - slot.recalled[topic]
            if change:
                metrics.add(topic, change)
