"""A member of a group as an allocation sees it, and the order in which members and queues are counted.

The order is Apache's, so that the same names give the same result: members by their names, queues by topic, broker and
number, strings compared as Java compares them (by UTF-16 units).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..queue import Queue


@dataclass(frozen=True, slots=True)
class Member:
    """One member: MEMBER_ID is unique among the living, INSTANCE_ID outlives a restart and may be empty.

    ROOM is the machine room it stands in, HELD what it reads now, TOPICS what it subscribes to.
    """

    member_id: str
    instance_id: str = ""
    room: str = ""
    held: tuple[Queue, ...] = ()
    topics: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """The name by which strategies know it: the same after a restart if it has an instance id."""
        return self.instance_id or self.member_id


def java_order(text: str) -> bytes:
    """Return a key that sorts as Java's String.compareTo does."""
    return text.encode("utf-16-be", "surrogatepass")


def ordered_members(members: Iterable[Member]) -> list[Member]:
    """Return MEMBERS ordered by place."""
    return sorted(members, key=lambda one: (java_order(one.place), java_order(one.member_id)))


def ordered_queues(queues: Iterable[Queue]) -> list[Queue]:
    """Return QUEUES ordered as Java's MessageQueue.compareTo orders them."""
    return sorted(
        queues, key=lambda queue: (java_order(queue.topic), java_order(queue.broker), queue.number)
    )
