"""The two long-lived streams of a client: Produce (batches in, answers out) and Fetch (requests in, records out).

Answers leave in the order in which they become ready. The number of unanswered requests of a stream is limited: at the
limit, the next one is not read until an answer has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.rpc import Stream
from .messages.fetch import Fetches
from .messages.send import Sends
from .timing.purgatory import WatchedOperation


class ProduceStream:
    """One open Produce stream: one answer per batch, in the order in which the answers become ready."""

    def __init__(self, stream: Stream, sends: Sends, runs_max: int, store_host: str) -> None:
        self._stream = stream
        self._sends = sends
        self._window = _Window(stream, runs_max)
        self._store_host = store_host

    def on_message(self, message: pb.ProduceRun) -> Awaitable[None] | None:
        self._window.enter()
        silent = message.no_reply

        def done(reply: pb.ProduceReply) -> None:
            if not silent or reply.error.name:
                self._send(reply)
            self._window.leave()

        self._sends.send(message, done)
        return self._window.room()

    def _send(self, reply: pb.ProduceReply) -> None:
        if self._store_host and not reply.error.name:
            reply.store_host, self._store_host = self._store_host, ""
        self._stream.send(reply)

    def on_end(self) -> None:
        self._window.end()

    def on_close(self) -> None:
        self._window.open_wide()


class FetchStream:
    """One open Fetch stream: one answer per request, as soon as there are records or the wait ends."""

    def __init__(self, stream: Stream, fetches: Fetches, fetches_max: int) -> None:
        self._stream = stream
        self._fetches = fetches
        self._window = _Window(stream, fetches_max)
        self._waiting: dict[int, WatchedOperation] = {}
        self._numbers = 0

    def on_message(self, message: pb.FetchRequest) -> Awaitable[None] | None:
        self._window.enter()
        self._numbers += 1
        number = self._numbers

        def done(reply: pb.FetchReply) -> None:
            self._waiting.pop(number, None)
            self._stream.send(reply)
            self._window.leave()

        waiting = self._fetches.fetch(message, done)
        if waiting is not None:
            self._waiting[number] = waiting
        return self._window.room()

    def on_end(self) -> None:
        self._window.end()

    def on_close(self) -> None:
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()
        self._window.open_wide()


class _Window:
    """Limits the unanswered requests of STREAM to LIMIT: then reading waits. The last answer ends the stream."""

    __slots__ = ("_count", "_ended", "_limit", "_room", "_stream")

    def __init__(self, stream: Stream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._count = 0
        self._ended = False
        self._room: asyncio.Future[None] | None = None

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        self.open_wide()
        self._finish_if_over()

    def end(self) -> None:
        """Note that no further request follows."""
        self._ended = True
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if self._ended and not self._count:
            self._stream.finish()

    def open_wide(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def room(self) -> asyncio.Future[None] | None:
        """Return None if another request may be read; otherwise a future that is done when it may."""
        if self._count < self._limit:
            return None
        self._room = asyncio.get_running_loop().create_future()
        return self._room
