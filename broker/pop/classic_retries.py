"""The table of a group's retry topic: what classic consumers sent back, for those who pop now.

`%RETRY%group` holds messages of several topics, and each says which (RETRY_TOPIC). A receive of one of them gets its
own; those of others are held until somebody asks for theirs, HELD_MAX at most: then nothing more is looked at. One that
does not say where it came from goes to whoever asks first, and all go to a receive of the retry topic itself. Filters
do not apply: the message was wanted when it was first delivered. Its earlier attempts count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...proto.properties import RETRY_TOPIC
from ...proto.record import property_value
from .journal_format import FoundQueue
from .leases import Lane, PopEntry, PopQueue
from .receives import Asked, Rules
from .table import PopParts, Table, exhausted, times_of

#: Messages that wait for receives of their topics.
HELD_MAX: Final = 4_096
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
