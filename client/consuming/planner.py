"""The leader's plan of a group: which queues exist, and which member reads which.

A queue that disappears from the route counts as existing for GONE_AFTER_MS, so a broker that restarts, or a name server
that restarts empty, moves no queue.
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
    """Return QUEUE as it travels."""
    return pb.HeldQueue(topic=queue.topic, broker_name=queue.broker, queue=queue.number)


def from_wire(held: pb.HeldQueue) -> Queue:
    """Return the queue that HELD names."""
    return Queue(held.topic, held.broker_name, held.queue)


def member_from_wire(member: pb.Member) -> Member:
    """Return MEMBER as strategies see it."""
    return Member(
        member.member_id,
        member.instance_id,
        member.room,
        tuple(map(from_wire, member.held)),
        frozenset(subscription.topic for subscription in member.subscriptions),
    )


class Planner:
    """Plans for a group; CHANGED is called when the queues of the latest plan are not those that are there."""

    def __init__(
        self, parts: ConsumerParts, strategy: Strategy, changed: Callable[[], None]
    ) -> None:
        self._session = parts.session
        self._group = parts.group
        self._own = strategy
        self._changed = changed
        self._watch = TopicWatch(parts)
        self._topics: frozenset[str] = frozenset()
        #: When each queue was seen last.
        self._seen_ms: dict[Queue, int] = {}
        self._planned: set[Queue] = set()
        self._looked_ms = -(2 * WATCH_MS + 1)
        self._all_known = False

    async def plan(self, members: pb.Members) -> dict[str, list[Queue]]:
        """Return the share of each of MEMBERS. Raises ConfigError for what a faulty strategy gives."""
        known = [member_from_wire(member) for member in members.members]
        self._topics = frozenset(topic for member in known for topic in member.topics)
        now_ms = self._session.clock.now_ms()
        if now_ms - self._looked_ms > 2 * WATCH_MS:
            # Who has not looked for long, or never, knows from the members what was there.
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
                "the group's strategy is not known here, using the own one %s",
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
        """Look for changes of the queues, until cancelled."""
        while True:
            await self._watch.pause(self._all_known)
            self._forget(self._topics)
            if set(await self._look()) != self._planned:
                self._changed()

    def _forget(self, topics: Collection[str]) -> None:
        """Ask the name servers again: the route may be half a minute old."""
        for topic in topics:
            self._session.routes.forget(topic)

    def sooner(self) -> None:
        """Look for changes soon."""
        self._watch.sooner()


def plan_to_wire(generation: int, shares: dict[str, list[Queue]]) -> pb.Plan:
    """Return SHARES as the leader's answer to GENERATION."""
    plan = pb.Plan(generation=generation)
    for member_id, queues in shares.items():
        plan.shares.add(member_id=member_id, queues=_wired(queues))
    return plan


def _wired(queues: Iterable[Queue]) -> list[pb.HeldQueue]:
    return [to_wire(queue) for queue in queues]
