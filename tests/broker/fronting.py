"""A front before two carriers that talk to sockets, on a clock that a test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pocketmq.broker.front import (
    Front,
)
from pocketmq.broker.timers import Timers
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.listening import listen

HELLO = bytes((0x16, 3, 1, 0, 5))

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Talk = Callable[[Reader, Writer], Awaitable[None]]


async def echo(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


class Sockets:
    """A carrier that has TALK with everybody who connects."""

    def __init__(self, talk: Talk = echo, name: bytes = b"") -> None:
        self._talk = talk
        self._name = name
        self._server: asyncio.Server | None = None
        self._writers: set[Writer] = set()
        self.starts: list[tuple[str, int]] = []

    async def start(self, host: str, port: int) -> int:
        self.starts.append((host, port))
        (listener,) = listen(host, port)
        self._server = await asyncio.start_server(self._serve, sock=listener)
        bound: int = listener.getsockname()[1]
        return bound

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        self._writers.add(writer)
        writer.write(self._name)
        with contextlib.suppress(OSError):
            await self._talk(reader, writer)
        writer.close()
        self._writers.discard(writer)

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()


class World:
    """A front before two carriers, on a clock that a test moves."""

    def __init__(self, talk: Talk = echo) -> None:
        self.clock = VirtualClock(0)
        self.timers = Timers(self.clock)
        self.plain = Sockets(talk)
        self.secure = Sockets(talk, b"secure ")
        self.secured = 0
        self.port = 0
        self.callers: dict[str, str] = {}

    async def make_secure(self) -> Sockets:
        self.secured += 1
        return self.secure

    def front(
        self, *, connections_max: int = 100, direct_port: int = 0, page: bytes = b""
    ) -> Front:
        async def show(head: bytes) -> bytes:
            if not page:
                raise ZeroDivisionError("a bug")
            return page + head

        return Front(
            self.plain,
            self.make_secure,
            self.timers,
            callers=self.callers,
            connections_max=connections_max,
            direct_port=direct_port,
            page=show,
        )

    async def connect(self, first: bytes = b"") -> tuple[Reader, Writer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(first)
        return reader, writer


@asynccontextmanager
async def running(
    world: World, *, connections_max: int = 100, page: bytes = b""
) -> AsyncIterator[Front]:
    front = world.front(connections_max=connections_max, page=page)
    world.timers.start()
    world.port = await front.start("127.0.0.1", 0)
    try:
        yield front
    finally:
        await front.stop(1.0)
        await world.timers.stop()
        assert front.connections == 0
        assert len(world.timers) == 0
        assert world.callers == {}


async def until(fact: Callable[[], bool]) -> None:
    """Return once FACT holds, within the test's time."""
    while not fact():  # noqa: ASYNC110 (sockets tell nobody)
        await asyncio.sleep(0.001)


async def bye(writer: Writer) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
