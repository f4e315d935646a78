"""A member's share of its group's queues: it follows the plan, holds leases, and starts and ends reading.

    plan says      held    what happens
    this member    no      the member asks for the lease; when it is granted, reading begins at the committed offset
    this member    yes     nothing: only queues that move pause
    another        yes     reading ends; what was delivered is finished (for rebalance_timeout_ms) and committed;
                           the lease is released, and the other member gets it and the offset at once
    anything       lost    reading ends, and nothing is committed any more

The lease decides, which the queue's own broker grants. The plan only says which leases to request and which to release:
without a coordinator each member keeps its queues, and two members that disagree wait for each other's leases.

The leader plans which queues exist, and which member reads which. A queue that disappears from the route counts as
existing for GONE_AFTER_MS, so a broker that restarts, or a name server that restarts empty, moves no queue.

Queues that are not shared are read in parallel with other consumers: all that the topics have, or those that the
application chose. A topic without a route is waited for, with one warning.

Not thread-safe: its event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

from ...proto.errors import BadReply, ConfigError, GroupNotFound, MemberFenced, PocketMQError
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import retry_topic
from ..allocation import Member, Strategy, allocated, strategy_named
from ..claims import check_assigned, check_members, check_places
from ..queue import Queue, in_parts
from ..subscriptions import Subscriptions
from ..tasks import Alarm, finished_within
from .held_queue import HeldQueue, OffsetAndMetadata, QueueUser
from .leases import Leases
from .membership import Membership, new_member_id
from .parts import ConsumerParts

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


# ---------------------------------------------------------------- queues that are not shared


#: How often new queues are looked for: of topics that are there, and of those that are not yet.
WATCH_MS = 10_000
WATCH_UNKNOWN_MS = 500

#: Asks for the offsets at which queues continue; −1: none.
CommittedOf = Callable[[Collection[Queue]], Awaitable[dict[Queue, int]]]


class TopicWatch:
    """Finds the queues of topics, again and again. Not thread-safe: its event loop owns it."""

    def __init__(self, parts: ConsumerParts) -> None:
        self._session = parts.session
        self._group = parts.group
        self._retry_topic = retry_topic(parts.group)
        #: Topics without a route, of which was warned.
        self._missing: set[str] = set()
        self._alarm = Alarm(parts.session.clock, parts.session.tasks)

    async def look(self, topics: Collection[str]) -> tuple[list[Queue], bool]:
        """Return the queues of TOPICS that can be read, and whether all topics but the retry topic have a route."""
        queues: list[Queue] = []
        all_known = True
        for topic in topics:
            try:
                route = await self._session.routes.find(topic)
            except PocketMQError as error:
                # The retry topic is not there until something fails: nothing to wait for.
                all_known &= topic == self._retry_topic
                self._note_missing(topic, error)
                continue
            self._missing.discard(topic)
            queues += route.readable
        return queues, all_known

    def _note_missing(self, topic: str, error: PocketMQError) -> None:
        quiet = topic in self._missing or topic == self._retry_topic
        self._missing.add(topic)
        logger.log(
            logging.DEBUG if quiet else logging.WARNING,
            "waiting for topic %s",
            Facts(group=self._group, topic=topic, reason=error.message),
        )

    async def pause(self, all_known: bool) -> None:
        """Return when it is time to look again, or when another task asks for it."""
        clock = self._session.clock
        began_ms = clock.now_ms()
        # Not at once: errors come in numbers, and a change takes its time to be known.
        await clock.sleep_until(began_ms + WATCH_UNKNOWN_MS)
        if all_known:
            await self._alarm.wait_until(began_ms + WATCH_MS)

    def sooner(self) -> None:
        """Have the next look come soon."""
        self._alarm.ring()


class _Unshared:
    """A source of queues without leases: other consumers may read them, too."""

    def __init__(self) -> None:
        self._held: dict[Queue, HeldQueue] = {}

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return the lease by which QUEUE is read; None: this member does not hold it."""
        return self._held.get(queue)

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        """Nothing is held against anybody: there is no lease."""

    def doubt(self, held: HeldQueue) -> None:
        """Nothing is held against anybody: there is no lease."""


class WholeTopics(_Unshared):
    """Gives USER all queues of TOPICS; COMMITTED_OF returns where each continues."""

    def __init__(
        self,
        topics: Collection[str],
        user: QueueUser,
        parts: ConsumerParts,
        committed_of: CommittedOf,
    ) -> None:
        super().__init__()
        self._topics = topics
        self._user = user
        self._parts = parts
        self._committed_of = committed_of
        self._watch = TopicWatch(parts)

    def start(self) -> None:
        """Begin."""
        self._parts.session.tasks.spawn(self._run())

    async def _run(self) -> None:
        while True:
            queues, all_known = await self._watch.look(self._topics)
            new = [queue for queue in queues if queue not in self._held]
            try:
                for queue, committed in (await self._committed_of(new)).items():
                    held = HeldQueue(queue, 0, committed, from_start=True)
                    self._held[queue] = held
                    self._user.begin(held)
            except PocketMQError as error:
                logger.warning(
                    "queues cannot be read yet %s",
                    Facts(group=self._parts.group, reason=error.message),
                )
            all_known &= all(queue in self._held for queue in queues)
            await self._watch.pause(all_known)

    def lost(self, held: HeldQueue) -> None:
        """Nothing is held against anybody, so that nothing is lost."""

    def look_again(self) -> None:
        """Look for changes of the queues soon."""
        self._watch.sooner()

    async def close(self) -> None:
        """Have every queue ended."""
        await asyncio.gather(*(self._user.end(queue, lost=False) for queue in self._held))


class AssignedQueues(_Unshared):
    """Gives USER the queues that `replace` names; COMMITTED_OF returns where each continues."""

    def __init__(self, user: QueueUser, parts: ConsumerParts, committed_of: CommittedOf) -> None:
        super().__init__()
        self._user = user
        self._group = parts.group
        self._session = parts.session
        self._committed_of = committed_of
        self._chosen: set[Queue] = set()
        self._changed = Alarm(parts.session.clock, parts.session.tasks)

    def start(self) -> None:
        """Begin."""
        self._session.tasks.spawn(self._run())

    async def replace(self, queues: Collection[Queue]) -> None:
        """Read QUEUES from now on, and no others."""
        self._chosen = set(queues)
        await self._drop(self._held.keys() - self._chosen)
        # The application may seek at once. What cannot be read yet is tried again in the background.
        with suppress(PocketMQError):
            await self._find(self._chosen - self._held.keys())
        self._changed.ring()

    async def _run(self) -> None:
        clock = self._session.clock
        while True:
            missing = self._chosen - self._held.keys()
            try:
                await self._find(missing)
            except PocketMQError as error:
                logger.warning(
                    "queues cannot be read yet %s",
                    Facts(
                        group=self._group,
                        queues=", ".join(map(str, sorted(missing - self._held.keys())[:32])),
                        reason=error.message,
                    ),
                )
            if self._chosen <= self._held.keys():
                await self._changed.wait()
            else:
                await self._changed.wait_until(clock.now_ms() + WATCH_UNKNOWN_MS)

    async def _find(self, missing: Collection[Queue]) -> None:
        """Begin to read those of MISSING that can be; raise the first error of a topic once the others are read."""
        found: set[str] = set()
        first_error: PocketMQError | None = None
        for topic in sorted({queue.topic for queue in missing}):
            try:
                await self._session.routes.find(topic)
                found.add(topic)
            except PocketMQError as error:
                first_error = first_error or error
        there = [queue for queue in missing if queue.topic in found]
        for queue, committed in (await self._committed_of(there)).items():
            if queue in self._chosen and queue not in self._held:
                held = self._held[queue] = HeldQueue(queue, 0, committed, from_start=True)
                self._user.begin(held)
        if first_error is not None:
            raise first_error

    def lost(self, held: HeldQueue) -> None:
        """Go on: a member of the group holds the queue, which keeps us from committing and from nothing else."""
        logger.warning(
            "offset not committed %s",
            Facts(
                group=self._group,
                queue=held.queue,
                reason="a member of the group holds the queue",
            ),
        )

    def look_again(self) -> None:
        """The queues are the application's choice."""

    async def close(self) -> None:
        """Have every queue ended."""
        self._chosen.clear()
        await self._drop(set(self._held))

    async def _drop(self, queues: Collection[Queue]) -> None:
        await asyncio.gather(*(self._user.end(queue, lost=False) for queue in queues))
        for queue in queues:
            del self._held[queue]


async def committed_offsets(parts: ConsumerParts, queues: Collection[Queue]) -> dict[Queue, int]:
    """Return the offsets alone of `committed_positions`."""
    found = await committed_positions(parts, queues)
    return {queue: one.offset for queue, one in found.items()}


async def committed_positions(
    parts: ConsumerParts, queues: Collection[Queue]
) -> dict[Queue, OffsetAndMetadata]:
    """Return what the group has committed of QUEUES, by queue; of those whose broker answers. −1: nothing."""
    if not parts.group:
        return dict.fromkeys(queues, OffsetAndMetadata(-1))
    found: dict[Queue, OffsetAndMetadata] = {}
    for broker in {queue.broker for queue in queues}:
        for wanted in in_parts(queue for queue in queues if queue.broker == broker):
            found |= await _committed_at(parts, broker, wanted)
    return found


async def _committed_at(
    parts: ConsumerParts, broker: str, wanted: Sequence[Queue]
) -> dict[Queue, OffsetAndMetadata]:
    """Return what the group has committed at BROKER of WANTED; of each half by itself if one queue may be refused."""
    session = parts.session
    ids = [pb.QueueId(topic=queue.topic, queue=queue.number) for queue in wanted]
    request = pb.GroupOffsetsRequest(group=parts.group, queues=ids)
    try:
        reply = await session.ask(
            broker, "GroupOffsets", request, pb.GroupOffsetsReply, parts.config.request_timeout_ms
        )
        check_places(ids, reply.offsets, f"broker {broker}")
    except GroupNotFound:
        return dict.fromkeys(wanted, OffsetAndMetadata(-1))
    except PocketMQError as error:
        if len(wanted) > 1 and not error.retriable and not isinstance(error, BadReply):
            half = len(wanted) // 2
            first = await _committed_at(parts, broker, wanted[:half])
            return first | await _committed_at(parts, broker, wanted[half:])
        for topic in {queue.topic for queue in wanted}:
            session.routes.forget(topic)
        logger.warning(
            "committed offsets cannot be had, trying again %s",
            Facts(group=parts.group, broker=broker, reason=error.message),
        )
        return {}
    return {
        queue: OffsetAndMetadata(one.offset, one.metadata)
        for queue, one in zip(wanted, reply.offsets, strict=True)
    }
