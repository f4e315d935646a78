"""The leader's plan of a group: which queues exist, and which member reads which.

A queue that disappears from the route counts as existing for GONE_AFTER_MS more. So no queue is reassigned when a
broker restarts, or when a name server restarts without data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from ...proto.errors import ConfigError
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..allocation import Member, Strategy, allocated
from ..allocation_strategies import strategy_named
from ..queue import Queue
from .parts import ConsumerParts
from .unshared_queues import WATCH_MS, TopicWatch

logger = logging.getLogger(__name__)

GONE_AFTER_MS: Final = 30_000


def to_wire(queue: Queue) -> pb.HeldQueue:
    """Return QUEUE as a protobuf message."""
    return pb.HeldQueue(topic=queue.topic, broker_name=queue.broker, queue=queue.number)


def from_wire(held: pb.HeldQueue) -> Queue:
    """Return the queue that HELD names."""
    return Queue(held.topic, held.broker_name, held.queue)


def member_from_wire(member: pb.Member) -> Member:
    """Return MEMBER in the form for allocation strategies."""
    return Member(
        member.member_id,
        member.instance_id,
        member.room,
        tuple(map(from_wire, member.held)),
        frozenset(subscription.topic for subscription in member.subscriptions),
    )


class Planner:
    """Plans for a group. CHANGED is called when the queues are not those of the latest plan any more."""

    def __init__(
        self, parts: ConsumerParts, strategy: Strategy, changed: Callable[[], None]
    ) -> None:
        self._session = parts.session
        self._group = parts.group
        self._own = strategy
        self._changed = changed
        self._watch = TopicWatch(parts)
        self._topics: frozenset[str] = frozenset()
        #: When each queue was last seen in a route.
        self._seen_ms: dict[Queue, int] = {}
        self._planned: set[Queue] = set()
        self._looked_ms = -(2 * WATCH_MS + 1)
        self._all_known = False

    async def plan(self, members: pb.Members) -> dict[str, list[Queue]]:
        """Return the assignment of each of MEMBERS. Raises ConfigError if the strategy returns a wrong result."""
        known = [member_from_wire(member) for member in members.members]
        self._topics = frozenset(topic for member in known for topic in member.topics)
        now_ms = self._session.clock.now_ms()
        if now_ms - self._looked_ms > 2 * WATCH_MS:
            # This planner has not looked for long, or never. The queues that members hold did exist.
            for member in known:
                self._seen_ms |= dict.fromkeys(member.held, now_ms)
        queues = await self._look()
        self._planned = set(queues)
        return allocated(self._strategy(members.strategy), known, queues)

    def _strategy(self, name: str) -> Strategy:
        if name == self._own.name:
            return self._own
        try:
            return strategy_named(name)
        except ConfigError as error:
            logger.warning(
                "strategy of group is unknown, using the own one %s",
                Facts(group=self._group, own=self._own.name, reason=error.message),
            )
            return self._own

    async def _look(self) -> list[Queue]:
        queues, self._all_known = await self._watch.look(self._topics)
        self._looked_ms = now_ms = self._session.clock.now_ms()
        self._seen_ms |= dict.fromkeys(queues, now_ms)
        self._seen_ms = {
            queue: seen_ms
            for queue, seen_ms in self._seen_ms.items()
            if queue.topic in self._topics and now_ms - seen_ms < GONE_AFTER_MS
        }
        return list(self._seen_ms)

    async def watch(self) -> None:
        """Look for new and removed queues, until cancelled."""
        while True:
            await self._watch.pause(self._all_known)
            self._forget(self._topics)
            if set(await self._look()) != self._planned:
                self._changed()

    def _forget(self, topics: Collection[str]) -> None:
        """Forget the routes of TOPICS, which may be half a minute old, so that name servers are asked again."""
        for topic in topics:
            self._session.routes.forget(topic)

    def look_soon(self) -> None:
        """Look for new and removed queues soon."""
        self._watch.look_soon()


def plan_to_wire(generation: int, shares: dict[str, list[Queue]]) -> pb.Plan:
    """Return SHARES as the leader's plan for GENERATION."""
    plan = pb.Plan(generation=generation)
    for member_id, queues in shares.items():
        plan.shares.add(member_id=member_id, queues=_wired(queues))
    return plan


def _wired(queues: Iterable[Queue]) -> list[pb.HeldQueue]:
    return [to_wire(queue) for queue in queues]
