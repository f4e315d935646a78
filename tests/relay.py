"""A relay on loopback, through which two processes speak until it is cut, frozen, or made slow."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Relay:
    """Passes the connections to its own `address` on to TARGET, "host:port"."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cut = False
        #: Connections that came, those that were refused among them.
        self.accepted = 0
        self._passes = asyncio.Event()
        self._answers = asyncio.Event()
        self._passes.set()
        self._answers.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """End all connections, and each new one, with a reset."""
        self._is_cut = True
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()

    def freeze(self, *, answers_only: bool = False) -> None:
        """Pass nothing on, or none of what TARGET says; nobody hears that it is so."""
        self._answers.clear()
        if not answers_only:
            self._passes.clear()

    def heal(self) -> None:
        """Pass on everything from now on, and what was held back."""
        self._is_cut = False
        self._passes.set()
        self._answers.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        host, _, port = self._target.rpartition(":")
        try:
            if self._is_cut:
                raise ConnectionRefusedError
            upstream, onwards = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, onwards)
        self._pairs.add(pair)
        pumps = [
            asyncio.ensure_future(self._pump(reader, onwards, self._passes)),
            asyncio.ensure_future(self._pump(upstream, writer, self._answers)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pairs.discard(pair)
            for one in pair:
                one.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await gate.wait()
                writer.write(data)
                await writer.drain()
