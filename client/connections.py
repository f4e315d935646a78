"""Connections to name servers and brokers: one gRPC channel per address, with a stream for sends and one for fetches.

`Connections` is the interface for the rest of the client. `GrpcConnections` implements it; tests have other
implementations. A channel connects at the first call, and again at the next call after a loss. Calls that cannot be
made raise ConnectionLost. Not thread-safe: the client's event loop owns everything here.

    connections = GrpcConnections()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from google.protobuf.message import Message

from ..proto import errors
from ..proto.errors_wire import from_rpc_error, from_wire
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.rpc.channels import CallFailed, ChannelClosed, Dial, StreamMethod, UnaryMethod
from ..proto.tls import Trust
from .streams import Conversation, Exchange, GrpcConversation, Reply, Request
from .tasks import TaskGroup

BROKER: Final = "/pocketmq.v1.Broker/"
#: A channel that reached no server for this time is replaced, because the host name may have another address now.
REDIAL_S: Final = 5.0
NAME_SERVER: Final = "/pocketmq.v1.NameServer/"


class Connection(Protocol):
    """A connection to one server."""

    address: str

    async def call(
        self, path: str, request: Message, reply_type: type[Reply], timeout_ms: float
    ) -> Reply:
        """Call the unary method at PATH; return its reply."""
        ...

    async def produce(self, run: pb.ProduceRun, timeout_ms: float) -> pb.ProduceReply:
        """Send RUN; return its acknowledgement. Raises the broker's error.

        Raises ConnectFailed if RUN was not sent; RequestTimeout or ConnectionLost if it was sent and there is no reply.
        """
        ...

    async def post(
        self,
        run: pb.ProduceRun,
        timeout_ms: float,
        refused: Callable[[errors.PocketMQError], None],
    ) -> None:
        """Send RUN, which requests no reply; return when it was sent. Raises the same errors as `produce`.

        REFUSED is called with the error if the broker refuses it nevertheless.
        """
        ...

    async def fetch(self, request: pb.FetchRequest, timeout_ms: float) -> pb.FetchReply:
        """Send REQUEST; return the reply with its records. Raises the broker's error."""
        ...

    def listen(self, listener: pb.TransactionListener) -> AsyncIterator[pb.TransactionCheck]:
        """Yield the transaction checks for LISTENER. Raises ConnectionLost, or the error that ended the stream."""
        ...

    def converse(
        self, path: str, request_type: type[Request], reply_type: type[Reply]
    ) -> Conversation[Request, Reply]:
        """Open a separate stream at PATH."""
        ...

    async def close(self) -> None:
        """Close the connection; pending requests fail."""
        ...


class Connections(Protocol):
    """Connections by address."""

    def to(self, address: str) -> Connection:
        """Return the connection to ADDRESS, "host:port"."""
        ...

    async def close(self) -> None:
        """Close all."""
        ...


class GrpcConnection:
    """A gRPC channel, and the two long-lived streams on it."""

    def __init__(self, address: str, tasks: TaskGroup, dial: Dial) -> None:
        self.address = address
        self._channel = dial(address)
        #: The error of calls after it was closed.
        self._over: errors.PocketMQError = errors.ClientClosed(
            f"the connection to {address} was closed"
        )
        self._unary: dict[str, UnaryMethod] = {}
        #: Since when the server cannot be reached, by the loop's time; None: the last call reached it.
        self._unreached_since: float | None = None
        #: Whether calls did not reach the server for REDIAL_S.
        self.is_stuck = False
        #: The broker's "host:port" as in the records. The first reply of a stream has it.
        self._store_host = ""
        self._produce: Exchange[pb.ProduceRun, pb.ProduceReply] = Exchange(
            address,
            self._channel.stream_stream(
                BROKER + "Produce",
                request_serializer=pb.ProduceRun.SerializeToString,
                response_deserializer=pb.ProduceReply.FromString,
            ),
            "run_id",
            tasks,
            self._on_unexpected,
        )
        #: Called with the errors of requests that were sent with `post`.
        self._refused: Callable[[errors.PocketMQError], None] | None = None
        self._fetch: Exchange[pb.FetchRequest, pb.FetchReply] = Exchange(
            address,
            self._channel.stream_stream(
                BROKER + "Fetch",
                request_serializer=pb.FetchRequest.SerializeToString,
                response_deserializer=pb.FetchReply.FromString,
            ),
            "fetch_id",
            tasks,
        )

    async def call(
        self, path: str, request: Message, reply_type: type[Reply], timeout_ms: float
    ) -> Reply:
        method = self._unary.get(path)
        if method is None:
            method = self._unary[path] = self._channel.unary_unary(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=reply_type.FromString,
            )
        with self._noting():
            try:
                reply: Reply = await method(request, timeout=timeout_ms / 1000)
            except ChannelClosed:
                raise self._over.with_traceback(None) from None
            except CallFailed as failure:
                raise self._explained(from_rpc_error(failure), timeout_ms) from None
        return reply

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note whether the call in this block reaches the server. An error reply of the server counts as reached."""
        try:
            yield
        except errors.ConnectionLost:
            now = asyncio.get_running_loop().time()
            if self._unreached_since is None:
                self._unreached_since = now
            else:
                self.is_stuck = now - self._unreached_since >= REDIAL_S
            raise
        except errors.PocketMQError:
            self._reached()
            raise
        self._reached()

    def _reached(self) -> None:
        self._unreached_since = None
        self.is_stuck = False

    def _explained(self, error: errors.PocketMQError, timeout_ms: float) -> errors.PocketMQError:
        """Return ERROR, with the address in its message if gRPC has made the error."""
        if isinstance(error, errors.ConnectionLost):
            return errors.ConnectionLost(
                f"cannot reach {self.address}: {error.message}", address=self.address
            )
        if isinstance(error, errors.TlsFailed):
            return errors.TlsFailed(
                f"cannot reach {self.address}: {error.message}", address=self.address
            )
        if isinstance(error, errors.RequestTimeout) and "code" in error.details:
            return errors.RequestTimeout(
                f"{self.address} did not answer within {timeout_ms:.0f} ms", address=self.address
            )
        return error

    async def produce(self, run: pb.ProduceRun, timeout_ms: float) -> pb.ProduceReply:
        try:
            with self._noting():
                reply = await self._produce.ask(run, timeout_ms)
        except errors.PocketMQError as error:
            raise _unanswered(error) from None
        if reply.error.name:
            raise from_wire(reply.error)
        if reply.store_host:
            self._store_host = reply.store_host
        else:
            reply.store_host = self._store_host
        return reply

    async def post(
        self,
        run: pb.ProduceRun,
        timeout_ms: float,
        refused: Callable[[errors.PocketMQError], None],
    ) -> None:
        self._refused = refused
        try:
            with self._noting():
                await self._produce.post(run, timeout_ms)
        except errors.PocketMQError as error:
            raise _unanswered(error) from None

    def _on_unexpected(self, reply: pb.ProduceReply) -> None:
        """Handle a reply without a waiting caller: the error of a posted request, or a late reply."""
        if reply.error.name and self._refused is not None:
            self._refused(from_wire(reply.error))

    async def fetch(self, request: pb.FetchRequest, timeout_ms: float) -> pb.FetchReply:
        with self._noting():
            reply = await self._fetch.ask(request, timeout_ms)
        if reply.error.name:
            error = from_wire(reply.error)
            error.details |= {
                "min_offset": str(reply.min_offset),
                "max_offset": str(reply.max_offset),
            }
            raise error
        return reply

    async def listen(self, listener: pb.TransactionListener) -> AsyncIterator[pb.TransactionCheck]:
        method: StreamMethod = self._channel.stream_stream(
            BROKER + "TransactionChecks",
            request_serializer=pb.TransactionListener.SerializeToString,
            response_deserializer=pb.TransactionCheck.FromString,
        )
        try:
            call = method()
        except ChannelClosed:
            raise self._over.with_traceback(None) from None
        try:
            await call.write(listener)
            async for check in call:
                yield check
        except ChannelClosed:
            raise self._over.with_traceback(None) from None
        except CallFailed as failure:
            raise self._explained(from_rpc_error(failure), 0) from None
        except asyncio.InvalidStateError:  # It ended before the first request was sent.
            raise errors.ConnectionLost(
                f"{self.address} ended the stream", address=self.address
            ) from None
        finally:
            call.cancel()

    def converse(
        self, path: str, request_type: type[Request], reply_type: type[Reply]
    ) -> Conversation[Request, Reply]:
        method: StreamMethod = self._channel.stream_stream(
            path,
            request_serializer=request_type.SerializeToString,
            response_deserializer=reply_type.FromString,
        )
        try:
            return GrpcConversation(self.address, method())
        except ChannelClosed:
            raise self._over.with_traceback(None) from None

    async def abandon(self) -> None:
        """Fail all pending and further requests with ConnectionLost: a new connection replaces this one."""
        self._over = errors.ConnectionLost(
            f"{self.address} was not reached for {REDIAL_S:.0f} s: connecting again",
            address=self.address,
        )
        await self.close()

    async def close(self) -> None:
        self._produce.close(self._over)
        self._fetch.close(self._over)
        await self._channel.close(None)


def _unanswered(error: errors.PocketMQError) -> errors.PocketMQError:
    """Return the error for a batch that was sent before ERROR ended the stream: there is no reply to it."""
    if error.retriable and not isinstance(error, errors.ConnectionLost | errors.RequestTimeout):
        return errors.ConnectionLost(f"no answer: {error.message}", **error.details)
    return error


class GrpcConnections:
    """Connections by address, created when they are first needed."""

    def __init__(self, dial: Dial | None = None) -> None:
        """DIAL opens channels; None: plaintext or TLS, as the environment says. Raises ConfigError."""
        self._dial = dial or Trust().or_environment().dial()
        self._tasks = TaskGroup()
        self._by_address: dict[str, GrpcConnection] = {}
        self._closed = False

    def to(self, address: str) -> GrpcConnection:
        if self._closed:
            raise errors.ClientClosed(f"the client is closed: it cannot connect to {address}")
        connection = self._by_address.get(address)
        if connection is not None and connection.is_stuck:
            self._tasks.spawn(connection.abandon())
            connection = None
        if connection is None:
            connection = self._by_address[address] = GrpcConnection(
                address, self._tasks, self._dial
            )
        return connection

    async def close(self) -> None:
        self._closed = True
        connections, self._by_address = list(self._by_address.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))
        await self._tasks.close()
