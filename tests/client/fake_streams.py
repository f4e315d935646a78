"""Bidirectional methods of a table, reached without a network: a conversation calls the handler's receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from pocketmq.proto.errors import ConnectionLost, PocketMQError
from pocketmq.proto.rpc import Method

from ..fake_calls import FakeStream


class MemoryStream(FakeStream):
    """The server's half: what it sends waits for the conversation."""

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self.changed = asyncio.Event()

    def send(self, message: Message) -> None:
        super().send(message)
        self.changed.set()

    def _end(self, error: PocketMQError | None) -> None:
        super()._end(error)
        self.changed.set()


class MemoryConversation:
    """The client's half of a stream of METHOD. CHECK raises where the server cannot be reached."""

    def __init__(self, method: Method, check: Callable[[], None], peer: str = "test:1") -> None:
        self._method = method
        self._check = check
        self._stream = MemoryStream(peer)
        self._receiver: Any = None
        self._closed = False

    async def send(self, request: Message) -> None:
        await asyncio.sleep(0)
        try:
            self._check()
        except PocketMQError as error:
            self._stream.fail(error)
        if self._stream.is_over:
            raise ConnectionLost("the stream has ended")
        try:
            if self._receiver is None:
                self._receiver = self._method.handler(self._stream)
            taken: Awaitable[None] | None = self._receiver.on_message(request)
            if taken is not None:
                await taken
        except PocketMQError as error:
            self._stream.fail(error)

    async def receive(self) -> Any:
        stream = self._stream
        while not stream.sent:
            if stream.is_over:
                self.close()
                if stream.error is not None:
                    raise stream.error
                return None
            stream.changed.clear()
            await stream.changed.wait()
        return stream.sent.pop(0)

    def break_off(self) -> None:
        """Have the connection break."""
        self._stream.fail(ConnectionLost("the connection broke"))
        self._let_go()

    def close(self) -> None:
        self._stream.is_over = True
        self._stream.changed.set()
        self._let_go()

    def _let_go(self) -> None:
        if self._receiver is not None and not self._closed:
            self._closed = True
            self._stream.cancel()
            self._receiver.on_close()
