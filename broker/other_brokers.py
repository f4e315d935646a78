"""The other brokers of the cluster, found through the name servers: their queues, and calls that belong to them.

Routes for official clients name the queues of a topic at all brokers. If a send creates a topic here, the broker
creates it at the other brokers too. If a recall or the end of a transaction reaches the wrong broker, it is forwarded.

An answer of the name servers is used for FRESH_MS. Callers that need the same topic at once share one request. The
broker waits up to TIMEOUT_MS for each name server, and starts with the one that answered last. While none answers, the
last answer remains valid: brokers stay in routes if all name servers are down. Limit: TOPICS_MAX topics, the most
recently used. The event loop owns all of this.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from ..proto.errors import (
    ConnectionLost,
    InvalidArgument,
    PocketMQError,
    TopicExists,
    TopicNotFound,
    TransactionNotFound,
)
from ..proto.errors_wire import from_rpc_error
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.recall_handle import decode_handle
from ..proto.rpc import Call, RpcError
from ..proto.rpc.channels import CallFailed, Channel, Dial
from ..store.format.state_tables import TopicConfig

logger = logging.getLogger(__name__)

FRESH_MS: Final = 1_000
TIMEOUT_MS: Final = 1_000
TOPICS_MAX: Final = 10_000
_CLUSTER: Final = "/pocketmq.v1.NameServer/Cluster"
_ROUTE: Final = "/pocketmq.v1.NameServer/Route"
_RECALL: Final = "/pocketmq.v1.Broker/Recall"
_CREATE: Final = "/pocketmq.v1.Broker/CreateTopic"
_END: Final = "/pocketmq.v1.Broker/EndTransaction"
_FORWARD_TIMEOUT_S: Final = 3.0
_MASTER: Final = 0
Reply = TypeVar("Reply", bound=Message)


class RemoteQueues(NamedTuple):
    """Queues of a topic at another broker. TYPE is the topic's type there; "" if its name server does not report it.

    ADDRESSES: the master's first. Of a replica set, all live replicas: each leads to the master.
    """

    broker: str
    addresses: tuple[str, ...]
    read_queues: int
    write_queues: int
    permission: int
    type: str


Tell = Callable[[Sequence[RemoteQueues]], None]


class _Known(NamedTuple):
    queues: Sequence[RemoteQueues]
    asked_ms: int


class OtherBrokers:
    """The other brokers of the cluster, from the name servers at ADDRESSES (none: no other brokers).

    NAME is this broker's name, NOW_MS the machine's time.
    """

    def __init__(
        self, name: str, addresses: Sequence[str], dial: Dial, now_ms: Callable[[], int]
    ) -> None:
        self._name = name
        self._addresses = addresses
        self._dial = dial
        self._now_ms = now_ms
        #: "host:port" of all other brokers, as of the last answer.
        self.addresses: Collection[str] = ()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, list[Tell]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: dict[str, Channel] = {}
        self._open = AsyncExitStack()
        self._last_good = 0

    def known(self, topic: str) -> Sequence[RemoteQueues] | None:
        """Return the queues of TOPIC at other brokers; None: call `ask`."""
        if not self._addresses:
            return ()
        known = self._known.get(topic)
        if known is None or self._now_ms() - known.asked_ms >= FRESH_MS:
            return None
        return known.queues

    def forget(self, topic: str) -> None:
        """Forget TOPIC: it has changed here, and perhaps elsewhere."""
        known = self._known.get(topic)
        if known is not None:
            self._known[topic] = known._replace(asked_ms=self._now_ms() - FRESH_MS)

    def ask(self, topic: str, tell: Tell) -> None:
        """Look up TOPIC at the name servers, then call TELL with the result."""
        asking = self._asking.get(topic)
        if asking is not None:
            asking.append(tell)
            return
        self._asking[topic] = [tell]
        self._spawn(self._ask(topic))

    async def _ask(self, topic: str) -> None:
        found = await self._told(topic)
        before = self._known.pop(topic, None)
        if found is None:
            found = () if before is None else before.queues
        self._known[topic] = _Known(found, self._now_ms())
        if len(self._known) > TOPICS_MAX:
            self._known.popitem(last=False)
        for tell in self._asking.pop(topic):
            tell(found)

    async def _told(self, topic: str) -> Sequence[RemoteQueues] | None:
        """Return the result of the first name server that answers; None if none does."""
        found = await self._routes_and_cluster(topic)
        if found is None:
            return None
        return [queues for route in found[0].routes for queues in self._others(route)]

    async def _routes_and_cluster(self, topic: str) -> tuple[pb.RouteReply, pb.ClusterReply] | None:
        """Return the route of TOPIC and all brokers, from the first name server that answers; None if none does."""
        count = len(self._addresses)
        for step in range(count):
            place = (self._last_good + step) % count
            address = self._addresses[place]
            try:
                channel = await self._channel(address)
                routes, cluster = await asyncio.gather(
                    _answer(channel, _ROUTE, pb.RouteRequest(topics=[topic]), pb.RouteReply),
                    _answer(channel, _CLUSTER, pb.ClusterRequest(), pb.ClusterReply),
                )
            except CallFailed as error:
                logger.debug("no route from nameserver=%s reason=%s", address, error)
                continue
            self._last_good = place
            self.addresses = {
                other
                for one in cluster.brokers
                if one.broker_name != self._name
                for other in one.addresses.values()
            }
            return routes, cluster
        return None

    def _others(self, route: pb.TopicRoute) -> Iterator[RemoteQueues]:
        """Yield the reachable queues of other brokers in ROUTE, by broker name."""
        addresses = {one.broker_name: _addresses(one) for one in route.brokers}
        for one in sorted(route.queues, key=lambda queues: queues.broker_name):
            known = addresses.get(one.broker_name)
            if known and one.broker_name != self._name:
                yield RemoteQueues(
                    one.broker_name,
                    known,
                    one.read_queues,
                    one.write_queues,
                    one.permission,
                    one.type,
                )

    def create_topic(self, made: TopicConfig) -> None:
        """Create the topic MADE, which a send created here, at the other brokers of the cluster."""
        if self._addresses:
            topic = pb.TopicConfig(
                name=made.name,
                read_queues=made.read_queues,
                write_queues=made.write_queues,
                permission=made.permission,
            )
            self._spawn(self._create_topic(pb.CreateTopicRequest(topic=topic)))

    async def _create_topic(self, request: pb.CreateTopicRequest) -> None:
        found = await self._routes_and_cluster(request.topic.name)
        brokers = () if found is None else found[1].brokers
        cluster = next((one.cluster for one in brokers if one.broker_name == self._name), "")
        await asyncio.gather(
            *(
                self._create_at(one, request)
                for one in brokers
                if one.broker_name != self._name
                and one.cluster == cluster
                and _MASTER in one.addresses
            )
        )

    async def _create_at(self, broker: pb.BrokerData, request: pb.CreateTopicRequest) -> None:
        try:
            await self._asked(broker.addresses[_MASTER], _CREATE, request, pb.TopicReply)
        except TopicExists:
            pass  # A producer sent to that broker too.
        except PocketMQError as error:
            logger.warning(
                "topic not created at another broker topic=%s broker=%s reason=%s",
                request.topic.name,
                broker.broker_name,
                error.message,
            )

    def forward_recall(self, request: pb.RecallRequest, call: Call) -> bool:
        """Forward CALL to the broker in the handle of REQUEST; return whether that is a known other broker."""
        if not self._addresses:
            return False
        try:
            broker = decode_handle(request.handle).broker
        except InvalidArgument:
            return False
        if broker == self._name:
            return False
        self._spawn(self._forward_recall(broker, request, call))
        return True

    async def _forward_recall(self, broker: str, request: pb.RecallRequest, call: Call) -> None:
        found = await self._told(request.topic) or ()
        address = next((one.addresses[0] for one in found if one.broker == broker), None)
        try:
            if address is None:
                raise ConnectionLost(
                    f"the handle is of broker {broker!r}, which is not registered with topic {request.topic!r} now:"
                    " try again later",
                    broker=broker,
                )
            call.reply(await self._asked(address, _RECALL, request, pb.RecallReply))
        except PocketMQError as error:
            call.fail(error)

    def forward_end(self, request: pb.EndTransactionRequest, call: Call, unknown: RpcError) -> None:
        """Forward CALL to the broker that has its half message.

        A transaction id names no broker, so all brokers with the topic are asked, one after the other. UNKNOWN is the
        answer if none has the topic.
        """
        self._spawn(self._forward_end(request, call, unknown))

    async def _forward_end(
        self, request: pb.EndTransactionRequest, call: Call, unknown: RpcError
    ) -> None:
        found = await self._told(request.topic) if self._addresses else ()
        answer = unknown
        if found is None:
            answer = ConnectionLost(
                f"{unknown.message}; no name server returned the other brokers with topic {request.topic!r}:"
                " try again later",
                topic=request.topic,
            )
        for other in found or ():
            try:
                reply = await self._asked(other.addresses[0], _END, request, pb.EndTransactionReply)
            except TopicNotFound:
                continue
            except PocketMQError as error:
                # A broker that does not answer may have the half message: that matters more than
                # another broker's refusal.
                if answer is unknown or not isinstance(error, TransactionNotFound):
                    answer = error
                continue
            call.reply(reply)
            return
        call.fail(answer)

    async def _asked(
        self, address: str, method: str, request: Message, reply_type: type[Reply]
    ) -> Reply:
        """Return the answer of the broker at ADDRESS; raise its error, or ConnectionLost if it does not answer."""
        try:
            async with self._dial(address) as channel:
                return await _answer(channel, method, request, reply_type, _FORWARD_TIMEOUT_S)
        except CallFailed as error:
            raise from_rpc_error(error) from error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = await self._open.enter_async_context(self._dial(address))
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        """Stop asking name servers, and cancel open requests."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._channels.clear()
        await self._open.aclose()


async def _answer(
    channel: Channel,
    method: str,
    request: Message,
    reply_type: type[Reply],
    timeout_s: float = TIMEOUT_MS / 1000,
) -> Reply:
    ask = channel.unary_unary(method, type(request).SerializeToString, reply_type.FromString)
    reply: Reply = await ask(request, timeout=timeout_s)
    return reply


def _addresses(broker: pb.BrokerData) -> tuple[str, ...]:
    """Return the addresses of BROKER, its master first; empty if it has no master, and no replicas that lead to one."""
    master = broker.addresses.get(_MASTER, "")
    others = (one.address for one in broker.replicas if one.address != master)
    return (*([master] if master else ()), *others)
