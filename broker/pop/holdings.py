"""What a group has begun with of a topic: its queues and entries, from the journal and for it, and how they end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Final

from .changes import Change, Finished, Found, FoundQueue, InFlight, Looked, Moved, PopKey
from .entries import Entry, Lease, PopQueue
from .parts import PopParts

logger = logging.getLogger(__name__)

#: A lease that would be renewed lasts so long after a restart.
_RESTORED_MS: Final = 30_000


class Holdings:
    """What GROUP has begun with of TOPIC, by queue; what is due again in the order in which that came to be."""

    is_ordered: ClassVar[bool] = False

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.parts = parts
        self.queues: dict[int, PopQueue] = {}
        self.due: deque[Entry] = deque()
        #: What is leased, by the id of the attempt that got it.
        self.attempts: dict[str, list[Lease]] = {}
        #: Receives so far: each begins with another queue.
        self.turn = 0

    @property
    def in_flight(self) -> int:
        """How many messages are neither finished nor still to be looked at."""
        return sum(len(queue.entries) for queue in self.queues.values())

    # --- ending

    def release(self, entry: Entry) -> None:
        """Let nobody have ENTRY any more."""
        lease = entry.lease
        if lease is not None:
            self.parts.leases.release(entry)
            if not lease.live:
                self._attempt_over(lease)

    def attempted(self, lease: Lease, attempt_id: str) -> None:
        """Note that the attempt ATTEMPT_ID, if that is not empty, has got what is on LEASE."""
        if attempt_id:
            lease.attempt_id = attempt_id
            self.attempts.setdefault(attempt_id, []).append(lease)

    def _attempt_over(self, lease: Lease) -> None:
        leases = self.attempts.get(lease.attempt_id, [])
        if lease in leases:
            leases.remove(lease)
            if not leases:
                del self.attempts[lease.attempt_id]

    def finish(self, entry: Entry, copy_at: int = 0) -> None:
        """Note that ENTRY is finished; with a COPY_AT if its dead letter lies there in the log."""
        queue = entry.queue
        self.release(entry)
        del queue.entries[entry.offset]
        self.parts.in_flight -= 1
        self.parts.journal.note(Finished(queue.key, entry.offset, copy_at))
        if entry.offset == queue.low:
            self.settle(queue)

    def lapsed(self, lease: Lease) -> None:
        """Hear that the time of LEASE is over."""
        self._attempt_over(lease)
        lapsed = [entry for entry in lease.entries if entry.lease is lease]
        for entry in lapsed:
            entry.lease = None
        self.lapse(lapsed)
        self.parts.wake((self.group, self.topic))

    def lapse(self, entries: list[Entry]) -> None:
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

        What the offsets say is finished is; what the log has lost is not looked at yet. Leases renew no more, whether
        or not their owners live: they may never have got the answer. After a CLEAN stop offsets that are behind the
        journal were moved there by somebody else, and count.
        """
        queue = self._begin(number, from_oldest=True)
        if clean and queue.low < min(found.in_flight, default=found.looked):
            return
        low, end = self.parts.store.queue_bounds(self.topic, number)
        queue.next_offset = min(max(found.looked, queue.next_offset), end)
        lent: dict[tuple[str, int, bool, str], list[Entry]] = {}
        for offset in sorted(found.in_flight):
            if max(low, queue.low) <= offset < queue.next_offset:
                one = found.in_flight[offset]
                entry = queue.entries[offset] = Entry(queue, offset)
                entry.attempt, entry.serial = one.attempt, one.serial
                key = (one.owner, one.until_ms, one.renews, one.attempt_id)
                lent.setdefault(key, []).append(entry)
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

    def take_over(self, other: Holdings) -> None:
        """Go on with what OTHER has, which does not any more."""
        self.turn = other.turn
        found = Found(other.changes())
        for number in list(other.queues):
            other.drop(number)
        for key, queue in found.queues.items():
            self.restore(key.queue, queue, clean=False)

    def move(self, number: int, offset: int) -> None:
        """Begin anew at OFFSET of queue NUMBER."""
        self.drop(number)
        key = PopKey(self.group, self.topic, number)
        self.queues[number] = PopQueue(key, offset)
        self.parts.offsets.commit(self.topic, self.group, number, offset)
        self.parts.journal.note(Moved(key, offset))
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

    def changes(self) -> Iterator[Change]:
        """Return the changes that make the table as it is, queue by queue. It may change while they are taken."""
        for queue in list(self.queues.values()):
            looked = Looked(queue.key, queue.next_offset)
            for entry in list(queue.entries.values()):
                if entry.acknowledged:
                    continue
                lease = entry.lease
                in_flight = InFlight(
                    queue.key, entry.offset, entry.attempt, 0, "", entry.serial, False
                )
                if lease is not None:
                    in_flight = in_flight._replace(
                        until_ms=lease.deadline_ms,
                        owner=lease.owner,
                        renews=lease.ends_ms > 0,
                        attempt_id=lease.attempt_id,
                    )
                yield in_flight
            yield looked
