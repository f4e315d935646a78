"""The table of one group's deliveries of one topic: what is in flight, what is due again, how far was looked.

    next_offset       from here on nothing was looked at
    in flight         delivered, and its lease lasts: an acknowledgement finishes it
    due               its lease is over: the next receive has it first, one attempt on
    low               the lowest that is not finished: the group's committed offset

A message is delivered from the place where it lies, every time. One that was delivered as often as the group allows
goes to the dead letters when it would be delivered again. One that retention has taken meanwhile is finished, and so is
a damaged one instead of becoming a dead letter.

A receive that repeats an attempt's id gets what that attempt got and has not finished, at once, with the same handles
and without counting: its answer was lost, or came too late.

The queues and entries are begun with from what was kept (deliveries.py), and every change of them is noted there.
Messages that nobody looked at yet are looked at through the group's filter.

The event loop owns it. A delivery costs some 5 µs beside reading, an acknowledgement as much.
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
from ..account import EVERY, QueueLook
from ..accounts import Accounts
from ..config import BrokerConfig
from ..messages.filters import FilterChoice, share_of_turn
from ..metrics.traffic import TrafficCounts
from ..offsets import Offsets
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
from .receives import (
    RENEWED_MAX_MS,
    RENEWED_MS,
    Asked,
    Handle,
    PopEntry,
    PopLease,
    PopLeases,
    PoppedMessage,
    PopQueue,
    Rules,
    Taken,
    encode_handle,
)

logger = logging.getLogger(__name__)

#: Letters of an attempt's id; a longer one counts as none.
ATTEMPT_ID_MAX: Final = 256
#: A message that the dead letters could not take is tried again so much later.
_POSTPONED_MS: Final = 10_000
#: A lease that would be renewed lasts so long after a restart.
_RESTORED_MS: Final = 30_000
#: A look through a filter reads so many times more messages each time that it finds too few.
_GROWTH: Final = 4
#: Puts a record among the dead letters of a group: record, group, reason, reconsume times.
Bury: TypeAlias = Callable[[bytes, str, str, int], Appended]


@dataclass(kw_only=True, slots=True)
class PopParts:
    """What all tables share."""

    store: MessageStore
    offsets: Offsets
    leases: PopLeases
    deliveries: KeptDeliveries
    serials: Iterator[int]
    bury: Bury
    config: BrokerConfig
    #: Lets those who wait for something of (group, topic) try again.
    wake: Callable[[tuple[str, str]], object] = lambda key: None
    #: Knows what groups step over.
    accounts: Accounts = field(default_factory=Accounts)
    #: Counts what is handed over.
    traffic: TrafficCounts = field(default_factory=TrafficCounts)
    in_flight: int = 0


class Table:
    """The deliveries of TOPIC for GROUP, in no order: queues and entries, and what is due again, longest due first."""

    is_ordered: ClassVar[bool] = False

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.parts = parts
        self.queues: dict[int, PopQueue] = {}
        self.due: deque[PopEntry] = deque()
        #: What is leased, by the id of the attempt that got it.
        self.attempts: dict[str, list[PopLease]] = {}
        #: Receives so far: each begins with another queue.
        self.turn = 0

    @property
    def in_flight(self) -> int:
        """How many messages are neither finished nor still to be looked at."""
        return sum(len(queue.entries) for queue in self.queues.values())

    # --- delivering

    def has_some(self) -> bool:
        """Is anything due, or not looked at yet?"""
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

    def take(self, asked: Asked, rules: Rules) -> Taken:
        """Deliver what there is for ASKED: what its attempt got before; or what is due, then what nobody looked at yet.

        Raises Overloaded if too much is in flight, and what the store raises.
        """
        again = self._repeated(asked) if asked.attempt_id in self.attempts else None
        return Taken(again, 0, False) if again else self.take_new(asked, rules)

    def _repeated(self, asked: Asked) -> list[PoppedMessage]:
        """Deliver once more what ASKED's attempt has got already, and what is not finished of it."""
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
        return self.lend(found, asked, again=True) if found else []

    def take_new(self, asked: Asked, rules: Rules) -> Taken:
        """Deliver what is not in flight."""
        taken: list[tuple[PopEntry, bytes]] = []
        looked_at: list[DeliveryChange] = []
        try:
            buried = self._take_due(asked, rules, taken)
            more = self._take_new(asked, rules, taken, looked_at)
        except PocketMQError:
            for entry, _ in taken:
                if not entry.serial:
                    self.note_undelivered(entry)
            self.lapse([entry for entry, _ in taken])
            raise
        deliveries = self.lend(taken, asked) if taken else []
        if looked_at:
            # Behind what is in flight: a journal that lost its end must not take that for finished.
            self.parts.deliveries.note(looked_at)
        return Taken(deliveries, buried, more)

    def _take_due(self, asked: Asked, rules: Rules, taken: list[tuple[PopEntry, bytes]]) -> int:
        """Add to TAKEN what is due, up to the batch; return how many were buried instead."""
        due, buried = self.due, 0
        while due and self.has_room(asked, taken, buried):
            entry = due.popleft()
            if entry.queue.entries.get(entry.offset) is not entry or entry.lease is not None:
                continue
            data = self.read_again(entry)
            if data is None:
                self.finish(entry)
            elif entry.attempt < rules.attempts_max:
                taken.append((entry, data))
            elif self._bury(entry, data, exhausted(entry.attempt)):
                buried += 1
        return buried

    def has_room(self, asked: Asked, taken: list[tuple[PopEntry, bytes]], buried: int) -> bool:
        """May there be more in the answer to ASKED than what was TAKEN, and so many that were BURIED?"""
        if len(taken) + buried >= asked.batch:
            return False
        return sum(len(data) for _, data in taken) < self.parts.config.fetch_max_bytes

    def _take_new(
        self,
        asked: Asked,
        rules: Rules,
        taken: list[tuple[PopEntry, bytes]],
        looked_at: list[DeliveryChange],
    ) -> bool:
        """Add to TAKEN what was not looked at yet, up to the batch, and to LOOKED_AT where that was.

        Return whether there is more to look at.
        """
        more = False
        for number in rules.queues:
            if len(taken) >= asked.batch:
                return False
            queue = self.queues.get(number) or self._begin(number, rules.from_oldest)
            before = queue.next_offset
            if before >= self.parts.store.queue_bounds(self.topic, number)[1]:
                continue
            more |= self._look(queue, asked, taken)
            if queue.next_offset > before:
                looked_at.append(TableChange(PUT, queue.key, LOOKED, queue.next_offset))
                self.settle(queue)
        return more

    def _look(self, queue: PopQueue, asked: Asked, taken: list[tuple[PopEntry, bytes]]) -> bool:
        """Look at more of QUEUE, and add what is found to TAKEN; return whether it is worth to look on."""
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
        self._account(queue, scanned, asked)
        queue.next_offset = scanned.next_offset
        for offset, data in scanned.found:
            entry = queue.entries[offset] = PopEntry(queue, offset)
            self._add(entry, data, taken)
        self.parts.in_flight += len(scanned.found)
        return not scanned.found and scanned.next_offset < scanned.end

    def _account(self, queue: PopQueue, scanned: Scanned, asked: Asked) -> None:
        """Note which messages of QUEUE were SCANNED for who ASKED, and not delivered."""
        accounts, found, choice = self.parts.accounts, scanned.found, asked.choice
        begin, end = scanned.begin, scanned.next_offset
        if choice is None and not scanned.lost:
            accounts.look_at_all(queue.key, begin, end)
            return
        wanted = np.array([offset for offset, _ in found], np.int64)
        stepped = 0 if choice is None else max(0, end - begin - len(found) - scanned.lost)
        accounts.look(
            queue.key,
            QueueLook(begin, end, wanted, stepped, scanned.lost),
            queue_end=scanned.end,
            filtering=EVERY if choice is None else choice.filtering,
            member=asked.client_id,
        )

    def _add(self, entry: PopEntry, data: bytes, taken: list[tuple[PopEntry, bytes]]) -> None:
        """Take ENTRY, whose record is DATA, which was looked at for the first time."""
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

    def lend(
        self, taken: Sequence[tuple[PopEntry, bytes]], asked: Asked, *, again: bool = False
    ) -> list[PoppedMessage]:
        """Lend what was TAKEN to who asked; AGAIN: it is the same delivery as before, with its handles."""
        parts, owner, renews = self.parts, asked.client_id, asked.auto_renew
        invisible_ms = RENEWED_MS if renews else asked.invisible_ms
        now_ms = parts.leases.now_ms()
        until_ms = now_ms + invisible_ms
        lease = parts.leases.grant(
            [entry for entry, _ in taken],
            until_ms,
            owner,
            self.lapsed,
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
            handle = encode_handle(is_retry, key.queue, offset, serial)
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
                    self.group, self.topic, len(sizes), sum(sizes), retried=retried
                )
        return deliveries

    def read(self, entry: PopEntry) -> bytes | None:
        """Return the record of ENTRY; None if it is gone, or damaged: then it counts as lost."""
        store, key = self.parts.store, entry.queue.key
        if entry.log_offset >= 0:
            data = store.read_at(entry.log_offset)
        else:
            data = read_one(store, self.topic, key.queue, entry.offset)
        if data is None and entry.offset >= store.queue_bounds(self.topic, key.queue)[0]:
            self.parts.accounts.lose(key)
        return data

    def read_again(self, entry: PopEntry) -> bytes | None:
        """Return the record of ENTRY, which was due and is to be delivered; it is due again if it cannot be read."""
        try:
            return self.read(entry)
        except PocketMQError:
            self.lapse([entry])
            raise

    def note_undelivered(self, entry: PopEntry) -> None:
        """Note that ENTRY was looked at, and waits: a look at what is behind it does not finish it."""
        self.parts.deliveries.note([in_flight(entry.queue.key, entry.offset, WAITS)])

    def _bury(self, entry: PopEntry, data: bytes, reason: str) -> bool:
        """Put ENTRY, whose record is DATA, among the dead letters; return whether it was put away.

        The delivery that did not come about counts among its reconsume times, as with Apache's. A damaged record, of
        which no copy can be made, is finished without one.
        """
        try:
            self.parts.bury(data, self.group, reason, times_of(entry, data) + 1)
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
            logger.error("message not buried group=%s reason=%s", self.group, error.message)
            until_ms = self.parts.leases.now_ms() + _POSTPONED_MS
            self.release(entry)
            self.parts.leases.grant([entry], until_ms, "", self.lapsed)
            return False
        self.finish(entry, is_dead=True)
        return True

    # --- what becomes of deliveries

    def find(self, handle: Handle) -> PopEntry | None:
        """Return what HANDLE means, which is in flight; None if it is finished. Raises InvalidReceiptHandle."""
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
            raise _invalid(handle, "its time is over, the message comes again")
        return entry

    def change(self, entry: PopEntry, invisible_ms: int, *, suspend: bool) -> int:
        """Have ENTRY come again in INVISIBLE_MS, with SUSPEND without counting an attempt; return its new serial."""
        parts = self.parts
        owner = entry.lease.owner if entry.lease is not None else ""
        self.release(entry)
        if suspend:
            entry.attempt -= 1
        entry.serial = next(parts.serials)
        until_ms = parts.leases.now_ms() + invisible_ms
        delivery = InFlight(entry.attempt, until_ms, owner, entry.serial, False)
        parts.deliveries.note([in_flight(entry.queue.key, entry.offset, delivery)])
        if invisible_ms > 0:
            parts.leases.grant([entry], until_ms, owner, self.lapsed)
        else:
            self.lapse([entry])
            parts.wake((self.group, self.topic))
        return entry.serial

    # --- ending

    def release(self, entry: PopEntry) -> None:
        """Let nobody have ENTRY any more."""
        lease = entry.lease
        if lease is not None:
            self.parts.leases.release(entry)
            if not lease.live:
                self._attempt_over(lease)

    def attempted(self, lease: PopLease, attempt_id: str) -> None:
        """Note that the attempt ATTEMPT_ID, if that is not empty, has got what is on LEASE."""
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
        """Note that ENTRY is finished; IS_DEAD: the log has its dead letter."""
        queue = entry.queue
        self.release(entry)
        del queue.entries[entry.offset]
        self.parts.in_flight -= 1
        self.parts.deliveries.note([finished(queue.key, entry.offset)])
        if entry.offset == queue.low:
            self.settle(queue)

    def lapsed(self, lease: PopLease) -> None:
        """Hear that the time of LEASE is over."""
        self._attempt_over(lease)
        lapsed = [entry for entry in lease.entries if entry.lease is lease]
        for entry in lapsed:
            entry.lease = None
        self.lapse(lapsed)
        self.parts.wake((self.group, self.topic))

    def lapse(self, entries: list[PopEntry]) -> None:
        """Hear that ENTRIES have no lease any more."""
        self.due.extend(entries)

    # --- beginning, and being moved

    def settle(self, queue: PopQueue) -> None:
        """Commit what is finished of QUEUE."""
        if queue.settle():
            key = queue.key
            self.parts.offsets.commit(key.topic, key.group, key.queue, queue.low)

    def _begin(self, number: int, from_oldest: bool) -> PopQueue:
        """Return queue NUMBER, which the table does not have yet, as the group left it."""
        key = PopKey(self.group, self.topic, number)
        low, end = self.parts.store.queue_bounds(self.topic, number)
        committed = self.parts.offsets.committed(self.topic, self.group, number)
        if committed is None:
            at = low if from_oldest else end
            self.parts.offsets.commit(self.topic, self.group, number, at)
        else:
            at = min(max(committed, low), end)
        queue = self.queues[number] = PopQueue(key, at)
        return queue

    def restore(self, number: int, found: FoundQueue, *, clean: bool) -> None:
        """Go on with queue NUMBER as the journal FOUND it, and note what of that does not count.

        What the offsets say is finished is; what the log has lost is not looked at yet. Leases renew no more, whether
        or not their owners live: they may never have got the answer. After a CLEAN stop offsets that are behind the
        journal were moved there by somebody else, and count.
        """
        queue = self._begin(number, from_oldest=True)
        note = self.parts.deliveries.note
        if clean and queue.low < min(found.in_flight, default=found.looked):
            note([forgotten(queue.key)])
            return
        low, end = self.parts.store.queue_bounds(self.topic, number)
        queue.next_offset = min(max(found.looked, queue.next_offset), end)
        if queue.next_offset != found.looked:
            note([looked(queue.key, queue.next_offset)])
        lent: dict[tuple[str, int, bool, str], list[PopEntry]] = {}
        for offset in sorted(found.in_flight):
            if max(low, queue.low) <= offset < queue.next_offset:
                one = found.in_flight[offset]
                entry = queue.entries[offset] = PopEntry(queue, offset)
                entry.attempt, entry.serial = one.attempt, one.serial
                key = (one.owner, one.until_ms, one.renews, one.attempt_id)
                lent.setdefault(key, []).append(entry)
        if gone := [one for one in found.in_flight if one not in queue.entries]:
            note([finished(queue.key, one) for one in gone])
        self.parts.in_flight += len(queue.entries)
        now_ms = self.parts.leases.now_ms()
        for (owner, until_ms, renews, attempt_id), entries in lent.items():
            if renews:
                until_ms = max(until_ms, now_ms + _RESTORED_MS)
            if until_ms > now_ms:
                renews_ms = until_ms if renews else 0
                grant = self.parts.leases.grant
                lease = grant(entries, until_ms, owner, self.lapsed, renews_until_ms=renews_ms)
                self.attempted(lease, attempt_id)
            else:
                self.lapse(entries)
        self.settle(queue)

    def take_over(self, other: Table) -> None:
        """Go on with what OTHER has, which does not any more."""
        self.turn = other.turn
        found: dict[int, list[tuple[int, InFlight | int]]] = {}
        for key, offset, value in other.rows():
            found.setdefault(key.queue, []).append((offset, value))
        for number in list(other.queues):
            other.drop(number)
        for number, rows in found.items():
            self.restore(number, FoundQueue.of(rows), clean=False)

    def move(self, number: int, offset: int) -> None:
        """Begin anew at OFFSET of queue NUMBER."""
        self.drop(number)
        key = PopKey(self.group, self.topic, number)
        self.queues[number] = PopQueue(key, offset)
        self.parts.offsets.commit(self.topic, self.group, number, offset)
        self.parts.deliveries.note([forgotten(key), looked(key, offset)])
        self.parts.deliveries.sync()
        self.parts.wake((self.group, self.topic))

    def catch_up(self) -> None:
        """Begin anew wherever somebody else has committed another offset than this table has."""
        for number, queue in list(self.queues.items()):
            committed = self.parts.offsets.committed(self.topic, self.group, number)
            if committed is not None and committed != queue.low:
                low, end = self.parts.store.queue_bounds(self.topic, number)
                self.move(number, min(max(committed, low), end))

    def drop(self, number: int) -> None:
        """Let go of all that is in flight of queue NUMBER, and of how far it was looked at."""
        queue = self.queues.pop(number, None)
        if queue is None:
            return
        for entry in queue.entries.values():
            self.release(entry)
        self.parts.in_flight -= len(queue.entries)
        queue.entries.clear()

    def retain(self) -> None:
        """Finish what retention has taken."""
        for queue in list(self.queues.values()):
            low = self.parts.store.queue_bounds(self.topic, queue.key.queue)[0]
            if queue.low < low:
                gone = [one for one in queue.entries.values() if one.offset < low]
                for entry in gone:
                    if entry.offset in queue.entries:  # One before it may have taken it along.
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
                self.settle(queue)

    def check(self) -> None:
        """Assert what always holds between calls."""
        for queue in self.queues.values():
            queue.check()

    def rows(self) -> Iterator[DeliveryRow]:
        """Yield what is to be kept of the table, queue by queue. It may change meanwhile."""
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
    """Return how often the message of ENTRY, whose record is DATA, was delivered in all, before it was stored too."""
    return log_offset_and_times(data)[1] + entry.attempt


def exhausted(attempts: int) -> str:
    """Return the reason of a message that was delivered ATTEMPTS times in vain."""
    return "delivered once" if attempts == 1 else f"delivered {attempts} times"


def _invalid(handle: Handle, problem: str) -> InvalidReceiptHandle:
    return InvalidReceiptHandle(
        f"receipt handle of queue {handle.queue}, offset {handle.offset}: {problem}",
        field="receipt_handle",
    )


# --- looking


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
    choice: FilterChoice | None,
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


def _wanted(seen: Slices, choice: FilterChoice, room: int) -> tuple[list[tuple[int, bytes]], int]:
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
