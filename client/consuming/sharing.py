"""A member's share of its group's queues: follows the plan, holds leases, tells who reads.

    plan says      held    what happens
    ours           no      the lease is asked for; when it is granted, reading begins where the group has committed
    ours           yes     nothing: only queues that move pause
    another's      yes     reading ends, what was handed out is finished (rebalance_timeout_ms at most) and committed,
                           the lease is released: the other one gets it, and the offset, in that moment
    anything       lost    reading ends, and nothing is committed any more

What counts is the lease, which the queue's own broker gives. The plan only says which to ask for and which to let go:
without a coordinator everybody keeps what it has, and two that disagree wait for each other's leases.

The member that leads plans which queues there are, and which member is to read which. A queue that is not seen any more
counts as there for GONE_AFTER_MS: a broker that restarts, or a name server that comes back knowing nothing, moves
nothing.

Not thread-safe: its event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from ...proto.errors import ConfigError, MemberFenced, PocketMQError
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..allocation import Member, Strategy, allocated, strategy_named
from ..loop import finished_within
from ..queue import Queue
from ..subscriptions import Subscriptions
from .held_queue import HeldQueue, QueueUser
from .leases import Leases
from .membership import Membership, new_member_id
from .parts import ConsumerParts
from .unshared_queues import WATCH_MS, TopicWatch

logger = logging.getLogger(__name__)


class Sharing:
    """Shares the queues of SUBSCRIPTIONS with the other members of the group; USER reads ours. KIND: for people."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        user: QueueUser,
        parts: ConsumerParts,
        kind: str,
        on_renewed: Callable[[Queue, int, int], None] | None = None,
    ) -> None:
        """ON_RENEWED hears of each lease that was renewed, as `renewed` does."""
        self._subscriptions = subscriptions
        self._user = user
        self._parts = parts
        self._config = config = parts.config
        self._session = parts.session
        self._kind = kind
        self.member_id = new_member_id(parts.session.random)
        self._strategy = strategy_named(config.strategy)
        self._planner = Planner(parts, self._strategy, self._replan)
        self._membership = Membership(parts, self)
        self._leases = Leases(parts, self.member_id, self)
        self._members = pb.Members()
        self._assigned: set[Queue] = set()
        self._held: dict[Queue, HeldQueue] = {}
        self._ending: dict[Queue, asyncio.Task[None]] = {}
        self._planning: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        #: Nobody else has been in the group since we came; None: nobody has said yet.
        self._is_first: bool | None = None
        #: What we have read before.
        self._begun: set[Queue] = set()
        self._is_running = False
        self._on_renewed = on_renewed

    # ------------------------------------------------------------ for who reads

    def start(self) -> None:
        """Join the group; after `close`, again."""
        if not self._is_running:
            self._is_running = True
            self._is_first = None
            self._begun.clear()
            self._membership.start()

    @property
    def is_running(self) -> bool:
        """Are we in the group, or on the way?"""
        return self._is_running

    @property
    def generation(self) -> int:
        """The group's latest generation that we know; 0: none."""
        return self._leases.generation

    @property
    def assigned(self) -> frozenset[Queue]:
        """What the latest plan gives us, be it held already or not."""
        return frozenset(self._assigned)

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return by what right QUEUE is read; None: it is not ours."""
        return self._held.get(queue)

    def lost(self, held: HeldQueue) -> None:
        """Hear that the broker does not know HELD any more."""
        if self._held.get(held.queue) == held:
            self._leases.drop(held.queue)
            self.ran_out(held.queue)

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        """Hear that a fetch of HELD, sent at SENT_MS, was answered: the lease lasts from there."""
        self._leases.fetched(held.queue, held.token, sent_ms)

    def doubt(self, held: HeldQueue) -> None:
        """Hear that the connection broke by which HELD was read."""
        self._leases.doubt(held.queue)

    def look_again(self) -> None:
        """Look for changes of the queues soon."""
        self._planner.sooner()

    def replace_subscriptions(self, subscriptions: Subscriptions) -> None:
        """Want SUBSCRIPTIONS from now on: the group makes a new plan."""
        self._subscriptions = subscriptions
        self._membership.rejoin()

    async def close(self) -> None:
        """End reading, commit, give every queue back, and leave the group."""
        if not self._is_running:
            return
        self._is_running = False
        for task in (self._planning, self._watching):
            if task is not None:
                task.cancel()
        self._planning = self._watching = None
        self._assigned.clear()
        self._leases.unwant(list(self._leases.wanted))
        self._settle()
        if self._ending:
            await asyncio.wait(self._ending.values())
        await self._membership.leave()

    # ------------------------------------------------------------ what the coordinator says

    def join_request(self) -> pb.Join:
        """Return how this member joins, now."""
        config = self._config
        return pb.Join(
            group=self._parts.group,
            member_id=self.member_id,
            instance_id=config.instance_id,
            subscriptions=[
                pb.Subscription(topic=topic, filter=wanted)
                for topic, wanted in self._subscriptions.items()
            ],
            strategy=self._strategy.name,
            each_for_itself=config.rebalance == "client",
            session_timeout_ms=config.session_timeout_ms,
            held=self.held_queues(),
            room=config.room,
            kind=self._kind,
            generation=self._leases.generation,
        )

    def held_queues(self) -> list[pb.HeldQueue]:
        """Return what this member holds, now."""
        return [to_wire(queue) for queue in self._held]

    def on_members(self, members: pb.Members) -> None:
        """A new generation begins: plan it, if that is ours to do."""
        if not self._is_running:
            return
        self._members = members
        self._leases.heard_of(members.generation)
        is_alone = [one.member_id for one in members.members] == [self.member_id]
        self._is_first = is_alone and self._is_first is not False
        plans = members.each_for_itself or members.leader == self.member_id
        for task in (self._planning, self._watching):
            if task is not None and (task is self._planning or not plans):
                task.cancel()
        if plans:
            self._planning = self._session.tasks.spawn(self._plan(members))
        else:
            self._watching = None

    async def _plan(self, members: pb.Members) -> None:
        try:
            shares = await self._planner.plan(members)
        except PocketMQError as error:
            self._user.fail(error)
            return
        except Exception as error:  # The edge: an application's strategy may raise anything.
            name = self._strategy.name
            logger.exception(
                "strategy failed %s",
                Facts(group=self._parts.group, strategy=name, reason=repr(error)),
            )
            self._user.fail(ConfigError(f"allocation strategy {name!r} raised {error!r}"))
            return
        if members.each_for_itself:
            self._follow(shares.get(self.member_id, ()))
        else:
            plan = plan_to_wire(members.generation, shares)
            await self._membership.say(pb.MemberRequest(plan=plan))
        if self._watching is None or self._watching.done():
            self._watching = self._session.tasks.spawn(self._planner.watch())

    def _replan(self) -> None:
        """The queues have changed."""
        if self._members.each_for_itself:
            self.on_members(self._members)
        else:
            replan = pb.Replan(generation=self._members.generation)
            self._session.tasks.spawn(self._membership.say(pb.MemberRequest(replan=replan)))

    def on_assigned(self, assigned: pb.Assigned) -> None:
        """This member's share is there."""
        if self._is_running:
            self._leases.heard_of(assigned.generation)
            if self._is_first is None:
                self._is_first = False
            self._follow([from_wire(queue) for queue in assigned.queues])

    def _follow(self, queues: Sequence[Queue]) -> None:
        self._parts.counts.rebalances += 1
        self._assigned = set(queues)
        logger.info(
            "share assigned %s",
            Facts(group=self._parts.group, queues=len(queues), generation=self.generation),
        )
        self._settle()

    def on_refused(self, error: PocketMQError) -> None:
        """The coordinator does not want this member."""
        self._user.fail(error)

    def on_replaced(self, error: MemberFenced) -> None:
        """Another member has the place of this one: what it holds is the other's."""
        self._assigned.clear()
        self._leases.unwant(list(self._leases.wanted))
        for queue in list(self._held):
            self._leases.drop(queue)
            self.ran_out(queue)
        self._user.fail(error)

    # ------------------------------------------------------------ holding queues

    def _settle(self) -> None:
        """Do what lies between what we hold and what we should."""
        for queue in self._held.keys() - self._assigned - self._ending.keys():
            self._end(queue, lost=False)
        wanted = self._assigned - self._held.keys() - self._ending.keys()
        self._leases.unwant([queue for queue in self._leases.wanted if queue not in wanted])
        self._leases.want(wanted)

    def granted(self, queue: Queue, token: int, committed: int, waited_ms: int) -> None:
        """QUEUE is ours, after WAITED_MS."""
        from_start = bool(self._is_first) and queue not in self._begun
        self._begun.add(queue)
        held = self._held[queue] = HeldQueue(queue, token, committed, from_start)
        counts = self._parts.counts
        counts.queues_gained += 1
        counts.gaining_ms += waited_ms
        self._user.begin(held)
        self._membership.held_changed()

    def renewed(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        """The lease of QUEUE was renewed by what was sent at SENT_MS, after BREAKS of its broker."""
        if self._on_renewed is not None:
            self._on_renewed(queue, sent_ms, breaks)

    def ran_out(self, queue: Queue) -> None:
        """QUEUE may be somebody else's: nothing can be committed from now on."""
        self._held.pop(queue, None)
        self._parts.counts.queues_lost += 1
        if queue not in self._ending:
            self._end(queue, lost=True)

    def _end(self, queue: Queue, *, lost: bool) -> None:
        self._ending[queue] = self._session.tasks.spawn(self._give_up(queue, lost=lost))

    async def _give_up(self, queue: Queue, *, lost: bool) -> None:
        clock = self._session.clock
        began_ms = clock.now_ms()
        try:
            work = self._user.end(queue, lost=lost)
            timeout_ms = self._config.rebalance_timeout_ms
            if not await finished_within(work, timeout_ms, clock, self._session.tasks):
                logger.warning(
                    "queue given up unfinished, what was not committed comes again elsewhere %s",
                    Facts(group=self._parts.group, queue=queue, after_ms=timeout_ms),
                )
        except Exception as error:  # The edge: whatever fails in ending, the queue has to go.
            logger.warning(
                "queue given up %s", Facts(group=self._parts.group, queue=queue, reason=repr(error))
            )
        self._held.pop(queue, None)
        if not lost:
            await self._leases.release(queue)
            counts = self._parts.counts
            counts.queues_released += 1
            counts.releasing_ms += clock.now_ms() - began_ms
        del self._ending[queue]
        self._membership.held_changed()
        if self._is_running:
            self._settle()


# ---------------------------------------------------------------- what the leader plans

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
        """Have the name servers asked anew: a route may be half a minute old otherwise."""
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
