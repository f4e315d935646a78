"""The assignment of a group's queues to its members: the input and output of strategies. No I/O.

Members and queues have the same order as in Apache RocketMQ, so that the same names give the same result: members by
name, queues by topic, broker and number. Strings are compared as in Java, by UTF-16 units.

Your own strategy is any object with a `name` and `allocate`: see `Strategy`. `allocated` checks its results, so that
mistakes in it do no harm to the group.
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
    """One member of a group.

    `member_id` is unique among the present members. `instance_id` survives a restart, and may be empty. `room` is its
    data center, `held` has the queues that it reads now, and `topics` has its subscriptions.
    """

    member_id: str
    instance_id: str = ""
    room: str = ""
    held: tuple[Queue, ...] = ()
    topics: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """Its name for strategies. With an instance id, it is the same after a restart."""
        return self.instance_id or self.member_id


def java_order(text: str) -> bytes:
    """Return a sort key with the order of `String.compareTo` in Java."""
    return text.encode("utf-16-be", "surrogatepass")


def ordered_members(members: Iterable[Member]) -> list[Member]:
    """Return MEMBERS ordered by place."""
    return sorted(members, key=lambda one: (java_order(one.place), java_order(one.member_id)))


def ordered_queues(queues: Iterable[Queue]) -> list[Queue]:
    """Return QUEUES in the order of `MessageQueue.compareTo` in Apache RocketMQ."""
    return sorted(
        queues, key=lambda queue: (java_order(queue.topic), java_order(queue.broker), queue.number)
    )


#: The queues of each member, by member id.
Shares: TypeAlias = dict[str, list[Queue]]
#: Assigns the queues of one topic: called with the members that subscribe to it and its queues, both sorted and not
#: empty. Returns the queues of each member.
Rule: TypeAlias = Callable[[list[Member], list[Queue]], Sequence[list[Queue]]]


class Strategy(Protocol):
    """Assigns queues to members. The same input, in any order, has to give the same result in every process."""

    @property
    def name(self) -> str:
        """Its name in settings and for the coordinator."""
        ...

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        """Return the queues of each member. QUEUES has all queues of all topics with a subscription.

        Assign each queue to no more than one member, which subscribes to its topic.
        """
        ...


def topic_by_topic(rule: Rule, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
    """Apply RULE to each topic, with the members that subscribe to it; return the queues of each member."""
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
    """Return the queues that STRATEGY assigns to each of MEMBERS, with an entry for each member.

    Queues without a member are allowed. Raises ConfigError if STRATEGY assigned a queue twice, an unknown queue, a
    queue to an unknown member, or a queue to a member that does not subscribe to its topic.
    """
    shares = strategy.allocate(members, queues)
    topics = {member.member_id: member.topics for member in members}
    there = set(queues)
    owners: dict[Queue, str] = {}
    for member_id, share in shares.items():
        for queue in share:
            if member_id not in topics:
                raise _fault(strategy, queue, f"to {member_id!r}, which is not a member")
            if queue not in there:
                raise _fault(strategy, queue, f"to {member_id!r}, but the queue does not exist")
            if queue.topic not in topics[member_id]:
                raise _fault(
                    strategy, queue, f"to {member_id!r}, which does not subscribe to its topic"
                )
            if queue in owners:
                raise _fault(strategy, queue, f"to {owners[queue]!r} and to {member_id!r}")
            owners[queue] = member_id
    return {member_id: list(shares.get(member_id, ())) for member_id in topics}


def _fault(strategy: Strategy, queue: Queue, where: str) -> ConfigError:
    return ConfigError(
        f"allocation strategy {strategy.name!r} assigned queue {queue} {where}: fix the strategy",
        field="strategy",
        value=strategy.name,
        queue=queue,
    )


class Move(NamedTuple):
    """The reassignment of a queue from member `source` to member `target`; empty: no member."""

    queue: Queue
    source: str
    target: str


def moves(
    before: Mapping[str, Iterable[Queue]], after: Mapping[str, Iterable[Queue]]
) -> list[Move]:
    """Return the reassignments from BEFORE to AFTER, sorted by queue."""
    old = {queue: member for member, share in before.items() for queue in share}
    new = {queue: member for member, share in after.items() for queue in share}
    return [
        Move(queue, old.get(queue, ""), new.get(queue, ""))
        for queue in ordered_queues(old.keys() | new.keys())
        if old.get(queue, "") != new.get(queue, "")
    ]
