"""Brokers that are named themselves: what name servers would say of them is put together from their own answers.

A broker that cannot be reached is left out, unless all are. Addresses are those that were given, not those under which
brokers register, so that this works through forwarded ports. Not thread-safe: the client's event loop owns it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from ....client.connections import BROKER, NAME_SERVER, Connection, Connections
from ....client.streams import Conversation
from ....proto.errors import (
    ConnectionLost,
    PocketMQError,
    RequestTimeout,
    TopicNotFound,
    Unsupported,
)
from ....proto.gen import pocketmq_v1_pb2 as pb

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)

_MASTER = 0


class EndpointConnections:
    """Connections by address over INNER, on which the brokers at ADDRESSES answer for name servers as well."""

    def __init__(self, inner: Connections, addresses: tuple[str, ...], timeout_ms: int) -> None:
        self._inner = inner
        self._addresses = addresses
        self._timeout_ms = timeout_ms

    def to(self, address: str) -> Connection:
        return _Endpoint(self._inner.to(address), self)

    async def close(self) -> None:
        await self._inner.close()

    async def answer(self, method: str, request: Any) -> Message:
        """Return what a name server would answer to METHOD."""
        if method == "Cluster":
            return pb.ClusterReply(brokers=(await self._brokers()).values())
        if method == "Route":
            routes = [await self._route(topic) for topic in request.topics]
            return pb.RouteReply(routes=[route for route in routes if route.queues])
        if method == "ListTopics":
            return pb.TopicListReply(topics=await self._topics(request.include_system))
        raise Unsupported(f"brokers do not answer {method} for name servers")

    async def _brokers(self) -> dict[str, pb.BrokerData]:
        """Return the brokers that can be reached, by address."""
        found: dict[str, pb.BrokerData] = {}
        last: PocketMQError | None = None
        for address in self._addresses:
            try:
                status = await self._ask(
                    address, "Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply
                )
            except (ConnectionLost, RequestTimeout) as error:
                last = error
                continue
            found[address] = pb.BrokerData(
                cluster=status.cluster,
                broker_name=status.broker_name,
                addresses={_MASTER: address},
            )
        if last is not None and not found:
            raise last
        return found

    async def _route(self, topic: str) -> pb.TopicRoute:
        route = pb.TopicRoute(topic=topic)
        for address, broker in (await self._brokers()).items():
            request = pb.DescribeTopicRequest(topic=topic)
            try:
                config = (
                    await self._ask(address, "DescribeTopic", request, pb.DescribeTopicReply)
                ).topic
            except TopicNotFound:
                continue
            route.brokers.append(broker)
            route.queues.add(
                broker_name=broker.broker_name,
                read_queues=config.read_queues,
                write_queues=config.write_queues,
                permission=config.permission,
            )
        return route

    async def _topics(self, include_system: bool) -> list[str]:
        names: set[str] = set()
        for address in await self._brokers():
            request = pb.BrokerTopicsRequest(include_system=include_system)
            reply = await self._ask(address, "ListTopics", request, pb.BrokerTopicsReply)
            names.update(topic.name for topic in reply.topics)
        return sorted(names)

    async def _ask(
        self, address: str, method: str, request: Message, reply_type: type[Reply]
    ) -> Reply:
        connection = self._inner.to(address)
        return await connection.call(BROKER + method, request, reply_type, self._timeout_ms)


class _Endpoint:
    """The way to one broker, INNER, which asks ALL brokers what is a name server's to answer."""

    def __init__(self, inner: Connection, all_brokers: EndpointConnections) -> None:
        self._inner = inner
        self._all = all_brokers
        self.address = inner.address

    async def call(
        self, path: str, request: Message, reply_type: type[Reply], timeout_ms: float
    ) -> Reply:
        if path.startswith(NAME_SERVER):
            answer = await self._all.answer(path.removeprefix(NAME_SERVER), request)
            assert isinstance(answer, reply_type)
            return answer
        return await self._inner.call(path, request, reply_type, timeout_ms)

    async def produce(self, run: pb.ProduceRun, timeout_ms: float) -> pb.ProduceReply:
        return await self._inner.produce(run, timeout_ms)

    async def post(
        self, run: pb.ProduceRun, timeout_ms: float, refused: Callable[[PocketMQError], None]
    ) -> None:
        await self._inner.post(run, timeout_ms, refused)

    async def fetch(self, request: pb.FetchRequest, timeout_ms: float) -> pb.FetchReply:
        return await self._inner.fetch(request, timeout_ms)

    def listen(self, listener: pb.TransactionListener) -> AsyncIterator[pb.TransactionCheck]:
        return self._inner.listen(listener)

    def converse(
        self, path: str, request_type: type[Request], reply_type: type[Reply]
    ) -> Conversation[Request, Reply]:
        return self._inner.converse(path, request_type, reply_type)

    async def close(self) -> None:
        await self._inner.close()
