"""The table of a group that keeps order: one batch of each message group is out at a time.

What a receive takes of one message group of a queue is its batch. Until all of it is acknowledged nothing behind it is
delivered; other message groups of the queue go on. When nothing of it is leased any more it comes again, in order, from
the first message on that is not acknowledged: also those behind that one that are, as with Apache's ordered groups.
(Apache's brokers hold back the whole queue.) Messages without a message group keep the order of their queue.

What lies behind a batch is looked at for other message groups, HELD_MAX messages of a queue at most; from then on
the queue waits.
"""

from __future__ import annotations

from typing import Final

from .asked import Asked
from .changes import Finished, FoundQueue
from .entries import Entry, Lane, PopQueue
from .lanes import Lanes, message_group
from .parts import PopParts, Rules, Taken
from .table import Table, exhausted

#: Messages of a queue that wait for others of their group.
HELD_MAX: Final = 4_096
#: Messages that one receive looks at in a queue.
_LOOKED_AT_MAX: Final = 1_024


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

    def _take_due(self, asked: Asked, rules: Rules, taken: list[tuple[Entry, bytes]]) -> int:
        buried = 0
        for number in rules.queues:
            lanes = self._lanes.get(number)
            while lanes is not None and self.has_room(asked, taken, buried):
                entry = lanes.next(self.turn)
                if entry is None:
                    break
                buried += self._take_held(entry, rules, taken)
        return buried

    def _take_held(self, entry: Entry, rules: Rules, taken: list[tuple[Entry, bytes]]) -> bool:
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

    def _look(self, queue: PopQueue, asked: Asked, taken: list[tuple[Entry, bytes]]) -> bool:
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

    def _add(self, entry: Entry, data: bytes, taken: list[tuple[Entry, bytes]]) -> None:
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

    def finish(self, entry: Entry, copy_at: int = 0) -> None:
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

    def _remove(self, entry: Entry) -> None:
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

    def lapse(self, entries: list[Entry]) -> None:
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


def _lane_of(entry: Entry) -> Lane:
    assert entry.lane is not None, "set when it was looked at"
    return entry.lane
