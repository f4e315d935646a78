"""Long-lived gRPC streams to a server. Not thread-safe: their event loop owns them.

An `Exchange` has requests and numbered replies. In a `Conversation` both sides send at any time. The requests of an
exchange are sent in order, and many may be in flight. A reply has the number of its request. When the stream breaks,
every request without a reply fails with the same error. There is no retry here, because only the caller knows whether a
retry is harmless. The next request opens a new stream.

If a request is too large to be sent, only this request fails, with MessageTooLarge, and the stream continues.

A request that was not sent fails with ConnectFailed, so the caller may retry it. Other requests may or may not have
arrived.

The caller limits the requests in flight (one batch and one fetch per queue).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

from google.protobuf.message import Message

from ..proto import errors
from ..proto.errors_wire import from_rpc_error
from ..proto.rpc.channels import EOF, CallFailed, StreamCall
from .tasks import TaskGroup

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)
ReplyOut = TypeVar("ReplyOut", bound=Message, covariant=True)


class Exchange(Generic[Request, Reply]):
    """Sends requests over streams that OPEN_CALL opens. A reply has the NUMBER_FIELD of its request."""

    def __init__(
        self,
        address: str,
        open_call: Callable[..., StreamCall],
        number_field: str,
        tasks: TaskGroup,
        on_unexpected: Callable[[Reply], None] | None = None,
    ) -> None:
        """ON_UNEXPECTED is called with replies for which no caller waits."""
        self._address = address
        self._on_unexpected = on_unexpected
        self._open_call = open_call
        self._number_field = number_field
        self._tasks = tasks
        self._numbers = count(1)
        self._stream: _Stream[Request, Reply] | None = None
        #: The error with which it was closed.
        self._over: errors.PocketMQError | None = None

    async def ask(self, request: Request, timeout_ms: float) -> Reply:
        """Send REQUEST, after setting its number; return the reply.

        Raises ConnectFailed, RequestTimeout, ConnectionLost, or the error with which the broker ended the stream.
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
                return reply.result()  # The reply, or an error, came just before the timeout.
            raise self._late(stream, number, timeout_ms) from None
        finally:
            stream.forget(number)

    async def post(self, request: Request, timeout_ms: float) -> None:
        """Send REQUEST, after setting its number, without waiting for a reply. Raises the errors of `ask`."""
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
                f"nothing could be sent to {self._address} within {timeout_ms:.0f} ms",
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
                self._address, self._open_call(), self._number_field, self._on_unexpected
            )
            self._stream.start(self._tasks)
        return self._stream

    def close(self, error: errors.PocketMQError) -> None:
        """End the stream. Its pending requests, and all further ones, fail with ERROR."""
        self._over = error
        if self._stream is not None:
            self._stream.fail_all(error)


class _Stream(Generic[Request, Reply]):
    """One open stream, with the requests to send and the futures of replies."""

    def __init__(
        self,
        address: str,
        call: StreamCall,
        number_field: str,
        on_unexpected: Callable[[Reply], None] | None,
    ) -> None:
        self._address = address
        self._call = call
        self._number_field = number_field
        self._on_unexpected = on_unexpected
        #: The requests that are not sent yet, by number, in order.
        self._outgoing: dict[int, Request] = {}
        self._wake = asyncio.Event()
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        #: Futures that are settled when a request was sent, by number.
        self._leaving: dict[int, asyncio.Future[None]] = {}
        self.broken = False

    def start(self, tasks: TaskGroup) -> None:
        self._call.deliver_to(self._deliver)
        tasks.spawn(self._write())
        tasks.spawn(self._watch_end())

    @overload
    def submit(self, number: int, request: Request) -> asyncio.Future[Reply]: ...
    @overload
    def submit(
        self, number: int, request: Request, *, silent: Literal[True]
    ) -> asyncio.Future[None]: ...
    def submit(
        self, number: int, request: Request, *, silent: bool = False
    ) -> asyncio.Future[Reply] | asyncio.Future[None]:
        """Send REQUEST. Return the future of its reply, or if SILENT, a future that is settled when it was sent."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        (self._leaving if silent else self._pending)[number] = future
        # Earlier requests are sent first. A silent request waits for flow control, so that its future is right.
        if silent or not self._sends_now(number, request):
            self._outgoing[number] = request
            self._wake.set()
        return future

    def _sends_now(self, number: int, request: Request) -> bool:
        try:
            return not self._outgoing and self._call.write_nowait(request)
        except CallFailed as failure:
            return self._is_refused(number, failure)
        except asyncio.InvalidStateError:
            return False  # The stream has ended: all pending futures get the error.

    def _is_refused(self, number: int, failure: CallFailed) -> bool:
        """Return whether only the request with NUMBER failed, because it is too large. Its future gets FAILURE then."""
        if self._call.done():
            return False
        for waiting in (self._pending.get(number), self._leaving.get(number)):
            if waiting is not None and not waiting.done():
                waiting.set_exception(from_rpc_error(failure))
        return True

    def withdraw(self, number: int) -> bool:
        """Do not send the request with NUMBER; return False if it was sent already."""
        return self._outgoing.pop(number, None) is not None

    def forget(self, number: int) -> None:
        self._pending.pop(number, None)
        self._leaving.pop(number, None)

    def fail_all(self, error: errors.PocketMQError) -> None:
        """End the stream, and fail all pending requests with ERROR."""
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
            await self._call.wait_for_connection()  # Nothing can be sent before that.
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
            return  # The stream has ended; `_watch_end` gets the reason.

    async def _watch_end(self) -> None:
        error: errors.PocketMQError = errors.ConnectionLost(
            f"{self._address} ended the stream", address=self._address
        )
        try:
            await self._call.read()  # Only returns at the end: replies are passed to `_deliver`.
        except CallFailed as failure:
            error = from_rpc_error(failure)
        finally:
            self.fail_all(_with_address(error, self._address))

    def _deliver(self, message: Reply) -> None:
        reply = self._pending.pop(getattr(message, self._number_field), None)
        if reply is None:
            if self._on_unexpected is not None:
                self._on_unexpected(message)
        elif not reply.done():
            reply.set_result(message)


def _unsent(error: errors.PocketMQError) -> errors.PocketMQError:
    """Return the error of a request that was not sent before its stream broke with ERROR."""
    if isinstance(error, errors.ConnectionLost) and not isinstance(error, errors.ConnectFailed):
        return errors.ConnectFailed(error.message, **error.details)
    return error


class Conversation(Protocol[RequestIn, ReplyOut]):
    """A stream in both directions."""

    async def send(self, request: RequestIn) -> None:
        """Send REQUEST. Raises ConnectionLost if the stream has ended; `receive` raises the reason."""
        ...

    async def receive(self) -> ReplyOut | None:
        """Return the next message of the server; None at the end. Raises the error that ended the stream."""
        ...

    def close(self) -> None:
        """End the stream."""
        ...


class GrpcConversation(Generic[Request, Reply]):
    """A conversation over CALL with the server at ADDRESS."""

    def __init__(self, address: str, call: StreamCall) -> None:
        self._address = address
        self._call = call
        self._is_closed = False
        #: Only one task at a time may write to a stream.
        self._writing = asyncio.Lock()

    async def send(self, request: Request) -> None:
        try:
            async with self._writing:
                await self._call.write(request)
        except asyncio.InvalidStateError:
            raise self._ended() from None
        except CallFailed as failure:
            # If only this request failed, because it is too large, the stream continues.
            raise self._ended() if self._call.done() else from_rpc_error(failure) from None

    async def receive(self) -> Reply | None:
        try:
            reply = await self._call.read()
            return None if reply is EOF else reply
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                return None  # The call was cancelled, not the task that reads.
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
    """Return ERROR with the address of the server, which the messages of gRPC do not show clearly."""
    if (
        isinstance(error, errors.ConnectionLost | errors.TlsFailed)
        and "address" not in error.details
    ):
        return type(error)(f"{address}: {error.message}", **error.details, address=address)
    return error
