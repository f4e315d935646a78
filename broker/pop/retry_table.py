"""Messages in flight of a group's retry topic: messages that classic consumers returned, delivered to those that pop.

`%RETRY%group` contains messages of several topics; RETRY_TOPIC names the topic of each. A receive of a topic gets the
messages of this topic. Others are held for receives of their topics, up to HELD_MAX: then scanning stops. A message
without a topic goes to the next receive of any topic, and a receive of the retry topic itself gets all. Filters do not
apply: the message matched when it was first delivered. Its earlier attempts count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...proto.properties import RETRY_TOPIC
from ...proto.record import property_value
from .deliveries import FoundQueue
from .entries import OrderedQueue, PopEntry, PopQueue
from .receives import ReceiveRequest, Rules
from .table import HELD_MAX, PopParts, PopTable, exhausted, times_of

_ORIGIN: Final = RETRY_TOPIC.encode()


class RetryTable(PopTable):
    """The deliveries of a group's retry topic, by the original topics of the messages."""

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        super().__init__(parts, group, topic)
        self._lanes: dict[bytes, OrderedQueue] = {}
        #: The topic of the present receive.
        self._wanted = b""

    @property
    def held_count(self) -> int:
        """The number of messages that are due."""
        return sum(len(lane.held) for lane in self._lanes.values())

    def _take_due(
        self, asked: ReceiveRequest, rules: Rules, taken: list[tuple[PopEntry, bytes]]
    ) -> int:
        dead_lettered = 0
        wanted = (asked.topic.encode(), b"") if asked.topic != self.topic else list(self._lanes)
        for lane in [self._lanes[label] for label in wanted if label in self._lanes]:
            while lane.held and self.has_room(asked, taken, dead_lettered):
                entry = lane.held.popleft()
                data = self.read_again(entry)
                if data is None:
                    self.finish(entry)
                elif times_of(entry, data) < rules.attempts_max:
                    taken.append((entry, data))
                else:
                    dead_lettered += self._dead_letter(
                        entry, data, exhausted(times_of(entry, data))
                    )
        return dead_lettered

    def _scan(
        self, queue: PopQueue, asked: ReceiveRequest, taken: list[tuple[PopEntry, bytes]]
    ) -> bool:
        self._wanted = asked.topic.encode()
        asked = replace(asked, choice=None)
        while len(taken) < asked.batch and self.held_count < HELD_MAX:
            before = queue.next_offset
            if super()._scan(queue, asked, taken) or queue.next_offset == before:
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

    def _lane(self, label: bytes) -> OrderedQueue:
        lane = self._lanes.get(label)
        if lane is None:
            lane = self._lanes[label] = OrderedQueue(label)
        return lane

    def expire(self, entries: list[PopEntry]) -> None:
        for entry in entries:
            if entry.lane is not None:
                entry.lane.held.append(entry)

    def finish(self, entry: PopEntry, *, is_dead: bool = False) -> None:
        may_be_held = entry.lease is None
        super().finish(entry, is_dead=is_dead)
        if may_be_held and entry.lane is not None and entry in entry.lane.held:
            entry.lane.held.remove(entry)

    def restore(self, number: int, found: FoundQueue, *, is_lower_valid: bool) -> None:
        super().restore(number, found, is_lower_valid=is_lower_valid)
        for entry in list(self.queues[number].entries.values()):
            data = self.read(entry)
            if data is None:
                self.finish(entry)
                continue
            entry.lane = self._lane(property_value(data, _ORIGIN))
            if entry.lease is None:
                self.expire([entry])

    def drop(self, number: int) -> None:
        super().drop(number)
        for lane in self._lanes.values():
            kept = [entry for entry in lane.held if entry.queue.key.queue != number]
            lane.held.clear()
            lane.held.extend(kept)
