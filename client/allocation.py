"""The division of a group's queues among its members: what a strategy gets and returns. Pure.

Members and queues are counted in Apache RocketMQ's order, so that the same names give the same result: members by their
names, queues by topic, broker and number, strings compared as Java compares them (by UTF-16 units).

Your own strategy is any object with a `name` and `allocate`: see `Strategy`. A group must not suffer from its faults:
`allocated` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol, TypeAlias

from ..proto.errors import ConfigError
from .queue import Queue


@dataclass(frozen=True, slots=True)
class Member:
    """One member: MEMBER_ID is unique among the living, INSTANCE_ID outlives a restart and may be empty.

    ROOM is its machine room, HELD what it reads now, TOPICS what it subscribes to.
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


#: The queues of each member, by member id.
Shares: TypeAlias = dict[str, list[Queue]]
#: One topic: from the members that subscribe to it and its queues, both in order and not empty, one share a member.
Rule: TypeAlias = Callable[[list[Member], list[Queue]], Sequence[list[Queue]]]


class Strategy(Protocol):
    """Divides queues among members. The same input, in whatever order, gives the same result everywhere."""

    @property
    def name(self) -> str:
        """What it is called in settings and by the coordinator."""
        ...

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        """Return the queues of each member; QUEUES are those of all topics that anybody subscribes to.

        A queue goes to one member at most, and only to one that subscribes to its topic.
        """
        ...


def topic_by_topic(rule: Rule, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
    """Return what RULE makes of each topic by itself, among the members that subscribe to it."""
    present = ordered_members(members)
    shares: Shares = {member.member_id: [] for member in present}
    for topic, group in groupby(ordered_queues(queues), key=lambda queue: queue.topic):
        takers = [member for member in present if topic in member.topics]
        if not takers:
            continue
        for member, share in zip(takers, rule(takers, list(group)), strict=True):
            shares[member.member_id].extend(share)
    return shares


def allocated(strategy: Strategy, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
    """Return what STRATEGY gives each of MEMBERS, an entry for each, also where it gave none.

    Raises ConfigError if it gave a queue twice, one that is not there, one to a stranger, or one to a member that does
    not subscribe to its topic. Queues without a member are no fault.
    """
    shares = strategy.allocate(members, queues)
    topics = {member.member_id: member.topics for member in members}
    there = set(queues)
    owners: dict[Queue, str] = {}
    for member_id, share in shares.items():
        for queue in share:
            if member_id not in topics:
                raise _fault(strategy, queue, f"to {member_id!r}, which is no member")
            if queue not in there:
                raise _fault(strategy, queue, f"to {member_id!r}, but there is no such queue")
            if queue.topic not in topics[member_id]:
                raise _fault(strategy, queue, f"to {member_id!r}, which does not subscribe to it")
            if queue in owners:
                raise _fault(strategy, queue, f"to {owners[queue]!r} and to {member_id!r}")
            owners[queue] = member_id
    return {member_id: list(shares.get(member_id, ())) for member_id in topics}


def _fault(strategy: Strategy, queue: Queue, where: str) -> ConfigError:
    return ConfigError(
        f"allocation strategy {strategy.name!r} gave queue {queue} {where}: correct the strategy",
        field="strategy",
        value=strategy.name,
        queue=queue,
    )


class Move(NamedTuple):
    """QUEUE goes from member SOURCE to member TARGET; empty: nobody has it before, or afterwards."""

    queue: Queue
    source: str
    target: str


def moves(
    before: Mapping[str, Iterable[Queue]], after: Mapping[str, Iterable[Queue]]
) -> list[Move]:
    """Return what moves from the shares BEFORE to those AFTER, queues in order."""
    old = {queue: member for member, share in before.items() for queue in share}
    new = {queue: member for member, share in after.items() for queue in share}
    return [
        Move(queue, old.get(queue, ""), new.get(queue, ""))
        for queue in ordered_queues(old.keys() | new.keys())
        if old.get(queue, "") != new.get(queue, "")
    ]
