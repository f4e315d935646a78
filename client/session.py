"""The parts that all clients share: connections, name servers, routes, a clock, background tasks.

Not thread-safe: one event loop creates, uses and closes a session.
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
from .tasks import TaskGroup

Value = TypeVar("Value")
Reply = TypeVar("Reply", bound=Message)

_LOCAL_HOST_TIMEOUT_S: Final = 1.0
#: Pause between two tries while a replica set elects a master.
_PAUSE_MS: Final = 20
_PAUSE_MAX_MS: Final = 200
#: If the master has not answered for this time, name servers are asked whether there is another one.
LOOK_MS: Final = 1_000
#: Errors of a broker that is not the master (any more). It may have executed the request before.
NOT_MASTER: Final = (errors.MasterFenced, errors.ShuttingDown)


@dataclass(slots=True)
class _Question:
    """A request to the master of a broker. From `late_ms` on, name servers are asked for a later master."""

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
        """CONNECTIONS: None: gRPC connections with the TLS settings of CONFIG."""
        connections = connections or GrpcConnections(config.trust.dial())
        self.connections = connections
        self.clock = clock
        self.random = random
        self.tasks = TaskGroup()
        self.name_servers = NameServers(
            parse_addresses(config.nameservers), connections, config.request_timeout_ms
        )
        self.routes = Routes(self.name_servers, clock, self.tasks)
        #: Requests to replica sets without a reply yet.
        self._unanswered: dict[asyncio.Timeout, _Question] = {}
        self._is_looking = False

    async def of_master(
        self, broker: str, address: str, asked: Awaitable[Value], patience_ms: int = LOOK_MS
    ) -> Value:
        """Await ASKED, a request to the master of BROKER at ADDRESS, and return its reply.

        A master that hangs, or whose machine lost power, does not close its connections. So after PATIENCE_MS without a
        reply, name servers are asked repeatedly. If they know a later master, the request fails with MasterFenced.
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
        """Ask the name servers while requests are late, and time out those for which there is a later master."""
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
        """Call METHOD of BROKER, whose address must be known; return the reply.

        If BROKER is a replica set that elects a new master, the request is retried for TIMEOUT_MS. If the first master
        may have executed the request, it is retried only if REPEATABLE. The error of a later try has the number of
        tries in its detail `tries`.
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
                moved = self.routes.note_error(broker, address, error)
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
                # Without a name server the replicas are tried in turn.
                with suppress(errors.PocketMQError):
                    await self.routes.brokers()
                await self.clock.sleep_until(self.clock.now_ms() + pause_ms)
                pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def find_route(self, topic: str, timeout_ms: int) -> Route:
        """Return the route for sending to TOPIC. Retries for TIMEOUT_MS, because servers may be starting."""
        return await self.until(
            lambda: self.routes.find(topic, provisional=True), errors.RouteNotFound, timeout_ms
        )

    async def until(
        self,
        attempt: Callable[[], Awaitable[Value]],
        passing: type[errors.PocketMQError] | tuple[type[errors.PocketMQError], ...],
        timeout_ms: int,
    ) -> Value:
        """Call ATTEMPT and return its result; retry for TIMEOUT_MS, with growing pauses, while it raises PASSING."""
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
    """Return the local address that is used to reach ADDRESS, with port 0; NO_HOST if there is no route.

    Only a DNS query may be sent: connecting a datagram socket only reads the routing table.
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
