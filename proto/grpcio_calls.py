"""Calls and streams of the `grpc.aio` carrier: the once-only answer, the outgoing queue, the graceful end.

A call that is answered later owns one future. A stream owns a deque of encoded messages; `write_all`, in the task
of the stream, is its only writer. Not thread-safe: the carrier's event loop owns everything here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from google.protobuf.message import Message

from .carrier_errors import internal_error, not_read, shutting_down
from .errors import PocketMQError, ShuttingDown
from .rpc import Call, Limits, Receiver, Stream


class _Context:
    """What grpc's context knows, read only when a handler asks. Mixed into call and stream."""

    __slots__ = ()
    _context: Any
    _calls: OpenCalls

    @property
    def peer(self) -> str:
        kind, _, address = unquote(self._context.peer()).partition(":")
        return self._calls.caller(address) if kind in ("ipv4", "ipv6") else f"{kind}:{address}"

    @property
    def metadata(self) -> Mapping[str, str]:
        entries = self._context.invocation_metadata() or ()
        return {key: value for key, value in entries if isinstance(value, str)}

    @property
    def deadline_ms(self) -> int | None:
        remaining_s: float | None = self._context.time_remaining()
        return None if remaining_s is None else max(0, int(remaining_s * 1000))

    def add_trailing(self, name: str, value: str) -> None:
        present = self._context.trailing_metadata() or ()
        self._context.set_trailing_metadata((*present, (name, value)))


class UnaryCall(_Context, Call):
    """A unary call; its future exists only if it is answered later."""

    __slots__ = ("_answer", "_calls", "_context", "_future")

    def __init__(self, context: Any, calls: OpenCalls) -> None:
        super().__init__()
        self._context = context
        self._calls = calls
        self._answer: Message | PocketMQError | None = None
        self._future: asyncio.Future[None] | None = None

    def reply(self, message: Message) -> None:
        self._settle(message)

    def fail(self, error: PocketMQError) -> None:
        self._settle(error)

    def wind_down(self) -> None:
        """Go on: the answer may come within the grace."""

    def _settle(self, answer: Message | PocketMQError) -> None:
        if self.cancelled or isinstance(self._answer, ShuttingDown):
            return
        assert self._answer is None, "a call is answered once"
        self._answer = answer
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def answer(self, calls: OpenCalls) -> Message:
        """Return what `reply` brings, or raise what `fail` brings. Meanwhile the call is one of CALLS."""
        if self._answer is None:
            self._future = asyncio.get_running_loop().create_future()
            calls.add(self)
            try:
                await self._future
            finally:
                calls.discard(self)
        if isinstance(self._answer, PocketMQError):
            raise self._answer
        assert self._answer is not None
        return self._answer


class GrpcioStream(_Context, Stream):
    """The outgoing half: a deque of encoded messages, and the end that follows them."""

    __slots__ = (
        "_calls",
        "_context",
        "_drained",
        "_end",
        "_end_told",
        "_ended",
        "_limits",
        "_outgoing",
        "_queued_bytes",
        "_wake",
        "held",
        "receiver",
        "receiving",
    )

    def __init__(self, context: Any, limits: Limits, calls: OpenCalls) -> None:
        super().__init__()
        self._queued_bytes = 0
        self._context = context
        self._limits = limits
        self._calls = calls
        self._outgoing: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._drained: list[asyncio.Future[None]] = []
        self._ended = False
        self._end: PocketMQError | None = None
        self.receiver: Receiver[Any] | None = None
        #: The receiver still takes messages; a stop ends that.
        self.receiving = True
        #: The receiver is busy with a message, which holds back the next one and `on_end`.
        self.held = False
        self._end_told = False

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def send(self, message: Message) -> None:
        if self._ended or self.cancelled:
            return
        data = message.SerializeToString()
        self._outgoing.append(data)
        self._queued_bytes += len(data)
        if self._queued_bytes > self._limits.queue_bytes_max:
            self._overflow()
        self._wake_writer()

    def finish(self) -> None:
        self._finish(shutting_down() if self._calls.stopping else None)

    def fail(self, error: PocketMQError) -> None:
        self._finish(error)

    def _finish(self, end: PocketMQError | None) -> None:
        if not self._ended:
            self._ended = True
            self._end = end
            self._wake_writer()

    async def drained(self) -> None:
        while self._queued_bytes >= self._limits.queue_bytes and not self.cancelled:
            waiting = asyncio.get_running_loop().create_future()
            self._drained.append(waiting)
            await waiting

    def wind_down(self) -> None:
        """Have the receiver finish what is pending; a stream without one has nothing to wait for."""
        if self.receiver is None:
            self.fail(shutting_down())
        elif self.held:
            self.receiving = False  # The reader tells the end when the receiver is free.
        elif self.receiving and not self._ended:
            try:
                self.end_receiving(self.receiver)
            except PocketMQError as error:
                self.fail(error)
            except Exception as bug:  # The edge: a receiver's bug costs its own stream.
                self.fail(internal_error(type(self.receiver).__qualname__, bug))

    def end_receiving(self, receiver: Receiver[Any]) -> None:
        """Tell RECEIVER, once, that no message follows."""
        self.receiving = False
        if not self._end_told:
            self._end_told = True
            receiver.on_end()

    def open(self) -> None:
        """Take part in a graceful stop from now on."""
        self._calls.add(self)

    def close(self) -> None:
        """Let go of everything. The writer has ended."""
        self._calls.discard(self)
        self._ended = True
        self._outgoing.clear()
        self._queued_bytes = 0
        self._release()

    async def write_all(self) -> None:
        """Write what is sent until the stream ends; raise the error that it ends with."""
        write, outgoing = self._context.write, self._outgoing
        loop = asyncio.get_running_loop()
        while True:
            while outgoing:
                data = outgoing.popleft()
                await write(data)
                self._queued_bytes -= len(data)
                if self._drained and self._queued_bytes < self._limits.queue_bytes:
                    self._release()
            if self._ended:
                break
            self._wake = loop.create_future()
            await self._wake
        if self._end is not None:
            raise self._end

    def _overflow(self) -> None:
        queued, self._queued_bytes = self._queued_bytes, 0
        self._outgoing.clear()
        self.fail(not_read(queued, self._limits.queue_bytes_max, "queue_bytes_max"))

    def _wake_writer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _release(self) -> None:
        for waiting in self._drained:
            if not waiting.done():
                waiting.set_result(None)
        self._drained.clear()


class OpenCalls:
    """Calls that are answered later and streams, for a graceful stop."""

    def __init__(self, caller: Callable[[str], str]) -> None:
        #: Returns whose connection the one from an address is.
        self.caller = caller
        self._calls: set[UnaryCall | GrpcioStream] = set()
        self._emptied: asyncio.Future[None] | None = None
        self.stopping = False

    def add(self, call: UnaryCall | GrpcioStream) -> None:
        self._calls.add(call)
        if self.stopping:
            call.wind_down()

    def discard(self, call: UnaryCall | GrpcioStream) -> None:
        self._calls.discard(call)
        if not self._calls and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def wind_down(self) -> None:
        self.stopping = True
        for call in list(self._calls):
            call.wind_down()

    async def emptied(self, timeout_s: float) -> None:
        """Return when nothing is open any more, or after TIMEOUT_S."""
        if self._calls:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._emptied,), timeout=timeout_s)

    def fail_all(self) -> None:
        for call in list(self._calls):
            call.fail(shutting_down())
