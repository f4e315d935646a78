"""Strategy `machine-room-nearby`: queues stay in their machine room as long as a member lives there.

Apache's "MACHINE_ROOM_NEARBY": another strategy divides the queues of a room among the members of that room; those of a
room without members it divides among all. Members say their room, brokers have it in their names ("<room>@<name>").
Who names none stands in a room of its own kind, without a name: nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from ..queue import Queue
from .average import Average
from .machine_room import room_of_broker
from .member import Member, java_order, ordered_members
from .strategy import Shares, Strategy, topic_by_topic


class MachineRoomNearby:
    """Divides by WITHIN (default: `average`) what each room has; ROOM_OF tells a broker's room from its name."""

    def __init__(
        self, within: Strategy | None = None, room_of: Callable[[str], str] = room_of_broker
    ) -> None:
        self._within = within or Average()
        self._room_of = room_of
        self.name = "machine-room-nearby" + (f"-{within.name}" if within else "")

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(self._by_room, members, queues)

    def _by_room(self, members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
        shares: Shares = {member.member_id: [] for member in members}
        far: list[tuple[list[Queue], Sequence[Member]]] = []
        for room, queues_there in self._rooms(queues):
            members_there = [member for member in members if member.room == room]
            if members_there:
                self._divide(members_there, queues_there, shares)
            else:
                far.append((queues_there, members))
        for queues_there, everybody in far:
            self._divide(everybody, queues_there, shares)
        return [shares[member.member_id] for member in members]

    def _rooms(self, queues: list[Queue]) -> list[tuple[str, list[Queue]]]:
        def room(queue: Queue) -> bytes:
            return java_order(self._room_of(queue.broker))

        by_room = groupby(sorted(queues, key=room), key=lambda queue: self._room_of(queue.broker))
        return [(name, list(group)) for name, group in by_room]

    def _divide(self, members: Sequence[Member], queues: list[Queue], shares: Shares) -> None:
        for member_id, share in self._within.allocate(ordered_members(members), queues).items():
            shares[member_id].extend(share)
