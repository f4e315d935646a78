"""What an allocation strategy is, and how a rule for one topic becomes one for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol, TypeAlias

from ..queue import Queue
from .member import Member, ordered_members, ordered_queues

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
