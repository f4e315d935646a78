"""The table of a group that keeps order: one batch of each message group is out at a time.

What a receive takes of one message group of a queue is its batch. Until all of it is acknowledged nothing behind it is
delivered; other message groups of the queue go on. When nothing of it is leased any more it comes again, in order, from
the first message on that is not acknowledged: also those behind that one that are, as with Apache's ordered groups.
(Apache's brokers hold back the whole queue.) Messages without a message group keep the order of their queue.

What lies behind a batch is looked at for other message groups, HELD_MAX messages of a queue at most; from then on
the queue waits.

The messages of one group of one queue are a lane:

    batch   what is delivered; what is acknowledged stays in it while one before it is not
    held    what is behind: not delivered, for the batch comes first

A lane whose batch is finished is free: what it holds is ready. A batch of which nothing is leased any more goes back
to the front of what is held, from the first that is not acknowledged on.

The table of a group's retry topic: what classic consumers sent back, for those who pop now.

`%RETRY%group` holds messages of several topics, and each says which (RETRY_TOPIC). A receive of one of them gets its
own; those of others are held until somebody asks for theirs, HELD_MAX at most: then nothing more is looked at. One that
does not say where it came from goes to whoever asks first, and all go to a receive of the retry topic itself. Filters
do not apply: the message was wanted when it was first delivered. Its earlier attempts count.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Final

from ...proto.properties import RETRY_TOPIC, SHARDING_KEY
from ...proto.record import property_value
from .journal_format import Finished, FoundQueue
from .receives import Asked, Lane, PopEntry, PopQueue, Rules, Taken
from .table import PopParts, Table, exhausted, times_of

#: Messages of a queue that wait for others of their group.
HELD_MAX: Final = 4_096
#: Messages that one receive looks at in a queue.
_LOOKED_AT_MAX: Final = 1_024
_SHARDING_KEY: Final = SHARDING_KEY.encode()


class OrderedTable(Table):
    """The deliveries of a topic for a group, in order."""

    is_ordered = True

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        super().__init__(parts, group, topic)
        self._lanes: dict[int, Lanes] = {}
        self._is_taking = False

    # --- delivering

    def take_new(self, asked: Asked, rules: Rules) -> Taken:
        self._is_taking = True
        try:
            return super().take_new(asked, rules)
        finally:
            self._is_taking = False

    def _take_due(self, asked: Asked, rules: Rules, taken: list[tuple[PopEntry, bytes]]) -> int:
        buried = 0
        for number in rules.queues:
            lanes = self._lanes.get(number)
            while lanes is not None and self.has_room(asked, taken, buried):
                entry = lanes.next(self.turn)
                if entry is None:
                    break
                buried += self._take_held(entry, rules, taken)
        return buried

    def _take_held(
        self, entry: PopEntry, rules: Rules, taken: list[tuple[PopEntry, bytes]]
    ) -> bool:
        """Take ENTRY, which was held; return whether it was buried instead."""
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
        elif self._bury(entry, data, exhausted(entry.attempt)):
            return True
        else:
            lane.turn = -1  # What is behind it waits.
        return False

    def _look(self, queue: PopQueue, asked: Asked, taken: list[tuple[PopEntry, bytes]]) -> bool:
        lanes = self._lanes.setdefault(queue.key.queue, Lanes())
        stop = queue.next_offset + _LOOKED_AT_MAX
        while len(taken) < asked.batch and lanes.held_count < HELD_MAX:
            before = queue.next_offset
            more = super()._look(queue, asked, taken)
            if more or queue.next_offset == before:
                return more
            if queue.next_offset >= stop:
                return not taken
        return False

    def _add(self, entry: PopEntry, data: bytes, taken: list[tuple[PopEntry, bytes]]) -> None:
        lanes = self._lanes[entry.queue.key.queue]
        lane = entry.lane = lanes.of(message_group(data))
        if lane.held or (lane.batch and lane.turn != self.turn):
            lanes.hold(entry, lane)
            self.note_undelivered(entry)
            return
        lane.batch.append(entry)
        lane.turn = self.turn
        taken.append((entry, data))

    # --- what becomes of deliveries

    def finish(self, entry: PopEntry, copy_at: int = 0) -> None:
        lane, number = _lane_of(entry), entry.queue.key.queue
        self.release(entry)
        self.parts.journal.note(Finished(entry.queue.key, entry.offset, copy_at))
        entry.acknowledged = True
        if entry not in lane.batch:
            self._lanes[number].remove(entry)
            self._remove(entry)
            return
        if copy_at:  # A dead letter does not come again with its batch.
            lane.batch.remove(entry)
            self._remove(entry)
        while lane.batch and lane.batch[0].acknowledged:
            self._remove(lane.batch.pop(0))
        self._look_after(lane, number)

    def _remove(self, entry: PopEntry) -> None:
        """Forget ENTRY, which is finished and does not come again."""
        queue = entry.queue
        del queue.entries[entry.offset]
        self.parts.in_flight -= 1
        if entry.offset == queue.low:
            self.settle(queue)

    def _look_after(self, lane: Lane, number: int) -> None:
        """Have LANE go on if its batch is finished, or come again if nothing of it is leased any more."""
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

    def lapse(self, entries: list[PopEntry]) -> None:
        lanes: dict[int, tuple[Lane, int]] = {}
        for entry in entries:
            lane = entry.lane
            if lane is not None:
                lanes[id(lane)] = (lane, entry.queue.key.queue)
        for lane, number in lanes.values():
            if lane.batch and not lane.is_leased:
                self._lanes[number].take_back(lane)

    # --- beginning, and being moved

    def restore(self, number: int, found: FoundQueue, *, clean: bool) -> None:
        super().restore(number, found, clean=clean)
        queue = self.queues[number]
        lanes = self._lanes[number] = Lanes()
        for entry in list(queue.entries.values()):
            data = self.read(entry)
            if data is None:
                super().finish(entry)
                continue
            lane = entry.lane = lanes.of(message_group(data))
            if entry.serial:  # It was delivered: a suspended one may count no attempt.
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


def _lane_of(entry: PopEntry) -> Lane:
    assert entry.lane is not None, "set when it was looked at"
    return entry.lane


def message_group(record: bytes) -> bytes:
    """Return the message group of RECORD; empty if it has none: all those of a queue keep their order too."""
    return property_value(record, _SHARDING_KEY)


# --- lanes


class Lanes:
    """The lanes of one queue."""

    __slots__ = ("_by_label", "_ready", "held_count")

    def __init__(self) -> None:
        self._by_label: dict[bytes, Lane] = {}
        #: (offset of the first that is held, label) of lanes that are free, and of some that are not any more.
        self._ready: list[tuple[int, bytes]] = []
        self.held_count = 0

    def of(self, label: bytes) -> Lane:
        """Return the lane LABEL."""
        lane = self._by_label.get(label)
        if lane is None:
            lane = self._by_label[label] = Lane(label)
        return lane

    def all(self) -> list[Lane]:
        """Return all lanes that have something."""
        return list(self._by_label.values())

    def free(self, lane: Lane) -> bool:
        """Hear that nothing of LANE is delivered; return whether it has something to deliver."""
        if not lane.held:
            del self._by_label[lane.label]
            return False
        heapq.heappush(self._ready, (lane.held[0].offset, lane.label))
        return True

    def hold(self, entry: PopEntry, lane: Lane) -> None:
        """Have ENTRY wait behind what LANE has."""
        lane.held.append(entry)
        self.held_count += 1

    def take_back(self, lane: Lane) -> None:
        """Hold LANE's batch again."""
        self.held_count += len(lane.batch)
        lane.take_back()
        self.free(lane)

    def take_finished(self, lane: Lane) -> list[PopEntry]:
        """Take out what LANE holds in front that is acknowledged: nothing before it will come again."""
        found = []
        while lane.held and lane.held[0].acknowledged:
            found.append(lane.held.popleft())
        self.held_count -= len(found)
        return found

    def next(self, turn: int) -> PopEntry | None:
        """Take the first entry out of those that are held and ready, for the receive TURN; None if none is."""
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
        """Take ENTRY out, which is held."""
        lane = entry.lane
        assert lane is not None, "held in a lane"
        was_first = lane.held[0] is entry
        lane.held.remove(entry)
        self.held_count -= 1
        if was_first and not lane.batch:
            self.free(lane)


# ---------------------------------------------------------------- the table of a group's retry topic


_ORIGIN: Final = RETRY_TOPIC.encode()


class RetryTable(Table):
    """The deliveries of a group's retry topic, by the topics that messages were first sent to."""

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        super().__init__(parts, group, topic)
        self._lanes: dict[bytes, Lane] = {}
        #: What the present receive asks for.
        self._wanted = b""

    @property
    def held_count(self) -> int:
        """How many messages are due."""
        return sum(len(lane.held) for lane in self._lanes.values())

    def _take_due(self, asked: Asked, rules: Rules, taken: list[tuple[PopEntry, bytes]]) -> int:
        buried = 0
        wanted = (asked.topic.encode(), b"") if asked.topic != self.topic else list(self._lanes)
        for lane in [self._lanes[label] for label in wanted if label in self._lanes]:
            while lane.held and self.has_room(asked, taken, buried):
                entry = lane.held.popleft()
                data = self.read_again(entry)
                if data is None:
                    self.finish(entry)
                elif times_of(entry, data) < rules.attempts_max:
                    taken.append((entry, data))
                else:
                    buried += self._bury(entry, data, exhausted(times_of(entry, data)))
        return buried

    def _look(self, queue: PopQueue, asked: Asked, taken: list[tuple[PopEntry, bytes]]) -> bool:
        self._wanted = asked.topic.encode()
        asked = replace(asked, choice=None)
        while len(taken) < asked.batch and self.held_count < HELD_MAX:
            before = queue.next_offset
            if super()._look(queue, asked, taken) or queue.next_offset == before:
                break
        return False

    def _add(self, entry: PopEntry, data: bytes, taken: list[tuple[PopEntry, bytes]]) -> None:
        label = property_value(data, _ORIGIN)
        entry.lane = self._lane(label)
        if label in (b"", self._wanted) or self._wanted == self.topic.encode():
            taken.append((entry, data))
            return
        entry.lane.held.append(entry)
        self.note_undelivered(entry)

    def _lane(self, label: bytes) -> Lane:
        lane = self._lanes.get(label)
        if lane is None:
            lane = self._lanes[label] = Lane(label)
        return lane

    def lapse(self, entries: list[PopEntry]) -> None:
        for entry in entries:
            if entry.lane is not None:
                entry.lane.held.append(entry)

    def finish(self, entry: PopEntry, copy_at: int = 0) -> None:
        may_be_held = entry.lease is None
        super().finish(entry, copy_at)
        if may_be_held and entry.lane is not None and entry in entry.lane.held:
            entry.lane.held.remove(entry)

    def restore(self, number: int, found: FoundQueue, *, clean: bool) -> None:
        super().restore(number, found, clean=clean)
        for entry in list(self.queues[number].entries.values()):
            data = self.read(entry)
            if data is None:
                self.finish(entry)
                continue
            entry.lane = self._lane(property_value(data, _ORIGIN))
            if entry.lease is None:
                self.lapse([entry])

    def drop(self, number: int) -> None:
        super().drop(number)
        for lane in self._lanes.values():
            kept = [entry for entry in lane.held if entry.queue.key.queue != number]
            lane.held.clear()
            lane.held.extend(kept)
