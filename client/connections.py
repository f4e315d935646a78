"""Connections to name servers and brokers: one gRPC channel an address, one stream for runs and one for fetches on it.

`Connections` is what the rest of the client knows; `GrpcConnections` is the real one, and tests bring their own. A
channel connects at the first call, and at the next one after a loss; calls that ask in vain fail with ConnectionLost.
Not thread-safe: the client's event loop owns everything here.

    connections = GrpcConnections()

Long-lived gRPC streams to a server: an `Exchange` of requests and numbered replies, or a `Conversation`, where both
sides speak when they like. Not thread-safe: their event loop owns them.

Requests of an exchange leave in order, many may be on their way; a reply finds its request by number. When the stream
breaks, every request without a reply fails with the same error and nothing is repeated here, because only the caller
knows whether a repetition is harmless; the next request opens a new stream.

A request that is too large to be sent is refused by itself, with MessageTooLarge, and its stream goes on.

Whether a request has *left* matters to who may repeat it: of one that has not, nothing was sent, and it fails with
ConnectFailed; of others nobody knows whether they arrived.

The number of requests on their way is the caller's to bound (one run a queue, one fetch a queue).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, overload

from google.protobuf.message import Message

from ..proto import errors
from ..proto.errors_wire import from_rpc_error, from_wire
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.rpc.channels import (
    EOF,
    CallFailed,
    ChannelClosed,
    Dial,
    StreamCall,
    StreamMethod,
    UnaryMethod,
)
from ..proto.tls import Trust
from .tasks import Tasks

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)

BROKER: Final = "/pocketmq.v1.Broker/"
#: A channel over which nothing has gone for so long is replaced: its server may be back at another address of the name.
REDIAL_S: Final = 5.0
NAME_SERVER: Final = "/pocketmq.v1.NameServer/"

#: A fetch brings at least one record, of up to 4 MiB and 64 KiB; a status may bring a recovery report.
RECEIVE_BYTES_MAX: Final = 64 * 1024 * 1024


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

        REFUSED hears of runs that the broker refuses all the same, whichever they are.
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
        #: "host:port" as it stands in the records; the first reply of a stream brings it.
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
        #: Hears of refusals that nobody waits for.
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


# ---------------------------------------------------------------- long-lived gRPC streams to a server


RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)
ReplyOut = TypeVar("ReplyOut", bound=Message, covariant=True)


class Exchange(Generic[Request, Reply]):
    """Asks over streams that OPEN_CALL() opens; NUMBER_FIELD of request and reply pairs them."""

    def __init__(
        self,
        address: str,
        open_call: Callable[..., StreamCall],
        number_field: str,
        tasks: Tasks,
        unasked: Callable[[Reply], None] | None = None,
    ) -> None:
        """UNASKED takes replies that nobody waits for."""
        self._address = address
        self._unasked = unasked
        self._open_call = open_call
        self._number_field = number_field
        self._tasks = tasks
        self._numbers = count(1)
        self._stream: _Stream[Request, Reply] | None = None
        #: What it was closed with.
        self._over: errors.PocketMQError | None = None

    async def ask(self, request: Request, timeout_ms: float) -> Reply:
        """Return the reply to REQUEST, whose number is set here.

        Raises ConnectFailed, RequestTimeout, ConnectionLost, or what the broker ended the stream with.
        """
        stream = self._live_stream()
        number = next(self._numbers)
        setattr(request, self._number_field, number)
        reply = stream.submit(number, request)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await reply
        except TimeoutError:
            if not reply.cancelled():
                return reply.result()  # It came, or failed, in the last moment.
            raise self._late(stream, number, timeout_ms) from None
        finally:
            stream.forget(number)

    async def tell(self, request: Request, timeout_ms: float) -> None:
        """Return once REQUEST, whose number is set here, has left; nobody waits for its reply. Raises as `ask`."""
        stream = self._live_stream()
        number = next(self._numbers)
        setattr(request, self._number_field, number)
        left = stream.submit(number, request, silent=True)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await left
        except TimeoutError:
            if not left.cancelled():
                return left.result()  # As in `ask`.
            raise self._late(stream, number, timeout_ms) from None
        finally:
            stream.forget(number)

    def _late(
        self, stream: _Stream[Request, Reply], number: int, timeout_ms: float
    ) -> errors.PocketMQError:
        if stream.withdraw(number):
            return errors.ConnectFailed(
                f"{self._address}: nothing could be sent within {timeout_ms:.0f} ms",
                address=self._address,
            )
        return errors.RequestTimeout(
            f"{self._address} did not answer within {timeout_ms:.0f} ms", address=self._address
        )

    def _live_stream(self) -> _Stream[Request, Reply]:
        if self._over is not None:
            raise self._over.with_traceback(None)
        if self._stream is None or self._stream.broken:
            self._stream = _Stream(
                self._address, self._open_call(), self._number_field, self._unasked
            )
            self._stream.start(self._tasks)
        return self._stream

    def close(self, error: errors.PocketMQError) -> None:
        """Break the stream off; its pending requests, and all further ones, fail with ERROR."""
        self._over = error
        if self._stream is not None:
            self._stream.break_off(error)


class _Stream(Generic[Request, Reply]):
    """One opened stream: what waits to leave, and who waits for a reply."""

    def __init__(
        self,
        address: str,
        call: StreamCall,
        number_field: str,
        unasked: Callable[[Reply], None] | None,
    ) -> None:
        self._address = address
        self._call = call
        self._number_field = number_field
        self._unasked = unasked
        #: What has not left yet, by number, in order.
        self._outgoing: dict[int, Request] = {}
        self._wake = asyncio.Event()
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        #: Who waits until a request has left, by number.
        self._leaving: dict[int, asyncio.Future[None]] = {}
        self.broken = False

    def start(self, tasks: Tasks) -> None:
        self._call.hear(self._deliver)
        tasks.spawn(self._write())
        tasks.spawn(self._hear_end())

    @overload
    def submit(self, number: int, request: Request) -> asyncio.Future[Reply]: ...
    @overload
    def submit(
        self, number: int, request: Request, *, silent: Literal[True]
    ) -> asyncio.Future[None]: ...
    def submit(
        self, number: int, request: Request, *, silent: bool = False
    ) -> asyncio.Future[Reply] | asyncio.Future[None]:
        """Let REQUEST leave; return the future of its reply, or, if SILENT, of its leaving."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        (self._leaving if silent else self._pending)[number] = future
        # What waits already comes first; who wants to hear that it has left waits for the windows.
        if silent or not self._leaves_now(number, request):
            self._outgoing[number] = request
            self._wake.set()
        return future

    def _leaves_now(self, number: int, request: Request) -> bool:
        try:
            return not self._outgoing and self._call.write_nowait(request)
        except CallFailed as failure:
            return self._is_refused(number, failure)
        except asyncio.InvalidStateError:
            return False  # The stream has ended: all who wait are told.

    def _is_refused(self, number: int, failure: CallFailed) -> bool:
        """Is FAILURE why the request with NUMBER alone is not sent (it is too large)? Then who waits for it is told."""
        if self._call.done():
            return False
        for waiting in (self._pending.get(number), self._leaving.get(number)):
            if waiting is not None and not waiting.done():
                waiting.set_exception(from_rpc_error(failure))
        return True

    def withdraw(self, number: int) -> bool:
        """Do not send the request with NUMBER; return False if it has left."""
        return self._outgoing.pop(number, None) is not None

    def forget(self, number: int) -> None:
        self._pending.pop(number, None)
        self._leaving.pop(number, None)

    def break_off(self, error: errors.PocketMQError) -> None:
        """Fail everything that waits with ERROR; the stream is of no more use."""
        if self.broken:
            return
        self.broken = True
        self._call.cancel()
        self._wake.set()
        here, self._outgoing = self._outgoing, {}
        waiting: list[tuple[int, asyncio.Future[Any]]] = []
        waiting += self._pending.items()
        waiting += self._leaving.items()
        self._pending, self._leaving = {}, {}
        for number, future in waiting:
            if not future.done():
                future.set_exception(_unsent(error) if number in here else error)

    async def _write(self) -> None:
        try:
            await self._call.wait_for_connection()  # Until then nothing leaves.
            while not self.broken:
                while self._outgoing:
                    number = next(iter(self._outgoing))
                    try:
                        await self._call.write(self._outgoing.pop(number))
                    except CallFailed as failure:
                        if self._is_refused(number, failure):
                            continue
                        raise
                    left = self._leaving.pop(number, None)
                    if left is not None and not left.done():
                        left.set_result(None)
                self._wake.clear()
                await self._wake.wait()
        except (CallFailed, asyncio.InvalidStateError):
            return  # The stream has ended; the reader tells why.

    async def _hear_end(self) -> None:
        error: errors.PocketMQError = errors.ConnectionLost(
            f"{self._address} ended the stream", address=self._address
        )
        try:
            await self._call.read()  # Replies do not come this way.
        except CallFailed as failure:
            error = from_rpc_error(failure)
        finally:
            self.break_off(_with_address(error, self._address))

    def _deliver(self, message: Reply) -> None:
        reply = self._pending.pop(getattr(message, self._number_field), None)
        if reply is None:
            if self._unasked is not None:
                self._unasked(message)
        elif not reply.done():
            reply.set_result(message)


def _unsent(error: errors.PocketMQError) -> errors.PocketMQError:
    """Return what a request fails with that had not left when its stream broke with ERROR."""
    if isinstance(error, errors.ConnectionLost) and not isinstance(error, errors.ConnectFailed):
        return errors.ConnectFailed(error.message, **error.details)
    return error


class Conversation(Protocol[RequestIn, ReplyOut]):
    """A stream in both directions."""

    async def send(self, request: RequestIn) -> None:
        """Say REQUEST; raise ConnectionLost if the stream has ended, whose reason `receive` tells."""
        ...

    async def receive(self) -> ReplyOut | None:
        """Return what the server says next; None: the stream was ended. Raises what the server ended it with."""
        ...

    def close(self) -> None:
        """End it. Nothing more comes."""
        ...


class GrpcConversation(Generic[Request, Reply]):
    """A conversation over CALL with the server at ADDRESS."""

    def __init__(self, address: str, call: StreamCall) -> None:
        self._address = address
        self._call = call
        self._is_closed = False
        #: One task at a time writes to a stream.
        self._writing = asyncio.Lock()

    async def send(self, request: Request) -> None:
        try:
            async with self._writing:
                await self._call.write(request)
        except asyncio.InvalidStateError:
            raise self._ended() from None
        except CallFailed as failure:
            # Of a stream that goes on this request alone is refused: it is too large.
            raise self._ended() if self._call.done() else from_rpc_error(failure) from None

    async def receive(self) -> Reply | None:
        try:
            reply = await self._call.read()
            return None if reply is EOF else reply
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                return None  # It was the call that was cancelled, not its reader.
            raise
        except asyncio.InvalidStateError:
            raise self._ended() from None
        except CallFailed as failure:
            raise _with_address(from_rpc_error(failure), self._address) from None

    def close(self) -> None:
        self._is_closed = True
        self._call.cancel()

    def _ended(self) -> errors.PocketMQError:
        return errors.ConnectionLost(f"{self._address} ended the stream", address=self._address)


def _with_address(error: errors.PocketMQError, address: str) -> errors.PocketMQError:
    """Return ERROR with the address that it is about, which gRPC's own sentences leave out or bury."""
    if (
        isinstance(error, errors.ConnectionLost | errors.TlsFailed)
        and "address" not in error.details
    ):
        return type(error)(f"{address}: {error.message}", **error.details, address=address)
    return error
