"""The deliveries of one topic to one group: which messages are in flight, which are due again, and how far it scanned.

    next_offset       the first message that was not scanned
    in flight         delivered, and its lease lasts: an acknowledgement finishes it
    due               its lease has expired: the next receive gets it first, as the next attempt
    low               the lowest message that is not finished: the group's committed offset

Each delivery reads the message from the log. A message that was delivered as often as the group allows is moved to the
dead-letter queue when it would be redelivered. A message that retention has deleted is finished. A damaged message is
finished instead of being moved to the dead-letter queue.

A receive with the attempt id of an earlier one gets the messages of that attempt that are not finished, at once, with
the same handles, and as the same attempt: its answer was lost, or too late.

A start restores queues and entries from deliveries.py, which stores each change of them. New messages pass the group's
filter.

The event loop owns it. A delivery costs about 5 µs besides reading, an acknowledgement as much.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, TypeAlias

import numpy as np

from ...proto.errors import InvalidReceiptHandle, InvalidRecord, Overloaded, PocketMQError
from ...proto.record import log_offset_and_times
from ...proto.record_run import starts_of
from ...store.format.table_frames import PUT
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ...store.slices import Slices
from ...store.tables import TableChange
from ..config import BrokerConfig
from ..consume_stats import ConsumeStats
from ..messages.filters import FilterChoice, share_of_turn
from ..metrics.traffic import TrafficCounts
from ..offsets import Offsets
from ..queue_stats import EVERY, ScanResult
from .deliveries import (
    LOOKED,
    WAITS,
    DeliveryChange,
    DeliveryRow,
    FoundQueue,
    InFlight,
    KeptDeliveries,
    PopKey,
    finished,
    forgotten,
    in_flight,
    looked,
)
from .entries import PopEntry, PopLease, PopQueue
from .handles import Handle, encode_handle
from .leases import RENEWED_MAX_MS, RENEWED_MS, PopLeases
from .receives import PoppedMessage, ReceiveRequest, Rules, TakenMessages

logger = logging.getLogger(__name__)

#: Letters of an attempt id; a longer one is ignored.
ATTEMPT_ID_MAX: Final = 256
#: When a message is retried that could not be moved to the dead-letter queue.
_POSTPONED_MS: Final = 10_000
#: Limit of held messages per queue, for tables that hold some back.
HELD_MAX: Final = 4_096
#: How long a lease that renews lasts after a restart.
_RESTORED_MS: Final = 30_000
#: A scan with a filter reads this many times more messages each time that it finds too few.
_GROWTH: Final = 4
#: Copies a record to the dead-letter queue of a group: record, group, reason, reconsume times.
MakeDeadLetter: TypeAlias = Callable[[bytes, str, str, int], Appended]


@dataclass(kw_only=True, slots=True)
class PopParts:
    """The parts that all tables use."""

    store: MessageStore
    offsets: Offsets
    leases: PopLeases
    deliveries: KeptDeliveries
    serials: Iterator[int]
    make_dead_letter: MakeDeadLetter
    config: BrokerConfig
    #: Lets receives that wait for messages of (group, topic) try again.
    wake: Callable[[tuple[str, str]], object] = lambda key: None
    #: Counts the messages that groups filter out.
    consume_stats: ConsumeStats = field(default_factory=ConsumeStats)
    #: Counts the messages that are delivered.
    traffic: TrafficCounts = field(default_factory=TrafficCounts)
    in_flight: int = 0


class PopTable:
    """The deliveries of a topic to a group, in no order: queues and entries, and what is due, longest due first."""

    is_ordered: ClassVar[bool] = False

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        #: The topic under which deliveries are counted, and the lite topic in handles.
        self.counted_topic, self.lite_topic = topic, ""
        self.parts = parts
        self.queues: dict[int, PopQueue] = {}
        self.due: deque[PopEntry] = deque()
        #: Leases by the id of the attempt that got them.
        self.attempts: dict[str, list[PopLease]] = {}
        #: Receives so far: each starts with another queue.
        self.turn = 0

    @property
    def in_flight(self) -> int:
        """The number of scanned messages that are not finished."""
        return sum(len(queue.entries) for queue in self.queues.values())

    # --- delivering

    def has_some(self) -> bool:
        """Is any message due, or not scanned yet?"""
        if any(
            entry.lease is None and entry.queue.entries.get(entry.offset) is entry
            for entry in self.due
        ):
            return True
        bounds = self.parts.store.queue_bounds
        return any(
            queue.next_offset < bounds(self.topic, number)[1]
            for number, queue in self.queues.items()
        )

    def take(self, asked: ReceiveRequest, rules: Rules) -> TakenMessages:
        """Deliver to a receive what its attempt got before, or what is due, then new messages.

        Raises:
            Overloaded: Too many messages are in flight.
            PocketMQError: An error of the store.
        """
        again = self.repeated(asked)
        return TakenMessages(again, 0, False) if again else self.take_new(asked, rules)

    def repeated(self, asked: ReceiveRequest) -> list[PoppedMessage]:
        """Deliver once more what the attempt of a receive got before and has not finished."""
        return self._repeated(asked) if asked.attempt_id in self.attempts else []

    def _repeated(self, asked: ReceiveRequest) -> list[PoppedMessage]:
        """Deliver once more what this attempt got before and has not finished."""
        found = []
        before = [
            entry
            for lease in self.attempts[asked.attempt_id]
            for entry in lease.entries
            if entry.lease is lease
        ]
        for entry in before:
            data = self.read(entry)
            if data is None:
                self.finish(entry)
            else:
                found.append((entry, data))
        for entry, _ in found:
            self.release(entry)
        return self.deliver(found, asked, again=True) if found else []

    def take_new(self, asked: ReceiveRequest, rules: Rules) -> TakenMessages:
        """Deliver messages that are not in flight."""
        taken: list[tuple[PopEntry, bytes]] = []
        scanned_to: list[DeliveryChange] = []
        try:
            dead_lettered = self._take_due(asked, rules, taken)
            more = self._take_new(asked, rules, taken, scanned_to)
        except PocketMQError:
            for entry, _ in taken:
                if not entry.serial:
                    self.note_undelivered(entry)
            self.expire([entry for entry, _ in taken])
            if scanned_to:
                self.parts.deliveries.note(scanned_to)
            raise
        deliveries = self.deliver(taken, asked) if taken else []
        if scanned_to:
            # After the entries of messages in flight: a journal that lost its end must not finish those.
            self.parts.deliveries.note(scanned_to)
        return TakenMessages(deliveries, dead_lettered, more)

    def _take_due(
        self, asked: ReceiveRequest, rules: Rules, taken: list[tuple[PopEntry, bytes]]
    ) -> int:
        """Add due messages to `taken`, up to the batch; return how many went to the dead-letter queue instead."""
        due, dead_lettered = self.due, 0
        while due and self.has_room(asked, taken, dead_lettered):
            entry = due.popleft()
            if entry.queue.entries.get(entry.offset) is not entry or entry.lease is not None:
                continue
            data = self.read_again(entry)
            if data is None:
                self.finish(entry)
            elif entry.attempt < rules.attempts_max:
                taken.append((entry, data))
            elif self._dead_letter(entry, data, exhausted(entry.attempt)):
                dead_lettered += 1
        return dead_lettered

    def has_room(
        self, asked: ReceiveRequest, taken: list[tuple[PopEntry, bytes]], dead_lettered: int
    ) -> bool:
        """May the answer have more messages than those taken, besides those that were dead-lettered?"""
        if len(taken) + dead_lettered >= asked.batch:
            return False
        return sum(len(data) for _, data in taken) < self.parts.config.fetch_max_bytes

    def _take_new(
        self,
        asked: ReceiveRequest,
        rules: Rules,
        taken: list[tuple[PopEntry, bytes]],
        scanned_to: list[DeliveryChange],
    ) -> bool:
        """Add new messages to `taken`, up to the batch, and to `scanned_to` how far that was.

        Return whether there is more to scan.
        """
        more = False
        for number in rules.queues:
            if len(taken) >= asked.batch:
                return False
            queue = self.queues.get(number) or self._begin(number, rules.from_oldest)
            before = queue.next_offset
            if before >= self.parts.store.queue_bounds(self.topic, number)[1]:
                continue
            try:
                more |= self._scan(queue, asked, taken)
            finally:  # An error may follow messages that were scanned.
                if queue.next_offset > before:
                    scanned_to.append(TableChange(PUT, queue.key, LOOKED, queue.next_offset))
                    self.advance_committed(queue)
        return more

    def _scan(
        self, queue: PopQueue, asked: ReceiveRequest, taken: list[tuple[PopEntry, bytes]]
    ) -> bool:
        """Scan more of a queue, and add what is found to `taken`; return whether to continue the scan."""
        room_bytes = self.parts.config.fetch_max_bytes - sum(len(data) for _, data in taken)
        room = asked.batch - len(taken) if room_bytes > 0 else 0
        scanned = scan(
            self.parts.store,
            queue.key,
            queue.next_offset,
            room,
            room_bytes,
            asked.choice,
        )
        if scanned.next_offset == queue.next_offset:
            return False
        self._check_room(bool(taken))
        self._stats(queue, scanned, asked)
        queue.next_offset = scanned.next_offset
        for offset, data in scanned.found:
            entry = queue.entries[offset] = PopEntry(queue, offset)
            self._add(entry, data, taken)
        self.parts.in_flight += len(scanned.found)
        return not scanned.found and scanned.next_offset < scanned.end

    def _stats(self, queue: PopQueue, scanned: Scanned, asked: ReceiveRequest) -> None:
        """Count the messages that were scanned and not delivered."""
        consume_stats, found, choice = self.parts.consume_stats, scanned.found, asked.choice
        begin, end = scanned.begin, scanned.next_offset
        if choice is None and not scanned.lost:
            consume_stats.look_at_all(queue.key, begin, end)
            return
        wanted = np.array([offset for offset, _ in found], np.int64)
        stepped = 0 if choice is None else max(0, end - begin - len(found) - scanned.lost)
        consume_stats.look(
            queue.key,
            ScanResult(begin, end, wanted, stepped, scanned.lost),
            queue_end=scanned.end,
            filtering=EVERY if choice is None else choice.filtering,
            member=asked.client_id,
        )

    def _add(self, entry: PopEntry, data: bytes, taken: list[tuple[PopEntry, bytes]]) -> None:
        """Take an entry that was scanned for the first time; `data` is its record."""
        taken.append((entry, data))

    def _check_room(self, has_some: bool) -> None:
        parts = self.parts
        limit = parts.config.pop_in_flight_max
        if parts.in_flight >= limit and not has_some:
            raise Overloaded(
                f"{parts.in_flight} messages are in flight, the limit is {limit}: acknowledge some,"
                " or raise broker.pop_in_flight_max",
                field="pop_in_flight_max",
                limit=limit,
                value=parts.in_flight,
            )

    def deliver(
        self, taken: Sequence[tuple[PopEntry, bytes]], asked: ReceiveRequest, *, again: bool = False
    ) -> list[PoppedMessage]:
        """Deliver messages to a receive; `again`: it is the same delivery as before, with its handles."""
        parts, owner, renews = self.parts, asked.client_id, asked.auto_renew
        invisible_ms = RENEWED_MS if renews else asked.invisible_ms
        now_ms = parts.leases.now_ms()
        until_ms = now_ms + invisible_ms
        lease = parts.leases.grant(
            [entry for entry, _ in taken],
            until_ms,
            owner,
            self.expired,
            renews_until_ms=now_ms + RENEWED_MAX_MS if renews else 0,
        )
        attempt_id = asked.attempt_id if len(asked.attempt_id) <= ATTEMPT_ID_MAX else ""
        self.attempted(lease, attempt_id)
        serials, topic = parts.serials, asked.topic
        is_retry = topic != self.topic
        deliveries, changes = [], []
        for entry, data in taken:
            entry.log_offset, times = log_offset_and_times(data)
            if not again:
                entry.attempt += 1
                entry.serial = next(serials)
            key, offset, serial = entry.queue.key, entry.offset, entry.serial
            attempt = entry.attempt
            delivery = InFlight(attempt, until_ms, owner, serial, renews, attempt_id)
            changes.append(in_flight(key, offset, delivery))
            handle = encode_handle(is_retry, key.queue, offset, serial, self.lite_topic)
            deliveries.append(
                PoppedMessage(
                    data, topic, key.queue, offset, entry.attempt + times, handle, invisible_ms
                )
            )
        parts.deliveries.note(changes)
        for retried in (False, True):
            sizes = [len(one.record) for one in deliveries if (one.attempt > 1) is retried]
            if sizes:
                parts.traffic.delivered(
                    self.group, self.counted_topic, len(sizes), sum(sizes), retried=retried
                )
        return deliveries

    def read(self, entry: PopEntry) -> bytes | None:
        """Return the record of an entry; None if it was deleted, or is damaged: then it counts as lost."""
        store, key = self.parts.store, entry.queue.key
        if entry.log_offset >= 0:
            data = store.read_at(entry.log_offset)
        else:
            data = read_one(store, self.topic, key.queue, entry.offset)
        if data is None and entry.offset >= store.queue_bounds(self.topic, key.queue)[0]:
            self.parts.consume_stats.lose(key)
        return data

    def read_again(self, entry: PopEntry) -> bytes | None:
        """Return the record of an entry that was due; it is due again if it cannot be read."""
        try:
            return self.read(entry)
        except PocketMQError:
            self.expire([entry])
            raise

    def note_undelivered(self, entry: PopEntry) -> None:
        """Note that an entry was scanned and waits: a scan of later messages does not finish it."""
        self.parts.deliveries.note([in_flight(entry.queue.key, entry.offset, WAITS)])

    def _dead_letter(self, entry: PopEntry, data: bytes, reason: str) -> bool:
        """Move a message to the dead-letter queue; return whether that succeeded.

        Its reconsume times include the delivery that did not happen, as in Apache RocketMQ. A damaged record cannot be
        copied: it is finished without a copy.
        """
        try:
            self.parts.make_dead_letter(data, self.group, reason, times_of(entry, data) + 1)
        except InvalidRecord as error:
            logger.error(
                "message is damaged and given up group=%s topic=%s queue=%s offset=%s problem=%s",
                self.group,
                self.topic,
                entry.queue.key.queue,
                entry.offset,
                error.message,
            )
            self.finish(entry)
            return True
        except PocketMQError as error:
            logger.error(
                "could not move message to dead-letter queue group=%s reason=%s",
                self.group,
                error.message,
            )
            until_ms = self.parts.leases.now_ms() + _POSTPONED_MS
            self.release(entry)
            self.parts.leases.grant([entry], until_ms, "", self.expired)
            return False
        self.finish(entry, is_dead=True)
        return True

    # --- what becomes of deliveries

    def find(self, handle: Handle) -> PopEntry | None:
        """Return the entry of a handle, which is in flight; None if it is finished. Raises InvalidReceiptHandle."""
        queue = self.queues.get(handle.queue)
        if queue is None:
            if self.parts.offsets.committed(self.topic, self.group, handle.queue) is None:
                raise _invalid(handle, "nothing of that queue was delivered to the group")
            queue = self._begin(handle.queue, from_oldest=True)
        entry = queue.entries.get(handle.offset)
        if entry is None:
            if handle.offset < queue.next_offset:
                return None
            raise _invalid(handle, "that message was not delivered to the group")
        if entry.serial != handle.serial:
            raise _invalid(handle, "a later delivery has another one")
        if entry.acknowledged:
            return None
        if entry.lease is None or entry.lease.deadline_ms <= self.parts.leases.now_ms():
            raise _invalid(handle, "its time is over, the message is redelivered")
        return entry

    def change(self, entry: PopEntry, invisible_ms: int, *, suspend: bool) -> int:
        """Redeliver an entry in `invisible_ms`, with `suspend` as the same attempt; return its new serial."""
        parts = self.parts
        before = entry.lease
        owner = before.owner if before is not None else ""
        was_suspended = before is not None and before.is_suspended
        self.release(entry)
        if suspend and not was_suspended:
            entry.attempt = max(0, entry.attempt - 1)
        entry.serial = next(parts.serials)
        until_ms = parts.leases.now_ms() + invisible_ms
        delivery = InFlight(entry.attempt, until_ms, owner, entry.serial, False)
        parts.deliveries.note([in_flight(entry.queue.key, entry.offset, delivery)])
        if invisible_ms > 0:
            lease = parts.leases.grant([entry], until_ms, owner, self.expired)
            lease.is_suspended = suspend or was_suspended
        else:
            self.expire([entry])
            parts.wake((self.group, self.topic))
        return entry.serial

    # --- ending

    def release(self, entry: PopEntry) -> None:
        """End the lease of an entry."""
        lease = entry.lease
        if lease is not None:
            self.parts.leases.release(entry)
            if not lease.live:
                self._attempt_over(lease)

    def attempted(self, lease: PopLease, attempt_id: str) -> None:
        """Note that the attempt, if its id is not empty, has got the messages of a lease."""
        if attempt_id:
            lease.attempt_id = attempt_id
            self.attempts.setdefault(attempt_id, []).append(lease)

    def _attempt_over(self, lease: PopLease) -> None:
        leases = self.attempts.get(lease.attempt_id, [])
        if lease in leases:
            leases.remove(lease)
            if not leases:
                del self.attempts[lease.attempt_id]

    def finish(self, entry: PopEntry, *, is_dead: bool = False) -> None:
        """Note that an entry is finished; `is_dead`: it is in the dead-letter queue."""
        queue = entry.queue
        self.release(entry)
        del queue.entries[entry.offset]
        self.parts.in_flight -= 1
        self.parts.deliveries.note([finished(queue.key, entry.offset)])
        if entry.offset == queue.low:
            self.advance_committed(queue)

    def expired(self, lease: PopLease) -> None:
        """Make the entries of a lease due: its time is over."""
        self._attempt_over(lease)
        expired = [entry for entry in lease.entries if entry.lease is lease]
        for entry in expired:
            entry.lease = None
        self.expire(expired)
        self.parts.wake((self.group, self.topic))

    def expire(self, entries: list[PopEntry]) -> None:
        """Make entries due that have no lease any more."""
        self.due.extend(entries)

    # --- starting, and resetting offsets

    def advance_committed(self, queue: PopQueue) -> None:
        """Commit the offset below which all messages of a queue are finished."""
        if queue.advance_low():
            key = queue.key
            self.parts.offsets.commit(key.topic, key.group, key.queue, queue.low)

    def _begin(self, number: int, from_oldest: bool) -> PopQueue:
        """Add a queue, at the committed offset of the group."""
        key = PopKey(self.group, self.topic, number)
        low, end = self.parts.store.queue_bounds(self.topic, number)
        committed = self.parts.offsets.committed(self.topic, self.group, number)
        if committed is None:
            at = low if from_oldest else end
            self.parts.offsets.commit(self.topic, self.group, number, at)
        else:
            at = min(max(committed, low), end)
        queue = self.queues[number] = PopQueue(key, at)
        if committed is None and at > low:
            # A kill may lose the committed offset: the group would start again, after messages that were sent since.
            self.parts.deliveries.note([looked(key, at)])
        return queue

    def restore(self, number: int, found: FoundQueue, *, is_lower_valid: bool) -> None:
        """Restore a queue from the journal, and delete the entries that do not count there.

        Messages below the committed offset are finished. Messages that the log has lost are not scanned. Leases do not
        renew any more, even if their owners are connected: they may never have got the answer.

        Args:
            is_lower_valid: A committed offset below the entries counts. After a clean stop, another broker or tool set
                it. If changes are missing, one of them may have been a reset to it.
        """
        queue = self._begin(number, from_oldest=True)
        note = self.parts.deliveries.note
        if is_lower_valid and queue.low < min(found.in_flight, default=found.looked):
            note([forgotten(queue.key)])
            return
        low, end = self.parts.store.queue_bounds(self.topic, number)
        queue.next_offset = min(max(found.looked, queue.next_offset), end)
        if queue.next_offset != found.looked:
            note([looked(queue.key, queue.next_offset)])
        by_lease: dict[tuple[str, int, bool, str], list[PopEntry]] = {}
        for offset in sorted(found.in_flight):
            if max(low, queue.low) <= offset < queue.next_offset:
                one = found.in_flight[offset]
                entry = queue.entries[offset] = PopEntry(queue, offset)
                entry.attempt, entry.serial = one.attempt, one.serial
                key = (one.owner, one.until_ms, one.renews, one.attempt_id)
                by_lease.setdefault(key, []).append(entry)
        if gone := [one for one in found.in_flight if one not in queue.entries]:
            note([finished(queue.key, one) for one in gone])
        self.parts.in_flight += len(queue.entries)
        now_ms = self.parts.leases.now_ms()
        for (owner, until_ms, renews, attempt_id), entries in by_lease.items():
            if renews:
                until_ms = max(until_ms, now_ms + _RESTORED_MS)
            if until_ms > now_ms:
                renews_ms = until_ms if renews else 0
                grant = self.parts.leases.grant
                lease = grant(entries, until_ms, owner, self.expired, renews_until_ms=renews_ms)
                self.attempted(lease, attempt_id)
            else:
                self.expire(entries)
        self.advance_committed(queue)

    def take_over(self, other: PopTable) -> None:
        """Take over all queues of another table, which is not used any more.

        A snapshot may be reading the other table's rows, so all rows are noted again.
        """
        self.turn = other.turn
        found: dict[int, list[tuple[int, InFlight | int]]] = {}
        for key, offset, value in other.rows():
            found.setdefault(key.queue, []).append((offset, value))
        for number in list(other.queues):
            other.drop(number)
        for number, rows in found.items():
            key = PopKey(self.group, self.topic, number)
            again: list[DeliveryChange] = [TableChange(PUT, key, *row) for row in rows]
            self.parts.deliveries.note([forgotten(key), *again])
            self.restore(number, FoundQueue.of(rows), is_lower_valid=False)

    def move(self, number: int, offset: int) -> None:
        """Restart at an offset of a queue."""
        self.drop(number)
        key = PopKey(self.group, self.topic, number)
        self.queues[number] = PopQueue(key, offset)
        self.parts.offsets.commit(self.topic, self.group, number, offset)
        self.parts.deliveries.note([forgotten(key), looked(key, offset)])
        self.parts.deliveries.sync()
        self.parts.wake((self.group, self.topic))

    def catch_up(self) -> None:
        """Restart queues for which another client has committed an offset."""
        for number, queue in list(self.queues.items()):
            committed = self.parts.offsets.committed(self.topic, self.group, number)
            if committed is not None and committed != queue.low:
                low, end = self.parts.store.queue_bounds(self.topic, number)
                self.move(number, min(max(committed, low), end))

    def drop(self, number: int) -> None:
        """Forget a queue and its messages in flight."""
        queue = self.queues.pop(number, None)
        if queue is None:
            return
        for entry in queue.entries.values():
            self.release(entry)
        self.parts.in_flight -= len(queue.entries)
        queue.entries.clear()

    def retain(self) -> None:
        """Finish messages that retention has deleted."""
        for queue in list(self.queues.values()):
            low = self.parts.store.queue_bounds(self.topic, queue.key.queue)[0]
            if queue.low < low:
                gone = [one for one in queue.entries.values() if one.offset < low]
                for entry in gone:
                    if (
                        entry.offset in queue.entries
                    ):  # An ordered table may have finished it with another.
                        self.finish(entry)
                if gone or queue.next_offset < low:
                    logger.warning(
                        "messages expired unfinished group=%s topic=%s queue=%s in_flight=%s undelivered=%s",
                        self.group,
                        self.topic,
                        queue.key.queue,
                        len(gone),
                        max(0, low - queue.next_offset),
                    )
                queue.next_offset = max(queue.next_offset, low)
                self.advance_committed(queue)

    def check(self) -> None:
        """Assert what always holds between calls."""
        for queue in self.queues.values():
            queue.check()

    def rows(self) -> Iterator[DeliveryRow]:
        """Yield the rows of the table `deliveries`, queue by queue. The table may change meanwhile."""
        for queue in list(self.queues.values()):
            next_offset = queue.next_offset
            for entry in list(queue.entries.values()):
                if entry.acknowledged:
                    continue
                lease = entry.lease
                until_ms, owner, renews, attempt_id = 0, "", False, ""
                if lease is not None:
                    until_ms, owner, attempt_id = lease.deadline_ms, lease.owner, lease.attempt_id
                    renews = lease.ends_ms > 0
                delivery = InFlight(
                    entry.attempt, until_ms, owner, entry.serial, renews, attempt_id
                )
                yield queue.key, entry.offset, delivery
            yield queue.key, LOOKED, next_offset


def times_of(entry: PopEntry, data: bytes) -> int:
    """Return how often a message was delivered in all, also before its record was stored as a retry."""
    return log_offset_and_times(data)[1] + entry.attempt


def exhausted(attempts: int) -> str:
    """Return the reason for moving a message to the dead-letter queue after this many attempts."""
    return "delivered once" if attempts == 1 else f"delivered {attempts} times"


def _invalid(handle: Handle, problem: str) -> InvalidReceiptHandle:
    return InvalidReceiptHandle(
        f"receipt handle of queue {handle.queue}, offset {handle.offset}: {problem}",
        field="receipt_handle",
    )


# --- scanning


class Scanned(NamedTuple):
    """The result of a scan of messages from `begin` to `next_offset`.

    `found` are (offset, record), `end` is the end of the queue. `lost` messages are damaged, or deleted with a file.
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
    choice: FilterChoice | None,
) -> Scanned:
    """Return messages of a queue that pass the filter, up to `room`, of `room_bytes` together, but at least one.

    With a filter that few messages pass, a scan ends after a limited number of messages. The next one continues there.
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
    """Return the message at an offset; None if it was deleted."""
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


def _wanted(seen: Slices, choice: FilterChoice, room: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return up to `room` messages that pass the filter, and the offset after them."""
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
