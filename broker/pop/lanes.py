"""Lanes: messages of one queue that keep their order, those of one message group.

    batch   what is delivered; what is acknowledged stays in it while one before it is not
    held    what is behind: not delivered, for the batch comes first

A lane whose batch is finished is free: what it holds is ready. A batch of which nothing is leased any more goes back
to the front of what is held, from the first that is not acknowledged on.
"""

from __future__ import annotations

import heapq
from typing import Final

from ...proto.properties import SHARDING_KEY
from ...proto.record import property_value
from .entries import Entry, Lane

_SHARDING_KEY: Final = SHARDING_KEY.encode()


def message_group(record: bytes) -> bytes:
    """Return the message group of RECORD; empty if it has none: all those of a queue keep their order too."""
    return property_value(record, _SHARDING_KEY)


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

    def hold(self, entry: Entry, lane: Lane) -> None:
        """Have ENTRY wait behind what LANE has."""
        lane.held.append(entry)
        self.held_count += 1

    def take_back(self, lane: Lane) -> None:
        """Hold LANE's batch again."""
        self.held_count += len(lane.batch)
        lane.take_back()
        self.free(lane)

    def take_finished(self, lane: Lane) -> list[Entry]:
        """Take out what LANE holds in front that is acknowledged: nothing before it will come again."""
        found = []
        while lane.held and lane.held[0].acknowledged:
            found.append(lane.held.popleft())
        self.held_count -= len(found)
        return found

    def next(self, turn: int) -> Entry | None:
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

    def remove(self, entry: Entry) -> None:
        """Take ENTRY out, which is held."""
        lane = entry.lane
        assert lane is not None, "held in a lane"
        was_first = lane.held[0] is entry
        lane.held.remove(entry)
        self.held_count -= 1
        if was_first and not lane.batch:
            self.free(lane)
