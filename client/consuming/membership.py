"""A member's stream to the coordinator of its group: found, joined, kept alive, found again.

    find ──► join ──► hear Members and Assigned, heartbeats go out three times a session ──┐
     ▲                                                                                     │
     └── the stream breaks, the rightful coordinator is another one, subscriptions change ◄┘

A stream that ends says nothing about the queues: what is held is held by its lease. The member comes back under its
id and says what it holds. What the coordinator refuses for good reaches the application, and is tried again every
10 s; only a member whose place another has taken (the same `instance_id`) does not come back.

The coordinator of a group is the broker to which its name hashes, or the next that can be reached: the brokers' names
in order are a ring. All members find the same one as long as they see the same brokers; where they do not, or cannot
reach the same, each half agrees for itself, and the leases of the queues keep them apart.

Not thread-safe: its event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterable
from random import Random
from typing import Final, Protocol

from ...proto import errors
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.java_hash import java_hash
from ..connections import BROKER
from ..streams import Conversation
from ..tasks import Alarm
from .parts import ConsumerParts

logger = logging.getLogger(__name__)

#: How often a member looks whether another broker has become the rightful coordinator.
WATCH_MS: Final = 30_000
#: How long who was refused stays away.
_REFUSED_MS: Final = 10_000
#: Heartbeats in a session.
HEARTBEATS: Final = 3
_PAUSE_MS: Final = 100
_PAUSE_MAX_MS: Final = 1_000
_LEAVE_TIMEOUT_S: Final = 1.0
#: A broker that cannot be reached, has no master, or does not coordinate: the next one of the ring does.
_ASK_ANOTHER: Final = (
    errors.ConnectionLost,
    errors.RequestTimeout,
    errors.ShuttingDown,
    errors.MasterFenced,
    errors.Unsupported,
)

_Talk = Conversation[pb.MemberRequest, pb.MemberEvent]


def new_member_id(random: Random) -> str:
    """Return an id that no other member has: "<host>@<process>@<random>"."""
    return f"{socket.gethostname()}@{os.getpid()}@{random.getrandbits(48):012x}"


def coordinators(group: str, brokers: Iterable[str]) -> list[str]:
    """Return the names of BROKERS in the order in which a member of GROUP tries them."""
    names = sorted(brokers)
    if not names:
        return []
    first = (java_hash(group) & 0x7FFFFFFF) % len(names)
    return names[first:] + names[:first]


class Follower(Protocol):
    """Does what the coordinator says."""

    def join_request(self) -> pb.Join:
        """Return how this member joins, now."""
        ...

    def held_queues(self) -> Iterable[pb.HeldQueue]:
        """Return what this member holds, now."""
        ...

    def on_members(self, members: pb.Members) -> None:
        """A new generation begins."""
        ...

    def on_assigned(self, assigned: pb.Assigned) -> None:
        """This member's share is there."""
        ...

    def on_refused(self, error: errors.PocketMQError) -> None:
        """The coordinator does not want this member."""
        ...

    def on_replaced(self, error: errors.MemberFenced) -> None:
        """Another member has the place of this one, for good."""
        ...


class Membership:
    """One member of the group, as its coordinator knows it."""

    def __init__(self, parts: ConsumerParts, follower: Follower) -> None:
        self._parts = parts
        self._session = parts.session
        self._follower = follower
        self._running: asyncio.Task[None] | None = None
        self._talk: _Talk | None = None
        self._address = ""
        #: The coordinator has answered on this stream.
        self._is_in = False
        self._is_leaving = False
        self._held_changed = False
        self._heart = Alarm(parts.session.clock, parts.session.tasks)

    @property
    def coordinator(self) -> str:
        """The address of the broker that coordinates the group; empty: none has answered."""
        return self._address if self._is_in else ""

    def start(self) -> None:
        """Join, and stay in."""
        if self._running is None:
            self._is_leaving = False
            self._running = self._session.tasks.spawn(self._run())

    async def leave(self) -> None:
        """Leave the group, if the coordinator can be reached."""
        self._is_leaving = True
        if self._talk is not None and self._running is not None:
            await self.say(pb.MemberRequest(leave=pb.Leave()))
            # What was said must have arrived before the stream is cancelled: the coordinator ends it.
            await asyncio.wait((self._running,), timeout=_LEAVE_TIMEOUT_S)
        self.stop()

    def stop(self) -> None:
        """End the stream without a word: the coordinator waits for the rest of the session."""
        if self._running is not None:
            self._running.cancel()
            self._running = None
        self._is_in = False

    def rejoin(self) -> None:
        """Join again: what the member wants has changed."""
        if self._running is not None:
            self.stop()
            self.start()

    def held_changed(self) -> None:
        """Tell the coordinator soon what is held."""
        self._held_changed = True
        self._heart.ring()

    async def say(self, request: pb.MemberRequest) -> None:
        """Tell the coordinator REQUEST if there is one; a stream that has ended hears nothing."""
        if self._talk is not None:
            try:
                await self._talk.send(request)
            except errors.PocketMQError as error:
                logger.debug(
                    "coordinator was not notified %s",
                    Facts(group=self._parts.group, reason=error.message),
                )

    async def _run(self) -> None:
        clock = self._session.clock
        pause_ms = _PAUSE_MS
        while not self._is_leaving:
            began_ms = clock.now_ms()
            await self._try_each()
            if self._is_leaving:
                return
            if clock.now_ms() - began_ms >= _REFUSED_MS:
                pause_ms = _PAUSE_MS
            await clock.sleep_until(clock.now_ms() + pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def _try_each(self) -> None:
        """Stay at the first broker of the ring that takes this member."""
        not_served: errors.Unsupported | None = None
        for broker in await self._ring():
            self._is_in = False
            try:
                await self._stay(broker)
            except errors.MemberFenced as error:
                await self._fenced(error)
                return
            except errors.PocketMQError as error:
                is_bad = isinstance(error, errors.BadReply)
                if is_bad or (not self._is_in and not isinstance(error, _ASK_ANOTHER)):
                    await self._refused(error)
                    return
                not_served = error if isinstance(error, errors.Unsupported) else None
                logger.info(
                    "coordinator lost %s",
                    Facts(group=self._parts.group, broker=broker, reason=error.message),
                )
            if self._is_in or self._is_leaving:
                return
        if not_served is not None:
            await self._refused(not_served)

    async def _fenced(self, error: errors.MemberFenced) -> None:
        """Go, and come back unless another has this member's place."""
        if error.details.get("because") not in ("session", "stream"):
            self._follower.on_replaced(error)
            await asyncio.Event().wait()  # Until it is closed.
        logger.warning(
            "member has to join again %s",
            Facts(group=self._parts.group, reason=error.message),
        )

    async def _ring(self) -> list[str]:
        try:
            brokers = await self._session.routes.brokers()
        except errors.PocketMQError as error:
            logger.debug(
                "brokers not found %s", Facts(group=self._parts.group, reason=error.message)
            )
            return []
        return coordinators(self._parts.group, brokers)

    async def _refused(self, error: errors.PocketMQError) -> None:
        self._follower.on_refused(error)
        clock = self._session.clock
        await clock.sleep_until(clock.now_ms() + _REFUSED_MS)

    async def _stay(self, broker: str) -> None:
        """Be a member at BROKER until the stream ends, or a better coordinator is there."""
        routes = self._session.routes
        while True:
            address = routes.address(broker)
            try:
                return await self._stay_at(broker, address)
            except errors.PocketMQError as error:
                if self._is_leaving or not routes.astray(broker, address, error):
                    raise

    async def _stay_at(self, broker: str, address: str) -> None:
        tasks = self._session.tasks
        connection = self._session.connections.to(address)
        talk = connection.converse(BROKER + "JoinGroup", pb.MemberRequest, pb.MemberEvent)
        self._talk, self._address = talk, address
        beating = watching = None
        try:
            self._held_changed = False
            await self._join(talk)
            beating = tasks.spawn(self._beat(talk))
            watching = tasks.spawn(self._watch_place(talk, broker))
            while (event := await talk.receive()) is not None:
                self._is_in = True
                self._hear(event)
        finally:
            for task in (beating, watching):
                if task is not None:
                    task.cancel()
            self._talk = None
            talk.close()

    async def _join(self, talk: _Talk) -> None:
        try:
            await talk.send(pb.MemberRequest(join=self._follower.join_request()))
        except errors.PocketMQError:
            await talk.receive()  # Tells why the stream has ended.
            raise

    def _hear(self, event: pb.MemberEvent) -> None:
        what = event.WhichOneof("what")
        if what == "members":
            self._follower.on_members(event.members)
        elif what == "assigned":
            self._follower.on_assigned(event.assigned)
        elif what == "warning":
            logger.warning(
                "the coordinator warns %s",
                Facts(group=self._parts.group, reason=event.warning.message),
            )

    async def _beat(self, talk: _Talk) -> None:
        """Send heartbeats, and what is held when that changes."""
        clock = self._session.clock
        interval_ms = self._parts.config.session_timeout_ms // HEARTBEATS
        while True:
            await self._heart.wait_until(clock.now_ms() + interval_ms)
            beat = pb.Heartbeat(held_changed=self._held_changed)
            if self._held_changed:
                beat.held.extend(self._follower.held_queues())
                self._held_changed = False
            await self.say(pb.MemberRequest(heartbeat=beat))

    async def _watch_place(self, talk: _Talk, broker: str) -> None:
        """End the stream when another broker has become the rightful coordinator, and can be reached."""
        clock = self._session.clock
        while True:
            await clock.sleep_until(clock.now_ms() + WATCH_MS)
            ring = await self._ring()
            if ring and ring[0] != broker and await self._reaches(ring[0]):
                logger.info(
                    "coordinator changes %s",
                    Facts(group=self._parts.group, old=broker, new=ring[0]),
                )
                # Without a warning: the other members join, too, and until then no share should change.
                talk.close()
                return

    async def _reaches(self, broker: str) -> bool:
        try:
            await self._session.ask(
                broker,
                "Status",
                pb.BrokerStatusRequest(),
                pb.BrokerStatusReply,
                self._parts.config.request_timeout_ms,
            )
        except errors.PocketMQError:
            return False
        return True
