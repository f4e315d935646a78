"""Strategy `machine-room`: only queues of brokers in the rooms that were named. Apache's "MACHINE_ROOM".

The room of a broker stands in its name: "<room>@<name>". Queues of brokers without, and of other rooms, go to nobody:
members elsewhere are meant to read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..queue import Queue
from .member import Member
from .strategy import Shares, topic_by_topic


def room_of_broker(broker: str) -> str:
    """Return the room in BROKER's name; empty: it names none."""
    room, at, name = broker.partition("@")
    return room if at and name and "@" not in name else ""


class MachineRoom:
    """Divides the queues of ROOMS; None: of all brokers that name one."""

    name = "machine-room"

    def __init__(self, rooms: Iterable[str] | None = None) -> None:
        self._rooms = None if rooms is None else frozenset(rooms)

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_divided, members, [one for one in queues if self._is_here(one)])

    def _is_here(self, queue: Queue) -> bool:
        room = room_of_broker(queue.broker)
        return bool(room) if self._rooms is None else room in self._rooms


def _divided(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    """Return pieces of equal length, and what is over, one each, to the first members."""
    length = len(queues) // len(members)
    even = length * len(members)
    return [
        queues[at * length : (at + 1) * length] + queues[even + at : even + at + 1]
        for at in range(len(members))
    ]
