"""Calls on a broker in this process; their deadlines pass, and their answers are stamped, by a clock that is moved."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Any, Final

from google.protobuf.message import Message

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.rpc import LATER, Limits, Method, MethodKind, MethodTable, RpcError

from ...fake_calls import FakeCall, FakeContext, FakeStream, copied

PORT: Final = 8681


class Reach:
    """A carrier that carries nothing: who holds the table of methods calls them."""

    def __init__(self) -> None:
        self.methods: MethodTable = MethodTable()

    def make(self, tables: Iterable[MethodTable], *, limits: Limits) -> Reach:
        self.methods = reduce(or_, tables, MethodTable())
        return self

    def find(self, path: str) -> Method | None:
        """Return the method at PATH; None: it is not served."""
        return next((method for method in self.methods if method.path == path), None)

    async def start(self, host: str, port: int) -> int:
        return PORT

    async def stop(self, grace_s: float) -> None:
        """Nothing is open but what a test holds."""


class Answer:
    """What came back on one call: messages with their time, milliseconds from its start, and the gRPC status."""

    def __init__(self, clock: VirtualClock, deadline_s: float | None) -> None:
        self.clock = clock
        self.begun_ms = clock.now_ms()
        self.due_ms = None if deadline_s is None else self.begun_ms + round(deadline_s * 1000)
        self.items: list[tuple[int, Message]] = []
        self.ended_ms: int | None = None
        self.status = ""

    @property
    def age_ms(self) -> int:
        return self.clock.now_ms() - self.begun_ms

    @property
    def left_ms(self) -> int | None:
        """How long the caller still waits."""
        return None if self.due_ms is None else max(0, self.due_ms - self.clock.now_ms())

    def add(self, message: Message) -> None:
        self.items.append((self.age_ms, copied(message)))

    def end(self, status: str = "OK") -> None:
        if self.ended_ms is None:
            self.ended_ms, self.status = self.age_ms, status


class TimedContext(FakeContext):
    """A caller whose deadline is its ANSWER's, which takes what comes back."""

    def __init__(self, answer: Answer, metadata: Mapping[str, str]) -> None:
        super().__init__(metadata=metadata)
        self.came = answer

    @property
    def deadline_ms(self) -> int | None:
        return self.came.left_ms


class TimedCall(TimedContext, FakeCall):
    """A unary call."""

    def reply(self, message: Message) -> None:
        super().reply(message)
        self.came.add(message)
        self.came.end()

    def fail(self, error: RpcError) -> None:
        super().fail(error)
        self.came.end(error.status)


class TimedStream(TimedContext, FakeStream):
    """The outgoing half of a stream."""

    def send(self, message: Message) -> None:
        super().send(message)
        self.came.add(message)

    def finish(self) -> None:
        super().finish()
        self.came.end()

    def fail(self, error: RpcError) -> None:
        super().fail(error)
        self.came.end(error.status)


async def call(method: Method, data: bytes, answer: Answer, metadata: Mapping[str, str]) -> None:
    """Call METHOD with a request of DATA. The ANSWER may come later."""
    is_unary = method.kind is MethodKind.UNARY
    caller: Any = (TimedCall if is_unary else TimedStream)(answer, metadata)
    try:
        result = method.handler(method.decode(data), caller)
        if inspect.isawaitable(result):
            result = await result
    except RpcError as error:
        caller.fail(error)
        return
    if is_unary and result is not LATER:
        caller.reply(result)


class Conversation:
    """A stream in both directions."""

    def __init__(self, method: Method, answer: Answer, metadata: Mapping[str, str]) -> None:
        self.answer = answer
        self._stream = TimedStream(answer, metadata)
        self._receiver: Any = method.handler(self._stream)
        self._closed = False

    def say(self, message: Message) -> None:
        """Send MESSAGE; no more than that if the stream is over."""
        if self._stream.is_over:
            self._close()
        if self._closed:
            return
        try:
            self._receiver.on_message(message)
        except RpcError as error:
            self._stream.fail(error)
            self._close()

    def half_close(self) -> None:
        """Say that nothing follows."""
        if not self._closed and not self._stream.is_over:
            self._receiver.on_end()
        self._close()

    def break_off(self, status: str) -> None:
        """Go, with STATUS: the deadline has passed."""
        if not self._closed:
            self.answer.end(status)
            self._stream.cancel()
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._receiver.on_close()
