"""The strategy `sticky`, modelled on Kafka's sticky assignor.

If all members subscribe to the same topics, their numbers of queues differ by no more than one, and no balanced
assignment moves fewer queues. If subscriptions differ, no queue can be moved to a member that has at least two fewer,
not even in a chain over other members. Few queues move then, but not always the minimum. Cost: O(queues · log members);
with differing subscriptions O(members² · topics) in addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sortedcontainers import SortedList

from .allocation import Member, Shares, ordered_members, ordered_queues
from .queue import Queue

_NOBODY: Final = -1


class Sticky:
    """Members keep the queues that they hold (`Member.held`). If two hold the same queue, the first by name gets it."""

    name = "sticky"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        present = ordered_members(members)
        table = _Table(present, ordered_queues(queues))
        table.assign()
        table.even_out_equals()
        if table.has_differing_members:
            table.even_out_over_others()
        return {
            member.member_id: ordered_queues(share)
            for member, share in zip(present, table.shares, strict=True)
        }


class _Table:
    """The assignment while it is computed. Members are indexes in MEMBERS; *equals* subscribe to the same topics."""

    def __init__(self, members: list[Member], queues: list[Queue]) -> None:
        self._queues = queues
        topics = {queue.topic for queue in queues}
        self._wants = [member.topics & topics for member in members]
        self.shares: list[list[Queue]] = [[] for _ in members]
        #: Of each set of equals: (number of queues, index), fewest first.
        self._equals: dict[frozenset[str], SortedList] = {}
        for at, wants in enumerate(self._wants):
            self._equals.setdefault(wants, SortedList()).add((0, at))
        self._takers = {
            topic: [equals for wants, equals in self._equals.items() if topic in wants]
            for topic in topics
        }
        self._holder = self._holders(members)

    def _holders(self, members: list[Member]) -> dict[Queue, int]:
        """Return, by queue, the member that holds it now and may keep it."""
        there = set(self._queues)
        holders: dict[Queue, int] = {}
        for at, member in enumerate(members):
            for queue in member.held:
                if queue in there and queue.topic in self._wants[at]:
                    holders.setdefault(queue, at)
        return holders

    @property
    def has_differing_members(self) -> bool:
        return len(self._equals) > 1

    def _give(self, queue: Queue, at: int) -> None:
        self._count(at, 1)
        self.shares[at].append(queue)

    def _count(self, at: int, by: int) -> None:
        equals, number = self._equals[self._wants[at]], len(self.shares[at])
        equals.remove((number, at))
        equals.add((number + by, at))

    def _move(self, queue: Queue, source: int, target: int) -> None:
        self._count(source, -1)
        self.shares[source].remove(queue)
        self._give(queue, target)

    def assign(self) -> None:
        """Assign queues to their holders, and the others to the members with the fewest queues."""
        for queue, at in self._holder.items():
            self._give(queue, at)
        for queue in self._queues:
            if queue not in self._holder and self._takers[queue.topic]:
                self._give(queue, min(equals[0] for equals in self._takers[queue.topic])[1])

    def even_out_equals(self) -> None:
        """Move queues among equals until their numbers differ by no more than one."""
        for equals in self._equals.values():
            while equals[-1][0] - equals[0][0] > 1:
                source, target = equals[-1][1], equals[0][1]
                self._move(self._loosest(source, None), source, target)

    def _loosest(self, source: int, topic: str | None) -> Queue:
        """Return the queue of SOURCE, of TOPIC if given, to move: preferably one that SOURCE does not hold yet."""
        share = [queue for queue in self.shares[source] if topic in (None, queue.topic)]
        strange = (queue for queue in reversed(share) if self._holder.get(queue, _NOBODY) != source)
        return next(strange, share[-1])

    def even_out_over_others(self) -> None:
        """Move queues along chains of members, from a member with many queues to one with at least two fewer."""
        while any(self._relieve(source) for source in self._by_number()):
            pass

    def _by_number(self) -> list[int]:
        return sorted(range(len(self.shares)), key=lambda at: (-len(self.shares[at]), at))

    def _relieve(self, source: int) -> bool:
        """Move one queue away from SOURCE if a chain leads to a member with at least two fewer; return whether."""
        came_from = dict(self._reachable(source))
        end = min(came_from, key=lambda at: (len(self.shares[at]), at), default=source)
        if len(self.shares[source]) - len(self.shares[end]) < 2:
            return False
        while end != source:
            giver, topic = came_from[end]
            self._move(self._loosest(giver, topic), giver, end)
            end = giver
        return True

    def _reachable(self, source: int) -> Iterator[tuple[int, tuple[int, str]]]:
        """Yield each member at the end of a chain from SOURCE, nearest first, with the giver and the topic."""
        seen = {source}
        row = [source]
        for giver in row:
            for topic in sorted({queue.topic for queue in self.shares[giver]}):
                for taker in sorted(at for equals in self._takers[topic] for _, at in equals):
                    if taker not in seen:
                        seen.add(taker)
                        row.append(taker)
                        yield taker, (giver, topic)
