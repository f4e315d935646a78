"""A server that says what a test tells it to, byte by byte, to whoever connects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import hpack

from ..carriers.echo import REPLY
from ..http2 import frames
from ..http2.calls import message
from ..http2.frames import PREFACE, Frame, Type

HEAD = [(":status", "200"), ("content-type", "application/grpc")]
GOOD = [("grpc-status", "0")]


class Visit:
    """One connection, as its server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._encoder = hpack.Encoder()
        self._received = bytearray()
        self._frames: list[Frame] = []

    def say(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))

    def block(self, fields: list[tuple[str, str]]) -> bytes:
        block: bytes = self._encoder.encode(fields)
        return block

    def answer(self, stream: int, run_id: int = 0) -> bytes:
        """Return a whole good answer on STREAM."""
        body = message(REPLY(run_id=run_id).SerializeToString())
        return (
            frames.headers(stream, self.block(HEAD))
            + frames.data(stream, body)
            + frames.headers(stream, self.block(GOOD), end=True)
        )

    async def greet(self, settings: dict[int, int] | None = None) -> None:
        """Read the preface and announce SETTINGS."""
        assert await self._reader.readexactly(len(PREFACE)) == PREFACE
        self.say(frames.settings(settings))

    async def hear(self, kind: Type) -> Frame:
        """Return the next frame of KIND; others are dropped."""
        while True:
            while self._frames:
                found = self._frames.pop(0)
                if found.type == kind:
                    return found
            data = await self._reader.read(65_536)
            if not data:
                raise ConnectionError("the client has gone")
            self._received += data
            self._frames += frames.cut(self._received)

    async def gone(self) -> None:
        """Return when the client has gone."""
        while await self._reader.read(65_536):
            pass


Script = Callable[[Visit], Awaitable[None]]


@asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[str]:
    """Serve the first visit by the first of SCRIPTS, and so on, the last one for ever; yield the address."""
    left = list(scripts)
    tasks: set[asyncio.Task[None]] = set()

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = left.pop(0) if len(left) > 1 else left[0]
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(Visit(reader, writer))
        except ConnectionError:
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(visited, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
