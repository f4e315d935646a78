"""A member's share of its group's queues: it follows the plan, holds leases, and starts and ends reading.

    plan says      held    what happens
    this member    no      the member asks for the lease; when it is granted, reading begins at the committed offset
    this member    yes     nothing: only queues that move pause
    another        yes     reading ends; what was delivered is finished (for rebalance_timeout_ms) and committed;
                           the lease is released, and the other member gets it and the offset at once
    anything       lost    reading ends, and nothing is committed any more

The lease decides, which the queue's own broker grants. The plan only says which leases to request and which to release:
without a coordinator each member keeps its queues, and two members that disagree wait for each other's leases.

Not thread-safe: its event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ...proto.errors import ConfigError, MemberFenced, PocketMQError
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import retry_topic
from ..allocation_strategies import strategy_named
from ..claims import check_assigned, check_members
from ..queue import Queue
from ..subscriptions import Subscriptions
from ..tasks import finished_within
from .held_queue import HeldQueue, QueueUser
from .leases import Leases
from .membership import Membership, new_member_id
from .parts import ConsumerParts
from .planner import Planner, from_wire, plan_to_wire, to_wire

logger = logging.getLogger(__name__)


class Sharing:
    """Shares the queues of SUBSCRIPTIONS with the other members of the group; USER reads its share. KIND: for logs."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        user: QueueUser,
        parts: ConsumerParts,
        kind: str,
        on_renewed: Callable[[Queue, int, int], None] | None = None,
    ) -> None:
        """ON_RENEWED is called with each lease that was renewed, as `renewed` is."""
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
        #: No other member has been in the group since this one joined; None: not known yet.
        self._is_first: bool | None = None
        #: What we have read before.
        self._begun: set[Queue] = set()
        self._is_running = False
        self._on_renewed = on_renewed

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
        """Return the lease by which QUEUE is read; None: this member does not hold it."""
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
        """A new generation begins: plan it if this member is the leader. Raises BadReply."""
        if not self._is_running:
            return
        check_members(members, "the coordinator")
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
        """This member's share is there. What it does not subscribe to (any more) is left out. Raises BadReply."""
        if self._is_running:
            check_assigned(assigned, "the coordinator")
            wanted = {*self._subscriptions, retry_topic(self._parts.group)}
            self._leases.heard_of(assigned.generation)
            if self._is_first is None:
                self._is_first = False
            self._follow([from_wire(one) for one in assigned.queues if one.topic in wanted])

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

    def _settle(self) -> None:
        """Request and release leases until the member holds what the plan says."""
        for queue in self._held.keys() - self._assigned - self._ending.keys():
            self._end(queue, lost=False)
        wanted = self._assigned - self._held.keys() - self._ending.keys()
        self._leases.unwant([queue for queue in self._leases.wanted if queue not in wanted])
        self._leases.want(wanted)

    def granted(self, queue: Queue, token: int, committed: int, waited_ms: int) -> None:
        """The lease of QUEUE was granted, after WAITED_MS."""
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
        """Another member may hold QUEUE: nothing can be committed from now on."""
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
                    "queue released unfinished, messages that were not committed are redelivered to another member %s",
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
