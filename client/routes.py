"""Routes: the queues of a topic, and the addresses of the brokers that have them.

A route is fresh for REFRESH_MS. After that it is still used while a name server is asked again. So clients that know a
route survive the loss of all name servers. After `forget`, which is called on errors, the next call asks a name server.

The brokers of a *replica set* have one name, and one of them is the master in an epoch. A name server, or a replica
that is not the master (MasterFenced), returns the address of the master. A reply with a lower epoch than the known one
is ignored. While no master is known, the replicas are tried in turn. The queues are the same on each replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import Message

from ..proto import errors
from ..proto.clock import Clock
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.topics import PERMISSION_READ, PERMISSION_WRITE
from .claims import check_route
from .connections import NAME_SERVER, Connections
from .name_server_addresses import DEFAULT_NAME_SERVERS
from .queue import Queue
from .tasks import TaskGroup

Reply = TypeVar("Reply", bound=Message)

REFRESH_MS: Final = 30_000
PROVISIONAL_REFRESH_MS: Final = 1_000
#: min(defaultTopicQueueNums = 4, queues of TBW102 = 8), as in the producer of RocketMQ.
AUTO_CREATE_QUEUES: Final = 4
_MASTER: Final = 0
#: Maximum number of digits of an epoch in the details of an error.
_DIGITS_MAX: Final = 18
#: Errors after which the broker may have restarted, or have another master.
_BREAKS: Final = (
    errors.ConnectionLost,
    errors.RequestTimeout,
    errors.MasterFenced,
    errors.ShuttingDown,
)


class NameServers:
    """Asks the name servers at ADDRESSES. They are independent: one of them is enough.

    A request is sent to the server that replied last. If it cannot be reached, the others are tried in turn.
    """

    def __init__(
        self, addresses: tuple[str, ...], connections: Connections, timeout_ms: int
    ) -> None:
        self.addresses = addresses
        self._connections = connections
        self._timeout_ms = timeout_ms
        self._last_good = 0

    async def ask(
        self,
        method: str,
        request: Message,
        reply_type: type[Reply],
        check: Callable[[Reply, str], None] = lambda reply, server: None,
    ) -> Reply:
        """Return the first reply that CHECK accepts.

        Raises:
            ConnectionLost: No server can be reached. The message names all.
            Unsupported: A server is not a name server.
            TlsFailed: The TLS handshake with a server failed.
            BadReply: CHECK raised it.
        """
        silent: list[str] = []
        other: errors.Unsupported | errors.TlsFailed | errors.BadReply | None = None
        for step in range(len(self.addresses)):
            place = (self._last_good + step) % len(self.addresses)
            try:
                reply = await self.ask_one(self.addresses[place], method, request, reply_type)
                check(reply, self.addresses[place])
            except (errors.ConnectionLost, errors.RequestTimeout) as error:
                silent.append(error.message)
                continue
            except (errors.Unsupported, errors.TlsFailed, errors.BadReply) as error:
                silent.append(error.message)
                other = error
                continue
            self._last_good = place
            return reply
        kind = errors.ConnectionLost if other is None else type(other)
        raise kind(f"no name server answers: {'; '.join(silent)}", nameservers=self)

    async def ask_one(
        self, address: str, method: str, request: Message, reply_type: type[Reply]
    ) -> Reply:
        """Return the reply of the name server at ADDRESS."""
        connection = self._connections.to(address)
        try:
            return await connection.call(
                NAME_SERVER + method, request, reply_type, self._timeout_ms
            )
        except errors.Unsupported as error:
            raise errors.Unsupported(
                f"{address} is not a name server: it does not serve {method}. Is it the port of a broker? The default"
                f" port of name servers is {DEFAULT_NAME_SERVERS.rpartition(':')[2]}",
                address=address,
            ) from error

    async def ask_all(self, method: str, request: Message, reply_type: type[Reply]) -> list[Reply]:
        """Return the replies of all servers that can be reached. Raises ConnectionLost or TlsFailed if none can."""
        replies: list[Reply] = []
        last: errors.PocketMQError | None = None
        for address in self.addresses:
            try:
                replies.append(await self.ask_one(address, method, request, reply_type))
            except (errors.ConnectionLost, errors.RequestTimeout, errors.TlsFailed) as error:
                last = error
        if not replies:
            if isinstance(last, errors.TlsFailed):
                raise last
            raise errors.ConnectionLost(
                f"no name server answers: {last and last.message}", nameservers=self
            )
        return replies

    def __str__(self) -> str:
        return ", ".join(self.addresses)


@dataclass(frozen=True, slots=True)
class Route:
    """The queues of a topic. They are ordered by number, then broker, so that neighbours are on different brokers."""

    topic: str
    writable: tuple[Queue, ...]
    readable: tuple[Queue, ...]
    addresses: dict[str, str]
    fetched_ms: int
    provisional: bool = False

    def is_fresh(self, now_ms: int) -> bool:
        limit_ms = PROVISIONAL_REFRESH_MS if self.provisional else REFRESH_MS
        return now_ms - self.fetched_ms < limit_ms


@dataclass(slots=True)
class _Place:
    """The address of a broker. Of a replica set, also its master and all replicas."""

    address: str
    #: The highest known epoch of its master; 0: no master is known, or it is not a replica set.
    epoch: int = 0
    master: str = ""
    replicas: tuple[str, ...] = ()


class Routes:
    """Finds and caches routes. Not thread-safe: the client's event loop owns it."""

    def __init__(self, name_servers: NameServers, clock: Clock, tasks: TaskGroup) -> None:
        self._name_servers = name_servers
        self._clock = clock
        self._tasks = tasks
        self._routes: dict[str, Route] = {}
        self._forgotten: set[str] = set()
        self._refreshing: set[str] = set()
        self._places: dict[str, _Place] = {}
        self._breaks: Counter[str] = Counter()

    def known(self, topic: str) -> Route | None:
        """Return the route if it is known. If it is old or was forgotten, it is refreshed in the background."""
        route = self._routes.get(topic)
        if route is None:
            return None
        if not route.is_fresh(self._clock.now_ms()) or topic in self._forgotten:
            self._refresh_soon(topic)
        return route

    def _refresh_soon(self, topic: str) -> None:
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._tasks.spawn(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            route = await self._ask(topic)
            known = self._routes.get(topic)
            if route is None and known is not None and not known.provisional:
                self._routes.pop(topic, None)
        except errors.PocketMQError:
            return  # Keep the known route: a name server may answer the next time.
        finally:
            self._refreshing.discard(topic)

    async def find(self, topic: str, *, provisional: bool = False) -> Route:
        """Return the route of TOPIC: a fresh one that is known, or one from a name server.

        PROVISIONAL: if the topic is unknown, return a route to all brokers. Raises RouteNotFound, which names the topic
        and the name servers.
        """
        forgotten = topic in self._forgotten
        known = self._routes.get(topic) if forgotten else self.known(topic)
        if known is not None and not forgotten and (provisional or not known.provisional):
            return known
        try:
            route = await self._ask(topic)
            if route is None and provisional:
                route = await self._provisional(topic)
        except errors.ConnectionLost as error:
            if known is not None:
                return known
            raise errors.RouteNotFound(
                f"no route to topic {topic!r}: {error.message}",
                topic=topic,
                nameservers=self._name_servers,
            ) from error
        if route is None:
            self._routes.pop(topic, None)
            raise self._not_found(topic, provisional)
        return route

    def _not_found(self, topic: str, provisional: bool) -> errors.RouteNotFound:
        reason = (
            "no broker is registered. Start a broker with these name servers"
            if provisional
            else "no broker has it. Create it with `pocketmq topic create`"
        )
        return errors.RouteNotFound(
            f"no route to topic {topic!r} at {self._name_servers}: {reason}",
            topic=topic,
            nameservers=self._name_servers,
        )

    async def _ask(self, topic: str) -> Route | None:
        """Ask a name server for the route, and cache it; None: it does not know the topic."""
        reply = await self._name_servers.ask(
            "Route", pb.RouteRequest(topics=[topic]), pb.RouteReply, partial(check_route, topic)
        )
        self._forgotten.discard(topic)
        if not reply.routes or not reply.routes[0].queues:
            return None
        return self._keep(self._parsed(topic, reply.routes[0]))

    def _keep(self, route: Route) -> Route:
        self._routes[route.topic] = route
        return route

    def _parsed(self, topic: str, wire: pb.TopicRoute) -> Route:
        addresses = self._learn(wire.brokers)
        queues = [data for data in wire.queues if data.broker_name in addresses]
        write, read = PERMISSION_WRITE, PERMISSION_READ
        writable = {d.broker_name: d.write_queues for d in queues if d.permission & write}
        readable = {d.broker_name: d.read_queues for d in queues if d.permission & read}
        return Route(
            topic,
            _interleaved(topic, writable),
            _interleaved(topic, readable),
            addresses,
            self._clock.now_ms(),
        )

    async def _provisional(self, topic: str) -> Route | None:
        """Return a route to all brokers, with AUTO_CREATE_QUEUES queues each, for a topic that no name server knows.

        The broker then creates the topic or refuses the message, as with the clients of RocketMQ.
        """
        addresses = await self.brokers()
        if not addresses:
            return None
        queues = _interleaved(topic, dict.fromkeys(addresses, AUTO_CREATE_QUEUES))
        return self._keep(
            Route(topic, queues, queues, addresses, self._clock.now_ms(), provisional=True)
        )

    def forget(self, topic: str) -> None:
        """Let the next call for TOPIC ask a name server, because the known route is wrong."""
        self._forgotten.add(topic)

    def refresh(self, topic: str) -> None:
        """Do the same as `forget`, and ask a name server now, in the background."""
        self.forget(topic)
        self._refresh_soon(topic)

    def address(self, broker: str) -> str:
        """Return the address of BROKER: that of its master, as far as it is known. Raises RouteNotFound."""
        try:
            return self._places[broker].address
        except KeyError:
            known = ", ".join(sorted(self._places)) or "none"
            raise errors.RouteNotFound(
                f"broker {broker!r} is unknown: the known brokers are {known}", broker=broker
            ) from None

    async def brokers(self) -> dict[str, str]:
        """Ask a name server for all brokers; return their addresses by name."""
        reply = await self._name_servers.ask("Cluster", pb.ClusterRequest(), pb.ClusterReply)
        return self._learn(reply.brokers)

    def knows(self, broker: str) -> bool:
        """Return whether the address of BROKER is known."""
        return broker in self._places

    def is_replicated(self, broker: str) -> bool:
        """Return whether BROKER is a replica set, so that another replica may become master."""
        place = self._places.get(broker)
        return place is not None and bool(place.replicas)

    def epoch(self, broker: str) -> int | None:
        """Return the highest known epoch of BROKER's master; 0: no master is known; None: it is not a replica set."""
        place = self._places.get(broker)
        return place.epoch if place is not None and place.replicas else None

    def breaks(self, broker: str) -> int:
        """Return how often requests to BROKER broke. While this does not change, its master has not restarted."""
        return self._breaks[broker]

    def later_master(self, broker: str, address: str, epoch: int) -> errors.MasterFenced | None:
        """Return an error if BROKER has another master than ADDRESS in an epoch after EPOCH, else None."""
        place = self._places.get(broker)
        if place is None or place.epoch <= epoch or place.master == address:
            return None
        return errors.MasterFenced(
            f"{address} does not answer, and {place.master} is the master of {broker} in epoch {place.epoch}",
            broker=broker,
            master=place.master,
            epoch=str(place.epoch),
        )

    def others(self, broker: str) -> tuple[str, ...]:
        """Return the addresses of the replicas of BROKER, except the one that counts as master."""
        place = self._places.get(broker)
        return () if place is None else tuple(a for a in place.replicas if a != place.address)

    def note_error(self, broker: str, address: str, error: errors.PocketMQError) -> bool:
        """Note the ERROR of a request to BROKER at ADDRESS. Return whether to retry at once at the new address."""
        if isinstance(error, _BREAKS):
            self._breaks[broker] += 1
        place = self._places.get(broker)
        if place is None or not address:
            return False
        if isinstance(error, errors.MasterFenced) and error.details.get("broker") == broker:
            return self._redirected(place, address, error.details)
        lost = isinstance(error, errors.ConnectionLost | errors.RequestTimeout)
        if lost and place.replicas and place.address == address:
            place.address = _next(place.replicas, address)
        return False

    def _redirected(self, place: _Place, asked: str, details: dict[str, str]) -> bool:
        master, epoch = details.get("master", ""), details.get("epoch", "")
        if not master or not epoch.isdecimal() or len(epoch) > _DIGITS_MAX:
            return False
        if int(epoch) > place.epoch:
            place.epoch, place.master = int(epoch), master
        if place.address == asked:
            place.address = place.master or asked
        return place.address != asked

    def _learn(self, brokers: Iterable[pb.BrokerData]) -> dict[str, str]:
        """Note BROKERS from a name server; return the addresses of those that have a master or may get one."""
        addresses: dict[str, str] = {}
        for data in brokers:
            name, master = data.broker_name, data.addresses.get(_MASTER, "")
            if data.replicas:
                addresses[name] = self._learn_replicas(data, master)
            elif master:
                self._places[name] = _Place(master)
                addresses[name] = master
        return addresses

    def _learn_replicas(self, data: pb.BrokerData, master: str) -> str:
        replicas = tuple(replica.address for replica in data.replicas)
        place = self._places.setdefault(data.broker_name, _Place(master or replicas[0]))
        epoch = max(
            (replica.epoch for replica in data.replicas if replica.role == pb.MASTER), default=0
        )
        # Keep the known master even if the name server does not list it now, so that it is found when it is back.
        place.replicas = replicas if place.master in ("", *replicas) else (place.master, *replicas)
        if master and epoch > place.epoch:
            place.epoch, place.master, place.address = epoch, master, master
        elif place.address not in place.replicas:
            place.address = place.master or replicas[0]
        return place.address


def _next(replicas: Collection[str], address: str) -> str:
    """Return the address to try after ADDRESS: the next of REPLICAS, and the first after the last."""
    ring = list(replicas)
    if address not in ring:
        return ring[0] if ring else address
    return ring[(ring.index(address) + 1) % len(ring)]


def _interleaved(topic: str, counts: dict[str, int]) -> tuple[Queue, ...]:
    """Return COUNTS[broker] queues of each broker, sorted by number, then broker."""
    places = sorted((number, name) for name, count in counts.items() for number in range(count))
    return tuple(Queue(topic, name, number) for number, name in places)
