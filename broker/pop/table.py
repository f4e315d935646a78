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

The event loop owns it. A delivery costs some 5 µs beside reading, an acknowledgement as much.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np

from ...proto.errors import InvalidReceiptHandle, InvalidRecord, Overloaded, PocketMQError
from ...proto.record import log_offset_and_times
from ..accounts.account import EVERY, QueueLook
from .asked import Asked, Delivery
from .changes import InFlight, Looked
from .entries import Entry, PopQueue
from .handles import Handle, encode_handle
from .holdings import Holdings
from .leases import RENEWED_MAX_MS, RENEWED_MS
from .parts import Rules, Taken
from .scan import Scanned, read_one, scan

logger = logging.getLogger(__name__)

#: Letters of an attempt's id; a longer one counts as none.
ATTEMPT_ID_MAX: Final = 256
#: A message that the dead letters could not take is tried again so much later.
_POSTPONED_MS: Final = 10_000


class Table(Holdings):
    """The deliveries of a topic for a group, in no order."""

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

    def _repeated(self, asked: Asked) -> list[Delivery]:
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
        taken: list[tuple[Entry, bytes]] = []
        looked: list[PopQueue] = []
        try:
            buried = self._take_due(asked, rules, taken)
            more = self._take_new(asked, rules, taken, looked)
        except PocketMQError:
            for entry, _ in taken:
                if not entry.serial:
                    self.note_undelivered(entry)
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

    def has_room(self, asked: Asked, taken: list[tuple[Entry, bytes]], buried: int) -> bool:
        """May there be more in the answer to ASKED than what was TAKEN, and so many that were BURIED?"""
        if len(taken) + buried >= asked.batch:
            return False
        return sum(len(data) for _, data in taken) < self.parts.bytes_max

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
                looked.append(queue)
                self.settle(queue)
        return more

    def _look(self, queue: PopQueue, asked: Asked, taken: list[tuple[Entry, bytes]]) -> bool:
        """Look at more of QUEUE, and add what is found to TAKEN; return whether it is worth to look on."""
        room_bytes = self.parts.bytes_max - sum(len(data) for _, data in taken)
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
            entry = queue.entries[offset] = Entry(queue, offset)
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

    def _add(self, entry: Entry, data: bytes, taken: list[tuple[Entry, bytes]]) -> None:
        """Take ENTRY, whose record is DATA, which was looked at for the first time."""
        taken.append((entry, data))

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
        note, serials, topic = parts.journal.note, parts.serials, asked.topic
        is_retry = topic != self.topic
        deliveries = []
        for entry, data in taken:
            entry.log_offset, times = log_offset_and_times(data)
            if not again:
                entry.attempt += 1
                entry.serial = next(serials)
            key, offset, serial = entry.queue.key, entry.offset, entry.serial
            attempt = entry.attempt
            note(InFlight(key, offset, attempt, until_ms, owner, serial, renews, attempt_id))
            handle = encode_handle(is_retry, key.queue, offset, serial)
            deliveries.append(
                Delivery(
                    data, topic, key.queue, offset, entry.attempt + times, handle, invisible_ms
                )
            )
        return deliveries

    def read(self, entry: Entry) -> bytes | None:
        """Return the record of ENTRY; None if it is gone, or damaged: then it counts as lost."""
        store, key = self.parts.store, entry.queue.key
        if entry.log_offset >= 0:
            data = store.read_at(entry.log_offset)
        else:
            data = read_one(store, self.topic, key.queue, entry.offset)
        if data is None and entry.offset >= store.queue_bounds(self.topic, key.queue)[0]:
            self.parts.accounts.lose(key)
        return data

    def read_again(self, entry: Entry) -> bytes | None:
        """Return the record of ENTRY, which was due and is to be delivered; it is due again if it cannot be read."""
        try:
            return self.read(entry)
        except PocketMQError:
            self.lapse([entry])
            raise

    def note_undelivered(self, entry: Entry) -> None:
        """Note that ENTRY was looked at, and waits: a look at what is behind it does not finish it."""
        waits = InFlight(entry.queue.key, entry.offset, 0, 0, "", 0, False)
        self.parts.journal.note(waits)

    def _bury(self, entry: Entry, data: bytes, reason: str) -> bool:
        """Put ENTRY, whose record is DATA, among the dead letters; return whether it was put away.

        The delivery that did not come about counts among its reconsume times, as with Apache's. A damaged record, of
        which no copy can be made, is finished without one.
        """
        try:
            copy = self.parts.bury(data, self.group, reason, times_of(entry, data) + 1)
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
        self.finish(entry, int(copy.log_offsets[0]))
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

    def change(self, entry: Entry, invisible_ms: int, *, suspend: bool) -> int:
        """Have ENTRY come again in INVISIBLE_MS, with SUSPEND without counting an attempt; return its new serial."""
        parts = self.parts
        owner = entry.lease.owner if entry.lease is not None else ""
        self.release(entry)
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
            parts.leases.grant([entry], until_ms, owner, self.lapsed)
        else:
            self.lapse([entry])
            parts.wake((self.group, self.topic))
        return entry.serial


def times_of(entry: Entry, data: bytes) -> int:
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
