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

The slots that are near (`NearSlots`, synchronous, without a clock) are opened HORIZON_MS before they begin, in their
order, and let go when they are over; they are reported as handed on (`delivered_up_to`) in their order.

Bounds: in memory are the slots of the next two seconds, 41 bytes a message; slots are opened as long as fewer than
`slot_messages_max` messages and SLOTS_MAX slots are there, but one always is. A slot itself is bounded by whoever
accepts messages (a store that another broker wrote may have larger ones). The event loop owns it.

Recall: having back a timed message before it is due.

The message stays where it is. A marker is stored beside it, which the slot of both finds when it is handed on: a
record of the timer topic with body "0", tags _RECALL_TAG_ and TIMER_DEL_UNIQKEY = UNIQ_KEY = the message's id, due in
the message's slot. So Apache's broker does it, and so either broker obeys the other's markers.

Before a marker is stored, the message is looked up by its id, if the store has an index: one that is not there, or is
due by now, is told as such; one that was recalled before needs no second marker. Without an index a marker may mean
nothing, as with Apache. What waits for a delay level, or in a group's retry topic, has no handle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...proto import properties as names
from ...proto.clock import Clock, ahead_ms
from ...proto.errors import (
    AlreadyDelivered,
    InvalidArgument,
    InvalidDelay,
    InvalidRecord,
    MessageNotFound,
    PocketMQError,
)
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import RecallHandle, decode_handle
from ...proto.record import Host, Record, decode_record, encode_record
from ...proto.record_run import Longs
from ...proto.rpc import LATER, Call, Later, MethodTable, service, unary
from ...proto.run import Run
from ...proto.time_text import format_instant
from ...proto.topics import TIMER_TOPIC
from ...store.message_store import MessageStore
from ...store.timers.store import TimerStore
from ..config import BrokerConfig
from ..delay_rules import timer_out_ms
from ..messages.appender import Appends
from ..messages.lookup import in_turns
from ..timing.timers import Timers
from ..timing.turns import Turns
from ..topics_and_groups import Topics
from .deliveries import TRY_AGAIN, DelayedDeliveries, TimedStamps
from .progress import DeliveredNote, SlotNote
from .timed_pages import LoadedSlot, Rows, SlotLoader, enter_page, fitting

logger = logging.getLogger(__name__)

RETRY_MS: Final = 100
#: What is delivered in one turn of the loop.
CHUNK_MESSAGES: Final = 500
CHUNK_BYTES: Final = 1024 * 1024
#: Slots are brought into memory so long before they begin.
HORIZON_MS: Final = 2_000
SLOTS_MAX: Final = 256
#: Records of a chain that are followed at a time at a stop.
_CHAIN_RECORDS: Final = 1 << 20


class TimedDeliveries:
    """Enters and delivers the timed messages of STORE. `start` on a running loop; `close` before the store is.

    All times here are the wall clock's, as messages have them; `_wake_at` alone knows of another.
    """

    def __init__(  # noqa: PLR0913  (it stands between these parts)
        self,
        store: MessageStore,
        timers: Timers,
        clock: Clock,
        deliveries: DelayedDeliveries,
        appends: Appends,
        *,
        slot_messages_max: int,
        pause_ms: int = 0,
        note: DeliveredNote | None = None,
    ) -> None:
        """PAUSE_MS: two deliveries, and two entries, are so far apart, if the clock passes by itself (0 for one that
        is moved): what comes in between goes together, so much later at most, which is far cheaper."""
        self._store = store
        self._turns = Turns(timers, clock, self._step)
        self._clock = clock
        self._deliveries = deliveries
        self._pause_ms = pause_ms
        self._note = note
        if note is not None:
            store.timers.delivered_up_to(note.read_ms)
        self._loader = SlotLoader(store, note)
        self._near = NearSlots(store.timers, self._loader, slot_messages_max)
        #: May there be messages that were not entered?
        self._arrived = True
        self._enter_after_ms = self._deliver_after_ms = 0
        #: When the next page of slots is read; None: all that are near are in memory.
        self._load_at_ms: int | None = None
        #: Could the store not take what arrived?
        self._behind = False
        self._failing = False
        self._running = False
        appends.listen(TIMER_TOPIC, 0, self._on_append)

    def start(self) -> None:
        """Begin, with what is overdue first."""
        self._running = True
        self._clock.on_step.append(self._stepped)
        self._turns.soon()

    @property
    def waiting(self) -> int:
        """Return how many messages wait, recalls taken off."""
        timers = self._store.timers
        _, end = self._store.queue_bounds(TIMER_TOPIC, 0)
        return max(0, timers.pending - self._near.delivered + end - timers.queue_offset)

    def oldest_log_offset(self) -> int | None:
        """Return where in the log the oldest message begins that is not in the timer log yet; None if all are."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        offset = self._store.timers.queue_offset
        if queue is None or offset >= queue.max_offset:
            return None
        log_offsets, _, _ = queue.entries(max(offset, queue.min_offset), 1)
        return int(log_offsets[0]) if len(log_offsets) else None

    def close(self) -> None:
        """Deliver nothing any more, and leave to whoever opens the store next exactly what was not delivered."""
        if not self._running:
            return
        self._running = False
        self._clock.on_step.remove(self._stepped)
        self._turns.stop()
        try:
            self._enter_all(self._clock.unix_ms())
            self._near.leave_begun(self._note.slots if self._note is not None else ())
        except PocketMQError as error:
            logger.warning(
                "delayed messages of the last second will be delivered again: %s", error.message
            )

    def _enter_all(self, now_ms: int) -> None:
        """Enter what arrived last, if the store takes it: it is entered at the next start otherwise."""
        try:
            while (out_ms := enter_page(self._store, now_ms)) is not None:
                self._near.note_entered(out_ms, now_ms)
        except PocketMQError as error:
            self._fail(error)
            return
        self._arrived = False
        self._near.finish(now_ms)

    # --- turns of the loop

    def _on_append(self) -> None:
        self._arrived = True
        if self._running:
            self._turns.soon()

    def _stepped(self) -> None:
        """Look at everything again: the wall clock was set, and pauses end by it as well."""
        self._enter_after_ms = self._deliver_after_ms = 0
        self._load_at_ms = None
        self._turns.soon()

    def _step(self) -> None:
        """Do one step of work; see to it that there is another when there is something to do."""
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
        except Exception:  # The edge of the loop: a bug must not stop all timed messages.
            logger.exception("timed messages wait")
            self._wake_at(now_ms + RETRY_MS)
        else:
            wake_ms = now_ms if more else self._next_instant(now_ms)
            if wake_ms is not None and wake_ms <= now_ms:
                self._turns.soon()
            elif wake_ms is not None:
                self._wake_at(wake_ms)

    def _wake_at(self, unix_ms: int) -> None:
        """Have a step when the wall clock shows UNIX_MS."""
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
        """Read a page of slots; return whether to go on at once. While a slot has time, others have theirs."""
        if self._load_at_ms is not None and now_ms < self._load_at_ms:
            return False
        slot_ms = self._near.load()
        has_time = slot_ms is not None and slot_ms > now_ms and self._pause_ms > 0
        self._load_at_ms = now_ms + self._pause_ms if has_time else None
        return slot_ms is not None and not has_time

    def _finish(self, now_ms: int) -> None:
        """Report the slots that are over, once everything that arrived is entered.

        What a slot's roll brought back may belong to the next one, which must not be over before.
        """
        if self._behind or not self._arrived:
            self._near.finish(now_ms)

    def _fail(self, error: PocketMQError) -> None:
        if not self._failing:
            logger.warning("timed messages wait to be delivered: %s", error.message)
        self._failing = True

    # --- entering

    def _enter(self, now_ms: int) -> bool:
        """Enter a page of what arrived; return whether there may be more."""
        if not self._arrived or now_ms < self._enter_after_ms:
            return False
        try:
            out_ms = enter_page(self._store, now_ms)
        except PocketMQError as error:
            if not self._behind:
                logger.warning("timed messages wait to be entered: %s", error.message)
            self._behind = True
            self._enter_after_ms = now_ms + RETRY_MS
            return False
        _, end = self._store.queue_bounds(TIMER_TOPIC, 0)
        self._arrived = self._store.timers.queue_offset < end
        self._behind = False
        if not self._arrived:
            self._enter_after_ms = now_ms + self._pause_ms
        if out_ms is not None and len(out_ms):
            self._near.note_entered(out_ms, now_ms)
        return self._arrived

    # --- delivering

    def _deliver(self, now_ms: int) -> bool:
        """Deliver a chunk of what is due; return whether more may be."""
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


# --- the slots that are near


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
        #: Slots in memory to which something was entered since they were read.
        self._stale: set[int] = set()
        #: No slot before this one has records and is not in memory; None: no slot at all.
        self._unread_ms: int | None = timers.read_ms

    def loaded(self) -> list[LoadedSlot]:
        """Return the slots in memory, oldest first."""
        return [self._slots[slot_ms] for slot_ms in self._order]

    def notes(self, slots: Iterable[LoadedSlot]) -> list[tuple[LoadedSlot, SlotNote]]:
        """Return what may be noted as delivered of SLOTS; nothing of one of which more is to be read."""
        return [
            (slot, slot.note())
            for slot in slots
            if slot.ready and not slot.is_loading and slot.slot_ms not in self._stale
        ]

    @property
    def delivered(self) -> int:
        """Return how many messages of slots that are not over were delivered or recalled."""
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
        """Return when the next slot is to be opened, or the first one is over of which nothing is left."""
        instants = []
        if self._unread_ms is not None and self._room() > 0:
            instants.append(self._unread_ms - HORIZON_MS)
        if self._order and self._slots[self._order[0]].is_drained:
            instants.append(self._order[0] + self._precision_ms)
        return min(instants, default=None)

    # --- opening

    def note_entered(self, out_ms: Longs, now_ms: int) -> None:
        """Remember which slots messages of OUT_MS went to."""
        timers, precision_ms = self._timers, self._precision_ms
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

    def _room(self) -> int:
        """Return how many messages may be brought into memory; 0 or less: no slot is opened."""
        room = self._slot_messages_max - sum(slot.remaining for slot in self._slots.values())
        if len(self._slots) >= SLOTS_MAX:
            room = 0
        # Slots are handed on in their order, so one before the last there has to be opened, whatever is there.
        is_before = bool(self._order) and (self._unread_ms or 0) < self._order[-1]
        return max(room, 1) if is_before else room

    def open(self, now_ms: int) -> None:
        """Begin with the slots that are near."""
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
        """Read a page of slots; return which slot is to be read next, None if all are in memory."""
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

    # --- what is over

    def finish(self, now_ms: int) -> None:
        """Let go of the slots that are over at NOW_MS, and say so."""
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

    def leave_begun(self, noted_ms: Iterable[int] = ()) -> None:
        """Have slots of which something was delivered hold only what was not; the next opening finds no more.

        Those at NOTED_MS were begun by an earlier process, and may not have been looked at yet.
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
            # An emptied one is over with all before it: only if none of these has anything left.
            if len(positions) or timers.next_slot(timers.read_ms) == slot.slot_ms:
                timers.replace_slot(slot.slot_ms, positions)
                self._count_recalls(slot)

    def _count_recalls(self, slot: LoadedSlot) -> None:
        """Correct the counts of what waits: a recall took one off when it came, and so did what it recalled now."""
        metrics = self._timers.metrics
        for topic in slot.recalls.keys() | slot.recalled.keys():
            change = slot.recalls[topic] - slot.recalled[topic]
            if change:
                metrics.add(topic, change)


# ---------------------------------------------------------------- recall


#: Apache's tags of a marker.
RECALL_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"
_KEY_JOINT: Final = "+"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message that waits: its slot and instant, who sent it, and where its marker ends, if it has one."""

    out_ms: int
    due_ms: int
    group: str
    marker_end: int | None


class Recalls:
    """Takes recalls. NOW_MS is the messages' time."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        store: MessageStore,
        appends: Appends,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._topics = topics
        self._store = store
        self._appends = appends
        self._now_ms = now_ms
        self._precision_ms = store.config.timer_precision_ms

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            "pocketmq.v1.Broker",
            {"Recall": unary(pb.RecallRequest, pb.RecallReply, self.recall)},
        )

    def recall(self, request: pb.RecallRequest, call: Call) -> Later:
        """Have back the message of a handle; answered when that is safe.

        Raises InvalidArgument (the handle is none, or not of this topic and broker), InvalidDelay (too far ahead),
        TopicNotFound, MessageNotFound, AlreadyDelivered, StoreFull, DiskFailure.
        """
        self._topics.get(request.topic)
        handle = decode_handle(request.handle)
        self._check_names(handle, request.topic)

        def found(waiting: _Waiting) -> None:
            end_offset = waiting.marker_end
            if end_offset is None:
                marker = self._marker(handle, waiting, call.peer)
                end_offset = self._appends.append_one(Run.of(TIMER_TOPIC, 0, [marker])).end_offset
            reply = pb.RecallReply(message_id=handle.message_id)
            self._appends.reply_when_safe(call, reply, end_offset)

        def look() -> None:
            in_turns(self._find(handle), found, call.fail)

        self._appends.when_all_confirmed(look, call.fail)
        return LATER

    # --- checks

    def _check_names(self, handle: RecallHandle, topic: str) -> None:
        for what, named, own in (
            ("topic", handle.topic, topic),
            ("broker", handle.broker, self._config.name),
        ):
            if named != own:
                raise InvalidArgument(
                    f"the handle is of {what} {named!r}, not {own!r}: ask where the message was sent to",
                    field="handle",
                    value=named,
                )

    def _find(self, handle: RecallHandle) -> Generator[None, None, _Waiting]:
        """Return, in turns, the message of HANDLE, if it still waits."""
        now_ms = self._now_ms()
        limit = now_ms + self._config.delay_max_ms
        if handle.due_ms > limit:
            raise InvalidDelay(
                f"the handle's time is {format_instant(handle.due_ms)}, but no message may be due after"
                f" {format_instant(limit)} (broker.delay_max_ms)",
                field="handle",
                limit=limit,
                value=handle.due_ms,
            )
        found = yield from self._look_up(handle)
        now_ms = self._now_ms()
        due_ms = handle.due_ms if found is None else found.due_ms
        if due_ms <= now_ms:
            raise AlreadyDelivered(
                f"message {handle.message_id!r} was due at {format_instant(due_ms)}, now it is"
                f" {format_instant(now_ms)}: it was delivered, or is about to be",
                due_ms=due_ms,
                now_ms=now_ms,
            )
        if found is not None:
            return found
        self._store.check_readable()
        if self._store.config.index:
            raise MessageNotFound(
                f"no message {handle.message_id!r} of topic {handle.topic!r} waits here until"
                f" {format_instant(handle.due_ms)}: it was never sent, or is gone",
                message_id=handle.message_id,
                topic=handle.topic,
            )
        return _Waiting(self._slot_of(handle), handle.due_ms, "", None)

    def _slot_of(self, handle: RecallHandle) -> int:
        return timer_out_ms(handle.due_ms, self._precision_ms)

    def _look_up(self, handle: RecallHandle) -> Generator[None, None, _Waiting | None]:
        """Look, in turns, for the message of HANDLE, and its marker, in the timer topic; the newest of each counts."""
        slot_ms = self._slot_of(handle)
        marker_keys = (handle.message_id, handle.topic + _KEY_JOINT + handle.message_id)
        found: Record | None = None
        markers: dict[int, int] = {}
        for data in self._store.looked_up(TIMER_TOPIC, handle.message_id):
            if data is None:
                yield
                continue
            record = _of_timer_topic(data)
            if record is None:
                continue
            properties = record.properties
            if properties.get(names.TIMER_DELETE_KEY) in marker_keys:
                end = record.log_offset + record.total_size
                markers.setdefault(_number(properties, names.TIMER_OUT_MS), end)
            elif (
                properties.get(names.UNIQ_KEY) == handle.message_id
                and properties.get(names.REAL_TOPIC) == handle.topic
                and _number(properties, names.TIMER_OUT_MS) == slot_ms
            ):
                found = found or record
        if found is None:
            return None
        due_ms = _number(found.properties, names.TIMER_DELIVER_MS)
        if not slot_ms < due_ms <= slot_ms + self._precision_ms:
            due_ms = slot_ms + self._precision_ms
        group = found.properties.get(names.PRODUCER_GROUP, "")
        return _Waiting(slot_ms, due_ms, group, markers.get(slot_ms))

    # --- the marker

    def _marker(self, handle: RecallHandle, waiting: _Waiting, peer: str) -> bytes:
        now_ms = self._now_ms()
        instant_ms = handle.due_ms
        properties = {
            names.TAGS: RECALL_TAG,
            names.TIMER_DELETE_KEY: handle.message_id,
            names.UNIQ_KEY: handle.message_id,
            names.TIMER_DELIVER_MS: str(instant_ms),
            names.BORN_TIMESTAMP: str(now_ms),
            names.TIMER_OUT_MS: str(waiting.out_ms),
            names.REAL_TOPIC: handle.topic,
            names.REAL_QUEUE_ID: "0",
        }
        if waiting.group:
            properties[names.PRODUCER_GROUP] = waiting.group
        marker = Record(
            topic=TIMER_TOPIC,
            body=_BODY,
            born_timestamp_ms=now_ms,
            born_host=Host.of_peer(peer),
            properties=properties,
        )
        return encode_record(marker)


def _of_timer_topic(data: bytes) -> Record | None:
    """Return the record in DATA; None if it is none of the timer topic."""
    try:
        record = decode_record(data)
    except InvalidRecord:
        return None
    return record if record.topic == TIMER_TOPIC else None


def _number(properties: Mapping[str, str], name: str) -> int:
    """Return the number that property NAME holds; −1 for none."""
    number = names.whole_number(properties.get(name, ""))
    return -1 if number is None else number
