"""What a producer, a consumer and an admin have in common: connections, name servers, routes, a clock, tasks.

Thread contract: made, used and closed on one event loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from google.protobuf.message import Message

from ..proto import errors
from ..proto.clock import Clock
from ..proto.record import NO_HOST, Host
from .config import ClientConfig
from .connections import BROKER, Connections, GrpcConnections
from .name_server_addresses import parse_addresses
from .routes import NameServers, Route, Routes
from .tasks import Tasks

Value = TypeVar("Value")
Reply = TypeVar("Reply", bound=Message)

_LOCAL_HOST_TIMEOUT_S: Final = 1.0
#: Between two questions to a replica set that is about to have another master.
_PAUSE_MS: Final = 20
_PAUSE_MAX_MS: Final = 200
#: A master that has not answered for so long may be one no more: the name servers are asked who is.
LOOK_MS: Final = 1_000
#: Not the master (any more). One that was until now may have done what it was asked.
NOT_MASTER: Final = (errors.MasterFenced, errors.ShuttingDown)


@dataclass(slots=True)
class _Question:
    """What the master of BROKER at ADDRESS, of EPOCH as far as was known, was asked, and when that is LATE."""

    broker: str
    address: str
    epoch: int
    late_ms: int
    patience_ms: int


class Session:
    """The shared parts of one client."""

    def __init__(
        self, config: ClientConfig, connections: Connections | None, clock: Clock, random: Random
    ) -> None:
        """CONNECTIONS None: those that CONFIG asks for."""
        connections = connections or GrpcConnections(config.trust.dial())
        self.connections = connections
        self.clock = clock
        self.random = random
        self.tasks = Tasks()
        self.name_servers = NameServers(
            parse_addresses(config.nameservers), connections, config.request_timeout_ms
        )
        self.routes = Routes(self.name_servers, clock, self.tasks)
        #: What was asked of replica sets and is not answered yet.
        self._unanswered: dict[asyncio.Timeout, _Question] = {}
        self._is_looking = False

    async def of_master(
        self, broker: str, address: str, asked: Awaitable[Value], patience_ms: int = LOOK_MS
    ) -> Value:
        """Return what ASKED brings, a question to the master of BROKER at ADDRESS.

        One that hangs, or lost its power, breaks no connection: what it does not answer within PATIENCE_MS is
        waited for no longer than the name servers know of no later master. Raises MasterFenced then.
        """
        epoch = self.routes.epoch(broker)
        if epoch is None:
            return await asked
        waiting = asyncio.timeout(None)
        try:
            async with waiting:
                late_ms = self.clock.now_ms() + patience_ms
                self._unanswered[waiting] = _Question(broker, address, epoch, late_ms, patience_ms)
                if not self._is_looking:
                    self._is_looking = True
                    self.tasks.spawn(self._look_for_masters())
                try:
                    return await asked
                finally:
                    del self._unanswered[waiting]
        except TimeoutError:
            later = self.routes.later_master(broker, address, epoch)
            if later is None or not waiting.expired():
                raise
            raise later from None

    async def _look_for_masters(self) -> None:
        """Ask the name servers while something is late, and give up what a later master can answer."""
        try:
            while self._unanswered:
                late_ms = min(one.late_ms for one in self._unanswered.values())
                await self.clock.sleep_until(late_ms)
                now_ms = self.clock.now_ms()
                late = [one for one in self._unanswered.values() if one.late_ms <= now_ms]
                if not late:
                    continue
                with suppress(errors.PocketMQError):
                    await self.routes.brokers()
                for one in late:
                    one.late_ms = self.clock.now_ms() + one.patience_ms
                for waiting, one in self._unanswered.items():
                    if self.routes.later_master(one.broker, one.address, one.epoch) is not None:
                        waiting.reschedule(asyncio.get_running_loop().time())
        finally:
            self._is_looking = False

    async def ask(
        self,
        broker: str,
        method: str,
        request: Message,
        reply_type: type[Reply],
        timeout_ms: int,
        *,
        repeatable: bool = True,
    ) -> Reply:
        """Return what BROKER, which is in a route, answers to METHOD of its service.

        A replica set may be about to get another master: it is asked again for TIMEOUT_MS, where nobody took the
        question, or might have, and it is REPEATABLE. A master that lost its epoch may have done what it was asked: the
        error of a later try says in its detail `tries` which one it was.
        """
        deadline_ms = self.clock.now_ms() + timeout_ms
        pause_ms = _PAUSE_MS
        tries = 0
        while True:
            tries += 1
            address = self.routes.address(broker)
            connection = self.connections.to(address)
            try:
                call = connection.call(BROKER + method, request, reply_type, timeout_ms)
                return await self.of_master(broker, address, call)
            except (errors.ConnectionLost, errors.RequestTimeout, *NOT_MASTER) as error:
                moved = self.routes.astray(broker, address, error)
                again = isinstance(
                    error, (errors.ConnectionLost, *NOT_MASTER) if repeatable else NOT_MASTER
                )
                late = self.clock.now_ms() + pause_ms > deadline_ms
                if late or not again or not self.routes.is_replicated(broker):
                    raise
            except errors.PocketMQError as error:
                if tries > 1:
                    error.details["tries"] = str(tries)
                raise
            if not moved:
                with suppress(
                    errors.PocketMQError
                ):  # Without a name server the replicas are tried in turn.
                    await self.routes.brokers()
                await self.clock.sleep_until(self.clock.now_ms() + pause_ms)
                pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def find_route(self, topic: str, timeout_ms: int) -> Route:
        """Return the route to write TOPIC, trying for TIMEOUT_MS: servers may just be starting."""
        return await self.until(
            lambda: self.routes.find(topic, provisional=True), errors.RouteNotFound, timeout_ms
        )

    async def until(
        self,
        attempt: Callable[[], Awaitable[Value]],
        passing: type[errors.PocketMQError] | tuple[type[errors.PocketMQError], ...],
        timeout_ms: int,
    ) -> Value:
        """Return what ATTEMPT returns; repeat it for TIMEOUT_MS, more and more slowly, while it raises PASSING."""
        deadline_ms = self.clock.now_ms() + timeout_ms
        pause_ms = 10
        while True:
            try:
                return await attempt()
            except passing:
                if self.clock.now_ms() + pause_ms > deadline_ms:
                    raise
            await self.clock.sleep_until(self.clock.now_ms() + pause_ms)
            pause_ms = min(2 * pause_ms, 500)

    async def close(self) -> None:
        """End the background tasks, then the connections that they use."""
        await self.tasks.close()
        await self.connections.close()


async def local_host(address: str) -> Host:
    """Return this machine's own address on the way to ADDRESS, with port 0; the null host if there is no way.

    Nothing is sent but a question for the name of a host: connecting a datagram socket only asks the routing table.
    The port is the business of whatever carries the calls.
    """
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_LOCAL_HOST_TIMEOUT_S):
            transport, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=(host.strip("[]"), int(port))
            )
    except (OSError, TimeoutError):
        return NO_HOST
    try:
        own = ipaddress.ip_address(transport.get_extra_info("sockname")[0])
    finally:
        transport.close()
    return Host(own.packed, 0)
