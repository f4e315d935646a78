"""Delivers scheduled messages at the millisecond at which they are due.

A message of the timer topic is entered into the timer log at once. Its slot is loaded shortly before it begins
(near_slots.py), and each message of it is delivered at its own time. A message that is due later than a roll window
returns to the timer topic when its slot begins.

Each turn of the event loop does one step (enter a page, read a page of slots, deliver a chunk), so that sends and
fetches continue during a backlog. Copies that the store refuses are retried every RETRY_MS, in order, before any other
delivery. A slot is reported as delivered when its time is over and all its messages were delivered; `close` saves the
rest of a slot. So a clean stop causes no duplicates; after a kill, messages due since the last report are redelivered.
"""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from ...proto.clock import Clock, ahead_ms
from ...proto.errors import PocketMQError
from ...proto.topics import TIMER_TOPIC
from ...store.message_store import MessageStore
from ..messages.appender import Appender
from ..timing.timers import Timers
from ..timing.turns import StepScheduler
from .deliveries import TRY_AGAIN, DelayedDeliveries, TimedStamps
from .near_slots import NearSlots
from .progress import DeliveredNote
from .timed_pages import LoadedSlot, Rows, SlotLoader, enter_page, fitting

logger = logging.getLogger(__name__)

RETRY_MS: Final = 100
#: Limit of one delivery, in one turn of the event loop.
CHUNK_MESSAGES: Final = 500
CHUNK_BYTES: Final = 1024 * 1024


class TimedDeliveries:
    """Enters and delivers the scheduled messages of STORE. Call `start` on a running loop, `close` before the store
    closes.

    All times are wall-clock times, as in the messages. Only `_wake_at` converts them to timer time.
    """

    def __init__(  # noqa: PLR0913  (it connects these parts)
        self,
        store: MessageStore,
        timers: Timers,
        clock: Clock,
        deliveries: DelayedDeliveries,
        appends: Appender,
        *,
        slot_messages_max: int,
        pause_ms: int = 0,
        note: DeliveredNote | None = None,
    ) -> None:
        """PAUSE_MS: the minimum time between two deliveries, and between two entries (0 for a virtual clock).

        Messages that arrive meanwhile are handled as one batch, which is much cheaper, and late by up to PAUSE_MS.
        """
        self._store = store
        self._turns = StepScheduler(timers, clock, self._step)
        self._clock = clock
        self._deliveries = deliveries
        self._pause_ms = pause_ms
        self._note = note
        if note is not None:
            store.timers.delivered_up_to(note.read_ms)
        self._loader = SlotLoader(store, note)
        self._near = NearSlots(store.timers, self._loader, slot_messages_max)
        #: Whether there may be messages that were not entered.
        self._arrived = True
        self._enter_after_ms = self._deliver_after_ms = 0
        #: When the next page of slots is read; None: all near slots are in memory.
        self._load_at_ms: int | None = None
        #: Whether the store could not enter the new messages.
        self._is_blocked = False
        self._failing = False
        self._running = False
        appends.listen(TIMER_TOPIC, 0, self._on_append)

    def start(self) -> None:
        """Start with overdue messages."""
        self._running = True
        self._clock.on_step.append(self._on_clock_set)
        self._turns.soon()

    @property
    def waiting(self) -> int:
        """Return how many messages wait, without recalled ones."""
        timers = self._store.timers
        _, end = self._store.queue_bounds(TIMER_TOPIC, 0)
        return max(0, timers.pending - self._near.delivered + end - timers.queue_offset)

    def oldest_log_offset(self) -> int | None:
        """Return the log offset of the oldest message that is not in the timer log; None if all are."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        offset = self._store.timers.queue_offset
        if queue is None or offset >= queue.max_offset:
            return None
        log_offsets, _, _ = queue.entries(max(offset, queue.min_offset), 1)
        return int(log_offsets[0]) if len(log_offsets) else None

    def close(self) -> None:
        """Stop delivering, and save in the store exactly which messages were not delivered."""
        if not self._running:
            return
        self._running = False
        self._clock.on_step.remove(self._on_clock_set)
        self._turns.stop()
        try:
            self._enter_all(self._clock.unix_ms())
            self._near.write_back_partial(self._note.slots if self._note is not None else ())
        except PocketMQError as error:
            logger.warning(
                "delayed messages of the last second will be redelivered: %s", error.message
            )

    def _enter_all(self, now_ms: int) -> None:
        """Enter the latest messages; if the store cannot do it now, the next start does."""
        try:
            while (out_ms := enter_page(self._store, now_ms)) is not None:
                self._near.note_entered(out_ms, now_ms)
        except PocketMQError as error:
            self._fail(error)
            return
        self._arrived = False
        self._near.finish(now_ms)

    def _on_append(self) -> None:
        self._arrived = True
        if self._running:
            self._turns.soon()

    def _on_clock_set(self) -> None:
        """Check everything again: the wall clock was set, which also moves the end of a pause."""
        self._enter_after_ms = self._deliver_after_ms = 0
        self._load_at_ms = None
        self._turns.soon()

    def _step(self) -> None:
        """Do one step of work; schedule the next one if there is more to do."""
        if not self._running:
            return
        now_ms = self._clock.unix_ms()
        try:
            more = self._enter(now_ms)
            self._finish(now_ms)
            self._near.open(now_ms)
            more |= self._load(now_ms)
            more |= self._deliver(now_ms)
            self._finish(now_ms)
        except PocketMQError as error:
            self._fail(error)
            self._wake_at(now_ms + RETRY_MS)
        except Exception:
            # The outermost call of this work: a bug must not stop all scheduled messages.
            logger.exception("delivery of scheduled messages failed, it will be retried")
            self._wake_at(now_ms + RETRY_MS)
        else:
            wake_ms = now_ms if more else self._next_instant(now_ms)
            if wake_ms is not None and wake_ms <= now_ms:
                self._turns.soon()
            elif wake_ms is not None:
                self._wake_at(wake_ms)

    def _wake_at(self, unix_ms: int) -> None:
        """Schedule a step when the wall clock shows UNIX_MS."""
        self._turns.at(unix_ms - ahead_ms(self._clock))

    def _next_instant(self, now_ms: int) -> int | None:
        deliver_ms = self._near.next_due_ms()
        if deliver_ms is not None:
            deliver_ms = max(deliver_ms, self._deliver_after_ms)
        enter_ms = self._enter_after_ms if self._arrived else None
        instants = [deliver_ms, enter_ms, self._load_at_ms]
        other_ms = self._near.next_change_ms()
        if other_ms is not None:
            instants.append(max(other_ms, now_ms + 1))
        return min((instant for instant in instants if instant is not None), default=None)

    def _load(self, now_ms: int) -> bool:
        """Read a page of slots; return whether to continue at once. Slots that begin later can wait."""
        if self._load_at_ms is not None and now_ms < self._load_at_ms:
            return False
        slot_ms = self._near.load()
        has_time = slot_ms is not None and slot_ms > now_ms and self._pause_ms > 0
        self._load_at_ms = now_ms + self._pause_ms if has_time else None
        return slot_ms is not None and not has_time

    def _finish(self, now_ms: int) -> None:
        """Report the slots that have ended, once all new messages are entered.

        A roll may put a message into the next slot, which must not end before.
        """
        if self._is_blocked or not self._arrived:
            self._near.finish(now_ms)

    def _fail(self, error: PocketMQError) -> None:
        if not self._failing:
            logger.warning("scheduled messages not delivered, will be retried: %s", error.message)
        self._failing = True

    def _enter(self, now_ms: int) -> bool:
        """Enter a page of new messages; return whether there may be more."""
        if not self._arrived or now_ms < self._enter_after_ms:
            return False
        try:
            out_ms = enter_page(self._store, now_ms)
        except PocketMQError as error:
            if not self._is_blocked:
                logger.warning("scheduled messages not entered, will be retried: %s", error.message)
            self._is_blocked = True
            self._enter_after_ms = now_ms + RETRY_MS
            return False
        _, end = self._store.queue_bounds(TIMER_TOPIC, 0)
        self._arrived = self._store.timers.queue_offset < end
        self._is_blocked = False
        if not self._arrived:
            self._enter_after_ms = now_ms + self._pause_ms
        if out_ms is not None and len(out_ms):
            self._near.note_entered(out_ms, now_ms)
        return self._arrived

    def _deliver(self, now_ms: int) -> bool:
        """Deliver a chunk of due messages; return whether there may be more."""
        if now_ms < self._deliver_after_ms:
            return False
        taken: list[tuple[LoadedSlot, Rows]] = []
        room, room_bytes, more = CHUNK_MESSAGES, CHUNK_BYTES, False
        for slot in self._near.loaded():
            if not slot.ready:
                break
            due = slot.take_due(now_ms)
            if not len(due):
                continue
            count = fitting(due["size"][:room], room_bytes)
            chunk = due[: count if taken else max(count, 1)]
            if len(chunk):
                taken.append((slot, chunk))
            room -= len(chunk)
            room_bytes -= int(chunk["size"].sum(dtype=np.int64))
            more = len(chunk) < len(due) or not room
            if more:
                break
        if not taken or not self._deliver_chunk(taken, now_ms):
            return False
        if not more:
            self._deliver_after_ms = now_ms + self._pause_ms
        return more

    def _deliver_chunk(self, taken: list[tuple[LoadedSlot, Rows]], now_ms: int) -> bool:
        """Deliver the messages TAKEN from slots; return whether all of them are done."""
        rows = np.concatenate([chunk for _, chunk in taken])
        data, records, there = self._loader.read(rows)
        stamps = TimedStamps(there["write_ms"], there["rolled"], now_ms)
        delivered = self._deliveries.deliver(data, records.columns, stamps)
        signs = np.where(delivered.states == TRY_AGAIN, 0, np.where(records.recalls(), 1, -1))
        for topic, count in records.topic_counts(signs).items():
            self._store.timers.metrics.add(topic, count)
        left = there["position"][delivered.states == TRY_AGAIN]
        for slot, chunk in taken:
            slot.settle(len(chunk), left)
        notes = self._near.notes(slot for slot, _ in taken)
        if self._note is not None:
            self._note.write_slots((slot.slot_ms, note) for slot, note in notes)
        for slot, note in notes:
            self._store.timers.begun[slot.slot_ms] = slot.newest, note.due_ms
        if delivered.error is not None:
            self._fail(delivered.error)
            self._deliver_after_ms = now_ms + RETRY_MS
            return False
        self._failing = False
        return True
