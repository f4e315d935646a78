"""The assignment of a group member: it follows the plan, holds leases, and starts and ends reading.

    plan says      held    what happens
    this member    no      the member requests the lease; when it is granted, reading starts at the committed offset
    this member    yes     nothing: queues that do not move are not interrupted
    another        yes     reading ends; the application finishes delivered messages within rebalance_timeout_ms, they
                           are committed, and the lease is released, so that the other member gets it at once
    anything       lost    reading ends, and nothing is committed any more

The lease decides which member may read. The broker of the queue grants it. The plan only determines which leases a
member requests and releases. Without a coordinator each member keeps its queues. If two members follow different plans,
each waits until the other one releases its leases.

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


class GroupAssignment:
    """Divides the queues of SUBSCRIPTIONS among the group members; USER reads those of this member. KIND: for logs."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        user: QueueUser,
        parts: ConsumerParts,
        kind: str,
        on_renewed: Callable[[Queue, int, int], None] | None = None,
    ) -> None:
        """ON_RENEWED is called for each renewed lease, with the arguments of `renewed`."""
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
        #: Whether no other member has been in the group since this one joined; None: not known yet.
        self._is_first: bool | None = None
        #: The queues that this member has read since it joined.
        self._started: set[Queue] = set()
        self._is_running = False
        self._on_renewed = on_renewed

    def start(self) -> None:
        """Join the group, also again after `close`."""
        if not self._is_running:
            self._is_running = True
            self._is_first = None
            self._started.clear()
            self._membership.start()

    @property
    def is_running(self) -> bool:
        """Whether this member is in the group or is joining it."""
        return self._is_running

    @property
    def generation(self) -> int:
        """The latest known generation of the group; 0: none."""
        return self._leases.generation

    @property
    def assigned(self) -> frozenset[Queue]:
        """The queues that the latest plan assigns to this member, held already or not."""
        return frozenset(self._assigned)

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return QUEUE with its lease; None: this member does not hold it."""
        return self._held.get(queue)

    def lost(self, held: HeldQueue) -> None:
        """Note that the broker does not know HELD any more."""
        if self._held.get(held.queue) == held:
            self._leases.drop(held.queue)
            self.expired(held.queue)

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        """Note that the broker has answered a fetch of HELD. Its lease counts from SENT_MS, when the fetch was sent."""
        self._leases.fetched(held.queue, held.token, sent_ms)

    def doubt(self, held: HeldQueue) -> None:
        """Note that the connection to the broker of HELD broke."""
        self._leases.doubt(held.queue)

    def look_again(self) -> None:
        """Look for new and removed queues soon."""
        self._planner.look_soon()

    def replace_subscriptions(self, subscriptions: Subscriptions) -> None:
        """Use SUBSCRIPTIONS from now on. The group makes a new plan."""
        self._subscriptions = subscriptions
        self._membership.rejoin()

    async def close(self) -> None:
        """Stop reading, commit, release every queue, and leave the group."""
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
        """Return the request to join, with the present subscriptions and queues."""
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
        """Return the queues that this member holds now."""
        return [to_wire(queue) for queue in self._held]

    def on_members(self, members: pb.Members) -> None:
        """Start a new generation: make its plan if this member is the leader. Raises BadReply."""
        if not self._is_running:
            return
        check_members(members, "the coordinator")
        self._members = members
        self._leases.note_generation(members.generation)
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
        except Exception as error:  # The application's strategy may raise anything.
            name = self._strategy.name
            logger.exception(
                "allocation strategy failed %s",
                Facts(group=self._parts.group, strategy=name, reason=repr(error)),
            )
            self._user.fail(
                ConfigError(f"allocation strategy {name!r} raised {error!r}: fix the strategy")
            )
            return
        if members.each_for_itself:
            self._follow(shares.get(self.member_id, ()))
        else:
            plan = plan_to_wire(members.generation, shares)
            await self._membership.send(pb.MemberRequest(plan=plan))
        if self._watching is None or self._watching.done():
            self._watching = self._session.tasks.spawn(self._planner.watch())

    def _replan(self) -> None:
        """Request a new plan, because the queues have changed."""
        if self._members.each_for_itself:
            self.on_members(self._members)
        else:
            replan = pb.Replan(generation=self._members.generation)
            self._session.tasks.spawn(self._membership.send(pb.MemberRequest(replan=replan)))

    def on_assigned(self, assigned: pb.Assigned) -> None:
        """Follow an assignment, except for topics that this member does not subscribe to. Raises BadReply."""
        if self._is_running:
            check_assigned(assigned, "the coordinator")
            wanted = {*self._subscriptions, retry_topic(self._parts.group)}
            self._leases.note_generation(assigned.generation)
            if self._is_first is None:
                self._is_first = False
            self._follow([from_wire(one) for one in assigned.queues if one.topic in wanted])

    def _follow(self, queues: Sequence[Queue]) -> None:
        self._parts.counts.rebalances += 1
        self._assigned = set(queues)
        logger.info(
            "queues assigned %s",
            Facts(group=self._parts.group, queues=len(queues), generation=self.generation),
        )
        self._settle()

    def on_refused(self, error: PocketMQError) -> None:
        """Raise ERROR to the application: the coordinator refuses this member."""
        self._user.fail(error)

    def on_replaced(self, error: MemberFenced) -> None:
        """Lose all queues and raise ERROR to the application: another member has replaced this one."""
        self._assigned.clear()
        self._leases.unwant(list(self._leases.wanted))
        for queue in list(self._held):
            self._leases.drop(queue)
            self.expired(queue)
        self._user.fail(error)

    def _settle(self) -> None:
        """Request and release leases, so that the member will hold the assigned queues."""
        for queue in self._held.keys() - self._assigned - self._ending.keys():
            self._end(queue, lost=False)
        wanted = self._assigned - self._held.keys() - self._ending.keys()
        self._leases.unwant([queue for queue in self._leases.wanted if queue not in wanted])
        self._leases.want(wanted)

    def granted(self, queue: Queue, token: int, committed: int, waited_ms: int) -> None:
        """Start to read QUEUE, whose lease was granted after WAITED_MS."""
        from_start = bool(self._is_first) and queue not in self._started
        self._started.add(queue)
        held = self._held[queue] = HeldQueue(queue, token, committed, from_start)
        counts = self._parts.counts
        counts.queues_gained += 1
        counts.gaining_ms += waited_ms
        self._user.begin(held)
        self._membership.held_changed()

    def renewed(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        """Note that a request that was sent at SENT_MS has renewed the lease of QUEUE.

        BREAKS: how often connections to its broker had broken when it was sent.
        """
        if self._on_renewed is not None:
            self._on_renewed(queue, sent_ms, breaks)

    def expired(self, queue: Queue) -> None:
        """Stop reading QUEUE without a commit, because another member may hold it."""
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
                    "queue released too early, uncommitted messages will be redelivered %s",
                    Facts(group=self._parts.group, queue=queue, after_ms=timeout_ms),
                )
        except Exception as error:  # Release the queue, whatever fails.
            logger.warning(
                "end of reading failed, queue released %s",
                Facts(group=self._parts.group, queue=queue, reason=repr(error)),
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
