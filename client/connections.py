"""Connections to name servers and brokers: one gRPC channel per address, with a stream for sends and one for fetches.

`Connections` is the interface for the rest of the client; `GrpcConnections` is the real one, and tests bring their own.
A channel connects at the first call, and at the next one after a loss; calls that cannot be made fail with
ConnectionLost. Not thread-safe: the client's event loop owns everything here.

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
from ..proto.rpc.channels import (
    CallFailed,
    ChannelClosed,
    Dial,
    StreamMethod,
    UnaryMethod,
)
from ..proto.tls import Trust
from .streams import Conversation, Exchange, GrpcConversation, Reply, Request
from .tasks import Tasks

BROKER: Final = "/pocketmq.v1.Broker/"
#: A channel over which nothing has gone for so long is replaced: its server may be back at another address of the name.
REDIAL_S: Final = 5.0
NAME_SERVER: Final = "/pocketmq.v1.NameServer/"


class Connection(Protocol):
    """A way to one server."""

    address: str

    async def call(
        self, path: str, request: Message, reply_type: type[Reply], timeout_ms: float
    ) -> Reply:
        """Return the answer of the unary method at PATH."""
        ...

    async def produce(self, run: pb.ProduceRun, timeout_ms: float) -> pb.ProduceReply:
        """Return the acknowledgement of RUN; raise what the broker refused it with.

        Raises ConnectFailed if RUN has not left; RequestTimeout or ConnectionLost if it has and there is no answer.
        """
        ...

    async def post(
        self,
        run: pb.ProduceRun,
        timeout_ms: float,
        refused: Callable[[errors.PocketMQError], None],
    ) -> None:
        """Return once RUN, which asks for no reply, has left; raise as `produce`.

        REFUSED is called with the errors of runs that the broker refuses all the same.
        """
        ...

    async def fetch(self, request: pb.FetchRequest, timeout_ms: float) -> pb.FetchReply:
        """Return the records that REQUEST asks for; raise what the broker refused it with."""
        ...

    def listen(self, listener: pb.TransactionListener) -> AsyncIterator[pb.TransactionCheck]:
        """Yield the checks that LISTENER is sent, until the broker ends it; raise ConnectionLost, or what ended it."""
        ...

    def converse(
        self, path: str, request_type: type[Request], reply_type: type[Reply]
    ) -> Conversation[Request, Reply]:
        """Open a stream of its own at PATH."""
        ...

    async def close(self) -> None:
        """Break off everything under way."""
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

    def __init__(self, address: str, tasks: Tasks, dial: Dial) -> None:
        self.address = address
        self._channel = dial(address)
        #: What calls are refused with once it is closed.
        self._over: errors.PocketMQError = errors.ClientClosed(
            f"the connection to {address} was closed"
        )
        self._unary: dict[str, UnaryMethod] = {}
        #: Since when nobody was reached, by the loop's time; None: somebody was.
        self._unreached_since: float | None = None
        #: Was nobody reached for REDIAL_S, though that was tried?
        self.is_stuck = False
        #: "host:port" as it is in the records; the first reply of a stream brings it.
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
            self._unasked,
        )
        #: Called with refusals for which no caller waits.
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
        """Note whether somebody is reached by what is asked meanwhile: an answer that refuses it is one, too."""
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
        """Return ERROR; one that gRPC made says nothing of the address, so it gets a sentence that does."""
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
                await self._produce.tell(run, timeout_ms)
        except errors.PocketMQError as error:
            raise _unanswered(error) from None

    def _unasked(self, reply: pb.ProduceReply) -> None:
        """Take a reply that nobody waits for: the refusal of a silent run, or one that came too late."""
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
        except asyncio.InvalidStateError:  # It ended before the first word.
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

    async def give_up(self) -> None:
        """Break off everything under way as lost, and refuse what is asked from now on: another takes its place."""
        self._over = errors.ConnectionLost(
            f"{self.address} was not reached for {REDIAL_S:.0f} s and is dialled anew",
            address=self.address,
        )
        await self.close()

    async def close(self) -> None:
        self._produce.close(self._over)
        self._fetch.close(self._over)
        await self._channel.close(None)


def _unanswered(error: errors.PocketMQError) -> errors.PocketMQError:
    """Return what ERROR, which ended a stream, is for a run that had left: no answer, whatever the broker said."""
    if error.retriable and not isinstance(error, errors.ConnectionLost | errors.RequestTimeout):
        return errors.ConnectionLost(f"no answer: {error.message}", **error.details)
    return error


class GrpcConnections:
    """Connections by address, made when they are first asked for."""

    def __init__(self, dial: Dial | None = None) -> None:
        """DIAL opens the channels; None: as the environment says, in plaintext or TLS. Raises ConfigError."""
        self._dial = dial or Trust().or_environment().dial()
        self._tasks = Tasks()
        self._by_address: dict[str, GrpcConnection] = {}
        self._closed = False

    def to(self, address: str) -> GrpcConnection:
        if self._closed:
            raise errors.ClientClosed(f"the client was closed; {address} is not connected any more")
        connection = self._by_address.get(address)
        if connection is not None and connection.is_stuck:
            self._tasks.spawn(connection.give_up())
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
