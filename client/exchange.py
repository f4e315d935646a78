"""Requests and numbered replies over one long-lived gRPC stream.

Requests leave in order, many may be on their way; a reply finds its request by number. When the stream breaks, every
request without a reply fails with the same error and nothing is repeated here, because only the caller knows whether a
repetition is harmless; the next request opens a new stream. Not thread-safe: its event loop owns it.

The number of requests on their way is the caller's to bound (one run a queue, one fetch a queue).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from ..proto.errors import ClientClosed, Disconnected, PocketMQError, RequestTimeout
from ..proto.errors_wire import from_rpc_error
from .tasks import Tasks

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
StreamCall = Any  # grpc.aio.StreamStreamCall, which grpc's stubs make generic and its code does not


class Exchange(Generic[Request, Reply]):
    """Asks over streams that OPEN_CALL() opens; NUMBER_FIELD of request and reply pairs them."""

    def __init__(
        self, address: str, open_call: Callable[..., StreamCall], number_field: str, tasks: Tasks
    ) -> None:
        self._address = address
        self._open_call = open_call
        self._number_field = number_field
        self._tasks = tasks
        self._numbers = count(1)
        self._stream: _Stream[Request, Reply] | None = None
        self._closed = False

    async def ask(self, request: Request, timeout_ms: float) -> Reply:
        """Return the reply to REQUEST, whose number is set here.

        Raises RequestTimeout, Disconnected, or what the broker ended the stream with.
        """
        stream = self._live_stream()
        number = next(self._numbers)
        setattr(request, self._number_field, number)
        reply = stream.submit(number, request)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await reply
        except TimeoutError:
            raise RequestTimeout(
                f"{self._address} did not answer within {timeout_ms:.0f} ms", address=self._address
            ) from None
        finally:
            stream.forget(number)

    def _live_stream(self) -> _Stream[Request, Reply]:
        if self._closed:
            raise ClientClosed(f"the connection to {self._address} was closed")
        if self._stream is None or self._stream.broken:
            self._stream = _Stream(self._address, self._open_call(), self._number_field)
            self._stream.start(self._tasks)
        return self._stream

    def close(self) -> None:
        """Break the stream off; its pending requests fail."""
        self._closed = True
        if self._stream is not None:
            self._stream.break_off(ClientClosed(f"the connection to {self._address} was closed"))


class _Stream(Generic[Request, Reply]):
    """One opened stream: what waits to leave, and who waits for a reply."""

    def __init__(self, address: str, call: StreamCall, number_field: str) -> None:
        self._address = address
        self._call = call
        self._number_field = number_field
        self._outgoing: deque[Request] = deque()
        self._wake = asyncio.Event()
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self.broken = False

    def start(self, tasks: Tasks) -> None:
        tasks.spawn(self._write())
        tasks.spawn(self._read())

    def submit(self, number: int, request: Request) -> asyncio.Future[Reply]:
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        self._outgoing.append(request)
        self._wake.set()
        return reply

    def forget(self, number: int) -> None:
        self._pending.pop(number, None)

    def break_off(self, error: PocketMQError) -> None:
        """Fail everything that waits with ERROR; the stream is of no more use."""
        if self.broken:
            return
        self.broken = True
        self._call.cancel()
        self._wake.set()
        self._outgoing.clear()
        pending, self._pending = self._pending, {}
        for reply in pending.values():
            if not reply.done():
                reply.set_exception(error)

    async def _write(self) -> None:
        try:
            while not self.broken:
                while self._outgoing:
                    await self._call.write(self._outgoing.popleft())
                self._wake.clear()
                await self._wake.wait()
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # The stream has ended; the reader tells why.

    async def _read(self) -> None:
        error: PocketMQError = Disconnected(
            f"{self._address} ended the stream", address=self._address
        )
        try:
            while (reply := await self._call.read()) is not _EOF:
                self._deliver(reply)
            if await self._call.code() is not grpc.StatusCode.OK:
                error = await self._ending()
        except grpc.RpcError as failure:
            error = from_rpc_error(failure)
        finally:
            self.break_off(_with_address(error, self._address))

    async def _ending(self) -> PocketMQError:
        """Return the error that the stream ended with, when reading said only that it ended."""
        call = self._call
        status = await call.code(), await call.initial_metadata(), await call.trailing_metadata()
        details = await call.details()
        return from_rpc_error(grpc.aio.AioRpcError(*status, details, details))

    def _deliver(self, message: Reply) -> None:
        reply = self._pending.pop(getattr(message, self._number_field), None)
        if reply is not None and not reply.done():
            reply.set_result(message)


def _with_address(error: PocketMQError, address: str) -> PocketMQError:
    """Return ERROR with the address that it is about, which gRPC's own sentences leave out or bury."""
    if isinstance(error, Disconnected) and "address" not in error.details:
        return Disconnected(f"{address}: {error.message}", **error.details, address=address)
    return error
