"""In-process connection of an admin to its broker: it calls the broker's methods without a network.

Handlers check permissions as for any client: each call has the address and the signature of the sender of the HTTP
request (CALLER). Requests that are for a name server (brokers, routes) are answered from the broker's own state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from ...client.connections import BROKER, NAME_SERVER
from ...client.streams import Conversation
from ...proto.errors import PocketMQError, RequestTimeout, Unsupported
from ...proto.errors_wire import from_wire, ours
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import LATER, Call, MethodTable, RpcError, Stream

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)


class HttpCaller(NamedTuple):
    """The sender of an HTTP request, for the guard. METADATA has a signature if there are users."""

    peer: str
    is_secure: bool = False
    metadata: Mapping[str, str] = {}
    certificate_names: Sequence[str] = ()


#: The sender of the current HTTP request.
CALLER: Final[ContextVar[HttpCaller]] = ContextVar("CALLER")


class _Asker:
    """Receives the answer to one call."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def settle(self, message: Message) -> None:
        """Take MESSAGE as the answer, if it is the first."""
        if not self.answer.done():
            copy = type(message)()
            copy.CopyFrom(message)
            self.answer.set_result(copy)

    def refuse(self, error: PocketMQError) -> None:
        """Take ERROR as the answer."""
        if not self.answer.done():
            self.answer.set_exception(error)


class _LocalCall(Call):
    """A unary call with additional METADATA; ASKER gets the answer."""

    __slots__ = ("_asker", "_caller", "_metadata")

    def __init__(self, asker: _Asker, metadata: Mapping[str, str]) -> None:
        super().__init__()
        self._asker = asker
        self._caller = CALLER.get()
        self._metadata = {**metadata, **self._caller.metadata}

    @property
    def peer(self) -> str:
        return self._caller.peer

    @property
    def is_secure(self) -> bool:
        return self._caller.is_secure

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._metadata

    @property
    def deadline_ms(self) -> int | None:
        return None

    def add_trailing(self, name: str, value: str) -> None:
        """Ignore it: only clients over a network read it."""

    def reply(self, message: Message) -> None:
        self._asker.settle(message)

    def fail(self, error: RpcError) -> None:
        self._asker.refuse(ours(error))


class _LocalStream(Stream):
    """A stream with one request; ASKER gets the first answer."""

    __slots__ = ("_asker", "_caller")

    def __init__(self, asker: _Asker) -> None:
        super().__init__()
        self._asker = asker
        self._caller = CALLER.get()

    @property
    def peer(self) -> str:
        return self._caller.peer

    @property
    def is_secure(self) -> bool:
        return self._caller.is_secure

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._caller.metadata

    @property
    def deadline_ms(self) -> int | None:
        return None

    @property
    def queued_bytes(self) -> int:
        return 0

    def add_trailing(self, name: str, value: str) -> None:
        """Ignore it: only clients over a network read it."""

    def send(self, message: Message) -> None:
        self._asker.settle(message)

    def finish(self) -> None:
        self._asker.refuse(Unsupported("the stream ended without an answer: ask again"))

    def fail(self, error: RpcError) -> None:
        self._asker.refuse(ours(error))

    async def drained(self) -> None:
        """Return: nothing is queued."""


class LocalConnection:
    """A `Connection` to the broker with the methods of TABLE."""

    address = "local:1"

    def __init__(self, table: MethodTable) -> None:
        self._methods = {method.path: method for method in table}
        self._named: dict[str, Callable[[Any], Any]] = {
            "Cluster": self._cluster,
            "Route": self._route,
            "ListTopics": self._topics,
        }

    async def call(
        self,
        path: str,
        request: Message,
        reply_type: type[Reply],
        timeout_ms: float,
        metadata: Mapping[str, str] | None = None,
    ) -> Reply:
        """Call the unary method at PATH with METADATA; return its answer."""
        if path.startswith(NAME_SERVER):
            found: Reply = await self._named[path.removeprefix(NAME_SERVER)](request)
            return found
        method = self._methods.get(path)
        if method is None:
            raise Unsupported(f"{path} is not served here: ask another server, or a newer one")
        asker = _Asker()
        async with _within(timeout_ms, path):
            answer = method.handler(request, _LocalCall(asker, metadata or {}))
            if isawaitable(answer):
                answer = await answer
            if answer is LATER:
                answer = await asker.answer
        assert isinstance(answer, reply_type)
        return answer

    async def fetch(self, request: pb.FetchRequest, timeout_ms: float) -> pb.FetchReply:
        """Return the records for REQUEST. Raises the error of the broker."""
        reply = await self._exchange("Fetch", request, timeout_ms)
        assert isinstance(reply, pb.FetchReply)
        if reply.HasField("error"):
            raise from_wire(reply.error)
        return reply

    async def produce(self, run: pb.ProduceRun, timeout_ms: float) -> pb.ProduceReply:
        """Return the acknowledgement of RUN. Raises the error of the broker."""
        reply = await self._exchange("Produce", run, timeout_ms)
        assert isinstance(reply, pb.ProduceReply)
        if reply.HasField("error"):
            raise from_wire(reply.error)
        return reply

    async def _exchange(self, name: str, request: Message, timeout_ms: float) -> Message:
        asker = _Asker()
        receiver = self._methods[BROKER + name].handler(_LocalStream(asker))
        try:
            async with _within(timeout_ms, BROKER + name):
                held = receiver.on_message(request)
                answer = await asker.answer
                if held is not None:
                    await held
                return answer
        finally:
            receiver.on_close()

    async def post(
        self, run: pb.ProduceRun, timeout_ms: float, refused: Callable[[PocketMQError], None]
    ) -> None:
        """Refuse: in the broker every send is acknowledged."""
        raise _not_within("runs without a reply")

    def listen(self, listener: pb.TransactionListener) -> AsyncIterator[pb.TransactionCheck]:
        """Refuse: the console resolves no transactions."""
        raise _not_within("listeners of transactions")

    def converse(
        self, path: str, request_type: type[Request], reply_type: type[Reply]
    ) -> Conversation[Request, Reply]:
        """Refuse: group members have their own connections."""
        raise _not_within("members of groups")

    async def close(self) -> None:
        """Do nothing: there is nothing open."""

    async def _data(self) -> pb.BrokerData:
        status = await self._ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)
        return pb.BrokerData(
            cluster=status.cluster,
            broker_name=status.broker_name,
            addresses={0: self.address},
        )

    async def _cluster(self, request: pb.ClusterRequest) -> pb.ClusterReply:
        return pb.ClusterReply(brokers=[await self._data()])

    async def _route(self, request: pb.RouteRequest) -> pb.RouteReply:
        data = await self._data()
        reply = pb.RouteReply()
        for topic in request.topics:
            try:
                described = await self._ask(
                    "DescribeTopic", pb.DescribeTopicRequest(topic=topic), pb.DescribeTopicReply
                )
            except PocketMQError:
                continue  # Unknown topics are left out.
            found = described.topic
            queues = pb.QueueData(
                broker_name=data.broker_name,
                read_queues=found.read_queues,
                write_queues=found.write_queues,
                permission=found.permission,
                type=found.type,
            )
            reply.routes.append(pb.TopicRoute(topic=topic, queues=[queues], brokers=[data]))
        return reply

    async def _topics(self, request: pb.TopicListRequest) -> pb.TopicListReply:
        asked = pb.BrokerTopicsRequest(include_system=request.include_system)
        found = await self._ask("ListTopics", asked, pb.BrokerTopicsReply)
        return pb.TopicListReply(topics=[one.name for one in found.topics])

    async def _ask(self, name: str, request: Message, reply_type: type[Reply]) -> Reply:
        return await self.call(BROKER + name, request, reply_type, 5_000)


class LocalConnections:
    """A `Connections` that returns CONNECTION for each address."""

    def __init__(self, connection: LocalConnection) -> None:
        self._connection = connection

    def to(self, address: str) -> LocalConnection:
        """Return the connection."""
        return self._connection

    async def close(self) -> None:
        """Do nothing: there is nothing open."""


@asynccontextmanager
async def _within(timeout_ms: float, path: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            yield
    except TimeoutError:
        raise RequestTimeout(
            f"{path} was not answered within {timeout_ms:g} ms: ask again"
        ) from None


def _not_within(what: str) -> Unsupported:
    return Unsupported(f"{what} are not available in the console: connect to the broker")
