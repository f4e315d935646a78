"""The stream of a group member to its coordinator: find the coordinator, join, keep the stream alive, and repeat.

    find ──► join ──► receive Members and Assigned, send three heartbeats per session ─────────┐
     ▲                                                                                         │
     └── the stream breaks, another broker becomes the coordinator, subscriptions change ◄─────┘

The end of the stream does not affect queues: the member holds them by leases. It joins again with the same member id
and reports what it holds. If the coordinator refuses the member, the application gets the error, and the member retries
every 10 s. Only if another member with the same `instance_id` has replaced it, it does not join again.

The names of the brokers in order form a ring. The coordinator of a group is the broker to which the group's name
hashes, or the next one that can be reached. All members find the same coordinator if they see the same brokers. If they
do not, there are two coordinators with one half of the members each, and the leases of the queues prevent conflicts.

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

#: How often a member checks whether another broker has become the coordinator.
WATCH_MS: Final = 30_000
#: Pause after the coordinator refused the member.
_REFUSED_MS: Final = 10_000
#: Number of heartbeats per session timeout.
HEARTBEATS: Final = 3
_PAUSE_MS: Final = 100
_PAUSE_MAX_MS: Final = 1_000
_LEAVE_TIMEOUT_S: Final = 1.0
#: After these errors the next broker of the ring is the coordinator: this one cannot be reached, has no master, or does
#: not support groups.
_ASK_ANOTHER: Final = (
    errors.ConnectionLost,
    errors.RequestTimeout,
    errors.ShuttingDown,
    errors.MasterFenced,
    errors.Unsupported,
)

_Talk = Conversation[pb.MemberRequest, pb.MemberEvent]


def new_member_id(random: Random) -> str:
    """Return a unique member id: "<host>@<process>@<random>"."""
    return f"{socket.gethostname()}@{os.getpid()}@{random.getrandbits(48):012x}"


def coordinators(group: str, brokers: Iterable[str]) -> list[str]:
    """Return the names of BROKERS in the order in which a member of GROUP tries them."""
    names = sorted(brokers)
    if not names:
        return []
    first = (java_hash(group) & 0x7FFFFFFF) % len(names)
    return names[first:] + names[:first]


class Follower(Protocol):
    """Acts on the events of the coordinator."""

    def join_request(self) -> pb.Join:
        """Return the request to join, with the present subscriptions and queues."""
        ...

    def held_queues(self) -> Iterable[pb.HeldQueue]:
        """Return the queues that this member holds now."""
        ...

    def on_members(self, members: pb.Members) -> None:
        """Called when a new generation of the group starts."""
        ...

    def on_assigned(self, assigned: pb.Assigned) -> None:
        """Called when this member gets its assignment."""
        ...

    def on_refused(self, error: errors.PocketMQError) -> None:
        """Called when the coordinator refuses this member."""
        ...

    def on_replaced(self, error: errors.MemberFenced) -> None:
        """Called when another member has replaced this one, which will not join again."""
        ...


class Membership:
    """Keeps one member in its group."""

    def __init__(self, parts: ConsumerParts, follower: Follower) -> None:
        self._parts = parts
        self._session = parts.session
        self._follower = follower
        self._running: asyncio.Task[None] | None = None
        self._talk: _Talk | None = None
        self._address = ""
        #: Whether the coordinator has answered on this stream.
        self._is_in = False
        self._is_leaving = False
        self._held_changed = False
        self._heartbeat_alarm = Alarm(parts.session.clock, parts.session.tasks)

    @property
    def coordinator(self) -> str:
        """The address of the coordinator; empty: none has answered."""
        return self._address if self._is_in else ""

    def start(self) -> None:
        """Join the group and stay in it."""
        if self._running is None:
            self._is_leaving = False
            self._running = self._session.tasks.spawn(self._run())

    async def leave(self) -> None:
        """Leave the group, if the coordinator can be reached."""
        self._is_leaving = True
        if self._talk is not None and self._running is not None:
            await self.send(pb.MemberRequest(leave=pb.Leave()))
            # The request has to arrive before the stream is cancelled, so wait until the coordinator ends the stream.
            await asyncio.wait((self._running,), timeout=_LEAVE_TIMEOUT_S)
        self.stop()

    def stop(self) -> None:
        """End the stream without notice: the coordinator keeps the member until its session times out."""
        if self._running is not None:
            self._running.cancel()
            self._running = None
        self._is_in = False

    def rejoin(self) -> None:
        """Join again, because the subscriptions have changed."""
        if self._running is not None:
            self.stop()
            self.start()

    def held_changed(self) -> None:
        """Report the held queues to the coordinator soon."""
        self._held_changed = True
        self._heartbeat_alarm.ring()

    async def send(self, request: pb.MemberRequest) -> None:
        """Send REQUEST to the coordinator. Does nothing if there is none, or if the stream has ended."""
        if self._talk is not None:
            try:
                await self._talk.send(request)
            except errors.PocketMQError as error:
                logger.debug(
                    "request not sent to coordinator %s",
                    Facts(group=self._parts.group, reason=error.message),
                )

    async def _run(self) -> None:
        clock = self._session.clock
        pause_ms = _PAUSE_MS
        while not self._is_leaving:
            began_ms = clock.now_ms()
            await self._stay_at_first()
            if self._is_leaving:
                return
            if clock.now_ms() - began_ms >= _REFUSED_MS:
                pause_ms = _PAUSE_MS
            await clock.sleep_until(clock.now_ms() + pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def _stay_at_first(self) -> None:
        """Be a member at the first broker of the ring that accepts this member, until the stream ends."""
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
        """Return, to join again, unless another member has replaced this one."""
        if error.details.get("because") not in ("session", "stream"):
            self._follower.on_replaced(error)
            await asyncio.Event().wait()  # Until it is closed.
        logger.warning(
            "member fenced, joining again %s",
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
        """Be a member at BROKER, also at its new master, until the stream ends or another broker is the coordinator."""
        routes = self._session.routes
        while True:
            address = routes.address(broker)
            try:
                return await self._stay_at(broker, address)
            except errors.PocketMQError as error:
                if self._is_leaving or not routes.note_error(broker, address, error):
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
            beating = tasks.spawn(self._send_heartbeats())
            watching = tasks.spawn(self._watch_coordinator(talk, broker))
            while (event := await talk.receive()) is not None:
                self._is_in = True
                self._on_event(event)
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
            await talk.receive()  # Raises the reason why the stream has ended.
            raise

    def _on_event(self, event: pb.MemberEvent) -> None:
        what = event.WhichOneof("what")
        if what == "members":
            self._follower.on_members(event.members)
        elif what == "assigned":
            self._follower.on_assigned(event.assigned)
        elif what == "warning":
            logger.warning(
                "warning from coordinator %s",
                Facts(group=self._parts.group, reason=event.warning.message),
            )

    async def _send_heartbeats(self) -> None:
        """Send heartbeats, with the held queues after they changed."""
        clock = self._session.clock
        interval_ms = self._parts.config.session_timeout_ms // HEARTBEATS
        while True:
            await self._heartbeat_alarm.wait_until(clock.now_ms() + interval_ms)
            beat = pb.Heartbeat(held_changed=self._held_changed)
            if self._held_changed:
                beat.held.extend(self._follower.held_queues())
                self._held_changed = False
            await self.send(pb.MemberRequest(heartbeat=beat))

    async def _watch_coordinator(self, talk: _Talk, broker: str) -> None:
        """End the stream when another broker has become the coordinator and can be reached."""
        clock = self._session.clock
        while True:
            await clock.sleep_until(clock.now_ms() + WATCH_MS)
            ring = await self._ring()
            if ring and ring[0] != broker and await self._reaches(ring[0]):
                logger.info(
                    "coordinator changed %s",
                    Facts(group=self._parts.group, old=broker, new=ring[0]),
                )
                # No leave request: the other members move too, and until then no assignment should change.
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
