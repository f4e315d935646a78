"""The table of one group's deliveries of one topic: what is in flight, what is due again, how far was looked.

    next_offset       from here on nothing was looked at
    in flight         delivered, and its lease lasts: an acknowledgement finishes it
    due               its lease is over: the next receive has it first, one attempt on
    low               the lowest that is not finished: the group's committed offset

A message is delivered from the place where it lies, every time. One that was delivered as often as the group allows
goes to the dead letters when it would be delivered again. One that retention has taken meanwhile is finished.

The event loop owns it. A delivery costs some 5 µs beside reading, an acknowledgement as much.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from ...proto.errors import InvalidReceiptHandle, Overloaded, PocketMQError
from ...proto.record import log_offset_and_times
from .asked import Asked, Delivery
from .changes import Change, Finished, FoundQueue, InFlight, Looked, Moved, PopKey
from .entries import Entry, PopQueue
from .handles import Handle, encode_handle
from .leases import RENEWED_MS, Lease
from .parts import PopParts, Rules, Taken
from .scan import read_one, scan

logger = logging.getLogger(__name__)

#: A message that the dead letters could not take is tried again so much later.
_POSTPONED_MS: Final = 10_000
#: A lease that renews lasts so long after a restart without a word of its owner.
_RESTORED_MS: Final = 30_000


class Table:
    """The deliveries of TOPIC for GROUP, in no order."""

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.parts = parts
        self.queues: dict[int, PopQueue] = {}
        self.due: deque[Entry] = deque()
        #: Receives so far: each begins with another queue.
        self.turn = 0

    @property
    def in_flight(self) -> int:
        """How many messages are neither finished nor still to be looked at."""
        return sum(len(queue.entries) for queue in self.queues.values())

    # --- delivering

    def take(self, asked: Asked, rules: Rules) -> Taken:
        """Deliver what there is for ASKED; what is due first, then what was not looked at yet.

        Raises Overloaded if too much is in flight, and what the store raises.
        """
        taken: list[tuple[Entry, bytes]] = []
        looked: list[PopQueue] = []
        try:
            buried = self._take_due(asked, rules, taken) if self.due else 0
            more = self._take_new(asked, rules, taken, looked)
        except PocketMQError:
            self.lapse([entry for entry, _ in taken])
            raise
        deliveries = self.lend(taken, asked) if taken else []
        for queue in looked:
            # Behind what is in flight: a journal that lost its end must not take that for finished.
            self.parts.journal.note(Looked(queue.key, queue.next_offset))
        return Taken(deliveries, buried, more)

    def _take_due(self, asked: Asked, rules: Rules, taken: list[tuple[Entry, bytes]]) -> int:
        """Add to TAKEN what is due, up to the batch; return how many were buried instead."""
        due, buried = self.due, 0
        while due and len(taken) + buried < asked.batch:
            entry = due.popleft()
            if entry.queue.entries.get(entry.offset) is not entry or entry.lease is not None:
                continue
            data = self.read(entry)
            if data is None:
                self.finish(entry)
            elif entry.attempt < rules.attempts_max:
                taken.append((entry, data))
            elif self._bury(entry, data, _exhausted(entry.attempt)):
                buried += 1
        return buried

    def _take_new(
        self,
        asked: Asked,
        rules: Rules,
        taken: list[tuple[Entry, bytes]],
        looked: list[PopQueue],
    ) -> bool:
        """Add to TAKEN what was not looked at yet, up to the batch, and to LOOKED where that was.

        Return whether there is more to look at.
        """
        room_bytes = self.parts.bytes_max
        more = False
        for number in rules.queues:
            room = asked.batch - len(taken)
            if room <= 0:
                return False
            queue = self.queues.get(number) or self._begin(number, rules.from_oldest)
            before = queue.next_offset
            scanned = scan(
                self.parts.store, self.topic, number, before, room, room_bytes, asked.choice
            )
            if scanned.next_offset == before:
                continue
            self._check_room(bool(taken))
            queue.next_offset = scanned.next_offset
            for offset, data in scanned.found:
                entry = queue.entries[offset] = Entry(queue, offset)
                taken.append((entry, data))
                room_bytes -= len(data)
            self.parts.in_flight += len(scanned.found)
            looked.append(queue)
            self.settle(queue)
            more |= not scanned.found and scanned.next_offset < scanned.end
            if room_bytes <= 0:
                return False
        return more

    def _check_room(self, has_some: bool) -> None:
        parts = self.parts
        if parts.in_flight >= parts.in_flight_max and not has_some:
            raise Overloaded(
                f"{parts.in_flight} messages are in flight, the limit is {parts.in_flight_max}: acknowledge some,"
                " or raise broker.pop_in_flight_max",
                field="pop_in_flight_max",
                limit=parts.in_flight_max,
                value=parts.in_flight,
            )

    def lend(
        self, taken: Sequence[tuple[Entry, bytes]], asked: Asked, *, again: bool = False
    ) -> list[Delivery]:
        """Lend what was TAKEN to who asked; AGAIN: it is the same delivery as before."""
        parts, owner, renews = self.parts, asked.client_id, asked.auto_renew
        invisible_ms = RENEWED_MS if renews else asked.invisible_ms
        until_ms = parts.leases.now_ms() + invisible_ms
        lease = parts.leases.grant(
            [entry for entry, _ in taken], until_ms, owner, self._lapsed, renews=renews
        )
        lease.attempt_id = asked.attempt_id
        note, serials, topic = parts.journal.note, parts.serials, asked.topic
        is_retry = topic != self.topic
        deliveries = []
        for entry, data in taken:
            entry.log_offset, times = log_offset_and_times(data)
            if not again:
                entry.attempt += 1
            key, offset = entry.queue.key, entry.offset
            entry.serial = serial = next(serials)
            note(InFlight(key, offset, entry.attempt, until_ms, owner, serial, renews))
            handle = encode_handle(is_retry, key.queue, offset, serial)
            deliveries.append(
                Delivery(
                    data, topic, key.queue, offset, entry.attempt + times, handle, invisible_ms
                )
            )
        return deliveries

    def read(self, entry: Entry) -> bytes | None:
        """Return the record of ENTRY; None if it is gone."""
        if entry.log_offset >= 0:
            return self.parts.store.read_at(entry.log_offset)
        return read_one(self.parts.store, self.topic, entry.queue.key.queue, entry.offset)

    def _bury(self, entry: Entry, data: bytes, reason: str) -> bool:
        """Put ENTRY, whose record is DATA, among the dead letters; return whether that was possible.

        The delivery that did not come about counts among its reconsume times, as with Apache's.
        """
        try:
            self.parts.bury(data, self.group, reason, times_of(entry, data) + 1)
        except PocketMQError as error:
            logger.error("message not buried group=%s reason=%s", self.group, error.message)
            until_ms = self.parts.leases.now_ms() + _POSTPONED_MS
            self.parts.leases.release(entry)
            self.parts.leases.grant([entry], until_ms, "", self._lapsed)
            return False
        self.finish(entry)
        return True

    # --- what becomes of deliveries

    def find(self, handle: Handle) -> Entry | None:
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

    def finish(self, entry: Entry) -> None:
        """Note that ENTRY is finished."""
        queue = entry.queue
        if entry.lease is not None:
            self.parts.leases.release(entry)
        del queue.entries[entry.offset]
        self.parts.in_flight -= 1
        self.parts.journal.note(Finished(queue.key, entry.offset))
        if entry.offset == queue.low:
            self.settle(queue)

    def change(self, entry: Entry, invisible_ms: int, *, suspend: bool) -> int:
        """Have ENTRY come again in INVISIBLE_MS, with SUSPEND without counting an attempt; return its new serial."""
        parts = self.parts
        owner = entry.lease.owner if entry.lease is not None else ""
        parts.leases.release(entry)
        if suspend:
            entry.attempt -= 1
        entry.serial = next(parts.serials)
        until_ms = parts.leases.now_ms() + invisible_ms
        parts.journal.note(
            InFlight(
                entry.queue.key, entry.offset, entry.attempt, until_ms, owner, entry.serial, False
            )
        )
        if invisible_ms > 0:
            parts.leases.grant([entry], until_ms, owner, self._lapsed)
        else:
            self.lapse([entry])
            parts.wake((self.group, self.topic))
        return entry.serial

    def _lapsed(self, lease: Lease) -> None:
        lapsed = [entry for entry in lease.entries if entry.lease is lease]
        for entry in lapsed:
            entry.lease = None
        self.lapse(lapsed)
        self.parts.wake((self.group, self.topic))

    def lapse(self, entries: Sequence[Entry]) -> None:
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
        """Go on with queue NUMBER as the journal FOUND it.

        What the offsets say is finished is; what the log has lost is not looked at yet. After a CLEAN stop offsets that
        are behind the journal were moved there by somebody else, and count.
        """
        queue = self._begin(number, from_oldest=True)
        if clean and queue.low < min(found.in_flight, default=found.looked):
            return
        low, end = self.parts.store.queue_bounds(self.topic, number)
        queue.next_offset = min(max(found.looked, queue.next_offset), end)
        lent: dict[tuple[str, int, bool], list[Entry]] = {}
        for offset in sorted(found.in_flight):
            if max(low, queue.low) <= offset < queue.next_offset:
                one = found.in_flight[offset]
                entry = queue.entries[offset] = Entry(queue, offset)
                entry.attempt, entry.serial = one.attempt, one.serial
                lent.setdefault((one.owner, one.until_ms, one.renews), []).append(entry)
        self.parts.in_flight += len(queue.entries)
        now_ms = self.parts.leases.now_ms()
        for (owner, until_ms, renews), entries in lent.items():
            if renews:
                until_ms = max(until_ms, now_ms + _RESTORED_MS)
            if until_ms > now_ms:
                grant = self.parts.leases.grant
                grant(entries, until_ms, owner, self._lapsed, renews=renews)
            else:
                self.lapse(entries)
        self.settle(queue)

    def move(self, number: int, offset: int) -> None:
        """Begin anew at OFFSET of queue NUMBER."""
        self.drop(number)
        key = PopKey(self.group, self.topic, number)
        self.queues[number] = PopQueue(key, offset)
        self.parts.offsets.commit(self.topic, self.group, number, offset)
        self.parts.journal.note(Moved(key, offset))
        self.parts.wake((self.group, self.topic))

    def drop(self, number: int) -> None:
        """Let go of all that is in flight of queue NUMBER, and of how far it was looked at."""
        queue = self.queues.pop(number, None)
        if queue is None:
            return
        for entry in queue.entries.values():
            self.parts.leases.release(entry)
        self.parts.in_flight -= len(queue.entries)
        queue.entries.clear()

    def retain(self) -> None:
        """Finish what retention has taken."""
        for queue in self.queues.values():
            low = self.parts.store.queue_bounds(self.topic, queue.key.queue)[0]
            if queue.low < low:
                for entry in [one for one in queue.entries.values() if one.offset < low]:
                    self.finish(entry)
                queue.next_offset = max(queue.next_offset, low)
                self.settle(queue)

    def changes(self) -> Iterator[Change]:
        """Return the changes that make the table as it is."""
        for queue in self.queues.values():
            for entry in queue.entries.values():
                if entry.acknowledged:
                    continue
                lease = entry.lease
                until_ms, owner, renews = 0, "", False
                if lease is not None:
                    until_ms, owner, renews = lease.deadline_ms, lease.owner, lease.ends_ms > 0
                yield InFlight(
                    queue.key, entry.offset, entry.attempt, until_ms, owner, entry.serial, renews
                )
            yield Looked(queue.key, queue.next_offset)


def times_of(entry: Entry, data: bytes) -> int:
    """Return how often the message of ENTRY, whose record is DATA, was delivered in all, before it was stored too."""
    return log_offset_and_times(data)[1] + entry.attempt


def _exhausted(attempts: int) -> str:
    return "delivered once" if attempts == 1 else f"delivered {attempts} times"


def _invalid(handle: Handle, problem: str) -> InvalidReceiptHandle:
    return InvalidReceiptHandle(
        f"receipt handle of queue {handle.queue}, offset {handle.offset}: {problem}",
        field="receipt_handle",
    )
