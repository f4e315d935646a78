"""Messages in flight of an ordered group.

One batch of each message group is in flight at a time. The messages that a receive takes of one message group of a
queue are its batch. Until all of it is acknowledged, the broker delivers no later message of the message group. Other
message groups of the queue continue. (RocketMQ blocks the whole queue.) When nothing of the batch is in flight any
more, it is redelivered in order from the first message on that is not acknowledged, as in ordered groups of Apache
RocketMQ. Messages without a message group keep the order of their queue.

Messages after a batch are scanned for other message groups, up to HELD_MAX per queue; then the queue waits.

The messages of one message group of one queue are a lane:

    batch   delivered messages; acknowledged ones stay in it while an earlier one is not acknowledged
    held    later messages, which wait for the batch

A lane whose batch is finished is free, and its held messages are ready. A batch with nothing in flight returns to the
front of the held messages, from the first that is not acknowledged on.
"""

from __future__ import annotations

import heapq
from typing import Final

from ...proto.properties import SHARDING_KEY
from ...proto.record import property_value
from .deliveries import FoundQueue, finished
from .entries import OrderedQueue, PopEntry, PopQueue
from .receives import ReceiveRequest, Rules, TakenMessages
from .table import HELD_MAX, PopParts, PopTable, exhausted

#: Messages per queue that one receive scans.
_LOOKED_AT_MAX: Final = 1_024
_SHARDING_KEY: Final = SHARDING_KEY.encode()


class OrderedTable(PopTable):
    """The deliveries of a topic for an ordered group."""

    is_ordered = True

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        super().__init__(parts, group, topic)
        self._lanes: dict[int, OrderedQueues] = {}
        self._is_taking = False

    def label(self, record: bytes) -> bytes:
        """Return what names the lane of a record."""
        return message_group(record)

    def take_new(self, asked: ReceiveRequest, rules: Rules) -> TakenMessages:
        self._is_taking = True
        try:
            return super().take_new(asked, rules)
        finally:
            self._is_taking = False

    def _take_due(
        self, asked: ReceiveRequest, rules: Rules, taken: list[tuple[PopEntry, bytes]]
    ) -> int:
        dead_lettered = 0
        for number in rules.queues:
            lanes = self._lanes.get(number)
            while lanes is not None and self.has_room(asked, taken, dead_lettered):
                entry = lanes.next(self.turn)
                if entry is None:
                    break
                dead_lettered += self._take_held(entry, rules, taken)
        return dead_lettered

    def _take_held(
        self, entry: PopEntry, rules: Rules, taken: list[tuple[PopEntry, bytes]]
    ) -> bool:
        """Take the held ENTRY; return whether it became a dead letter instead."""
        lane = _lane_of(entry)
        lane.batch.append(entry)
        lane.turn = self.turn
        data = self.read_again(entry)
        is_acknowledged, entry.acknowledged = entry.acknowledged, False
        if data is None:
            self.finish(entry)
        elif entry.attempt < rules.attempts_max:
            taken.append((entry, data))
        elif is_acknowledged:
            self.finish(entry)
        elif self._dead_letter(entry, data, exhausted(entry.attempt)):
            return True
        else:
            lane.turn = -1  # Later messages of the lane wait.
        return False

    def _scan(
        self, queue: PopQueue, asked: ReceiveRequest, taken: list[tuple[PopEntry, bytes]]
    ) -> bool:
        lanes = self._lanes.setdefault(queue.key.queue, OrderedQueues())
        stop = queue.next_offset + _LOOKED_AT_MAX
        while len(taken) < asked.batch and lanes.held_count < HELD_MAX:
            before = queue.next_offset
            more = super()._scan(queue, asked, taken)
            if more or queue.next_offset == before:
                return more
            if queue.next_offset >= stop:
                return not taken
        return False

    def _add(self, entry: PopEntry, data: bytes, taken: list[tuple[PopEntry, bytes]]) -> None:
        lanes = self._lanes[entry.queue.key.queue]
        lane = entry.lane = lanes.of(self.label(data))
        if lane.held or (lane.batch and lane.turn != self.turn):
            lanes.hold(entry, lane)
            self.note_undelivered(entry)
            return
        lane.batch.append(entry)
        lane.turn = self.turn
        taken.append((entry, data))

    def finish(self, entry: PopEntry, *, is_dead: bool = False) -> None:
        lane, number = _lane_of(entry), entry.queue.key.queue
        self.release(entry)
        self.parts.deliveries.note([finished(entry.queue.key, entry.offset)])
        entry.acknowledged = True
        if entry not in lane.batch:
            self._lanes[number].remove(entry)
            self._remove(entry)
            return
        if is_dead:  # A dead letter is not redelivered with its batch.
            lane.batch.remove(entry)
            self._remove(entry)
        while lane.batch and lane.batch[0].acknowledged:
            self._remove(lane.batch.pop(0))
        self._look_after(lane, number)

    def _remove(self, entry: PopEntry) -> None:
        """Forget ENTRY, which is finished and will not be redelivered."""
        queue = entry.queue
        del queue.entries[entry.offset]
        self.parts.in_flight -= 1
        if entry.offset == queue.low:
            self.advance_committed(queue)

    def _look_after(self, lane: OrderedQueue, number: int) -> None:
        """Let LANE continue if its batch is finished, or redeliver the batch if nothing of it is in flight."""
        lanes = self._lanes[number]
        if not lane.batch:
            for entry in lanes.take_finished(lane):
                self._remove(entry)
            is_ready = lanes.free(lane)
        elif not self._is_taking and not lane.is_leased:
            lanes.take_back(lane)
            is_ready = True
        else:
            return
        if is_ready and not self._is_taking:
            self.parts.wake((self.group, self.topic))

    def expire(self, entries: list[PopEntry]) -> None:
        lanes: dict[int, tuple[OrderedQueue, int]] = {}
        for entry in entries:
            lane = entry.lane
            if lane is not None:
                lanes[id(lane)] = (lane, entry.queue.key.queue)
        for lane, number in lanes.values():
            if lane.batch and not lane.is_leased:
                self._lanes[number].take_back(lane)

    def restore(self, number: int, found: FoundQueue, *, is_lower_valid: bool) -> None:
        super().restore(number, found, is_lower_valid=is_lower_valid)
        queue = self.queues[number]
        lanes = self._lanes[number] = OrderedQueues()
        for entry in list(queue.entries.values()):
            data = self.read(entry)
            if data is None:
                super().finish(entry)
                continue
            lane = entry.lane = lanes.of(self.label(data))
            if entry.serial:  # It was delivered: suspending resets the attempts.
                lane.batch.append(entry)
            else:
                lanes.hold(entry, lane)
        for lane in lanes.all():
            if not lane.batch:
                lanes.free(lane)
            elif not lane.is_leased:
                lanes.take_back(lane)

    def drop(self, number: int) -> None:
        super().drop(number)
        self._lanes.pop(number, None)

    def check(self) -> None:
        super().check()
        for number, lanes in self._lanes.items():
            entries = self.queues[number].entries if number in self.queues else {}
            listed = [one for lane in lanes.all() for one in (*lane.batch, *lane.held)]
            assert {one.offset for one in listed} == set(entries)
            assert lanes.held_count == sum(len(lane.held) for lane in lanes.all())
            for lane in lanes.all():
                offsets = [one.offset for one in (*lane.batch, *lane.held)]
                assert offsets == sorted(offsets)
                assert not lane.batch or (lane.is_leased and not lane.batch[0].acknowledged)


def _lane_of(entry: PopEntry) -> OrderedQueue:
    assert entry.lane is not None, "set when it was looked at"
    return entry.lane


def message_group(record: bytes) -> bytes:
    """Return the message group of RECORD; empty if it has none, which counts as a group in each queue."""
    return property_value(record, _SHARDING_KEY)


class OrderedQueues:
    """The lanes of one queue."""

    __slots__ = ("_by_label", "_ready", "held_count")

    def __init__(self) -> None:
        self._by_label: dict[bytes, OrderedQueue] = {}
        #: (offset of the first held message, label) of free lanes, and of some that are not free
        #: any more.
        self._ready: list[tuple[int, bytes]] = []
        self.held_count = 0

    def of(self, label: bytes) -> OrderedQueue:
        """Return the lane LABEL."""
        lane = self._by_label.get(label)
        if lane is None:
            lane = self._by_label[label] = OrderedQueue(label)
        return lane

    def find(self, label: bytes) -> OrderedQueue | None:
        """Return the lane LABEL; None if it has no messages."""
        return self._by_label.get(label)

    def all(self) -> list[OrderedQueue]:
        """Return all lanes that have messages."""
        return list(self._by_label.values())

    def free(self, lane: OrderedQueue) -> bool:
        """Record that no message of LANE is in flight; return whether it has messages to deliver."""
        if not lane.held:
            del self._by_label[lane.label]
            return False
        heapq.heappush(self._ready, (lane.held[0].offset, lane.label))
        return True

    def hold(self, entry: PopEntry, lane: OrderedQueue) -> None:
        """Append ENTRY to the held messages of LANE."""
        lane.held.append(entry)
        self.held_count += 1

    def take_back(self, lane: OrderedQueue) -> None:
        """Move LANE's batch back to its held messages."""
        self.held_count += len(lane.batch)
        lane.take_back()
        self.free(lane)

    def take_finished(self, lane: OrderedQueue) -> list[PopEntry]:
        """Remove and return the acknowledged entries at the front of LANE: no earlier message will be redelivered."""
        found = []
        while lane.held and lane.held[0].acknowledged:
            found.append(lane.held.popleft())
        self.held_count -= len(found)
        return found

    def next(self, turn: int) -> PopEntry | None:
        """Remove and return the first entry that is held and ready, for the receive TURN; None if there is none."""
        while self._ready:
            offset, label = self._ready[0]
            lane = self._by_label.get(label)
            if lane is None or not lane.held or lane.held[0].offset != offset:
                heapq.heappop(self._ready)
                continue
            if lane.batch and lane.turn != turn:
                heapq.heappop(self._ready)
                continue
            entry = lane.held.popleft()
            self.held_count -= 1
            if lane.held:
                heapq.heapreplace(self._ready, (lane.held[0].offset, label))
            else:
                heapq.heappop(self._ready)
            return entry
        return None

    def remove(self, entry: PopEntry) -> None:
        """Remove ENTRY, which is held."""
        lane = entry.lane
        assert lane is not None, "a held entry has a lane"
        was_first = lane.held[0] is entry
        lane.held.remove(entry)
        self.held_count -= 1
        if was_first and not lane.batch:
            self.free(lane)
