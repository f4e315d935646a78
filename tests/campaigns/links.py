"""TCP links between named ends, through which everything of a replica set goes, so that each pair can be cut.

A `Wire` listens for one target and passes connections on. Who dialled is known from the wire itself, or, where several
dial the same address, from the process that owns the other end of the connection (`owner_of`: /proc, so Linux).

    cut      from now on not a byte arrives, in one direction or both; connections stay open, as over a cable that is
             out, and what was sent meanwhile arrives when it is mended
    snap     connections break at once, and new ones as soon as they are made, until it is mended
    delay    each piece arrives so much later

A process that dies while it is cut off takes no leave: the other end hears of it when the link is mended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_PIECE: Final = 65_536
_LOOPBACK: Final = "127.0.0.1"
#: The end of who is none of the processes.
CLIENTS: Final = "clients"
#: The end of ZooKeeper's servers.
REGISTRY: Final = "registry"


class _Pair:
    """What befalls bytes from one end to another."""

    def __init__(self) -> None:
        self.whole = asyncio.Event()
        self.whole.set()
        self.snapped = False
        self.delay_s = 0.0


class Links:
    """All wires of one set of processes. PROCESSES: the end that each is, by its id; any other is `CLIENTS`."""

    def __init__(self, processes: Mapping[int, str]) -> None:
        self._processes = processes
        self._pairs: dict[tuple[str, str], _Pair] = defaultdict(_Pair)
        self._servers: list[asyncio.Server] = []
        self._open: dict[asyncio.Task[None], tuple[str, str]] = {}

    async def lay(self, target: str, address: str, source: str = "", port: int = 0) -> int:
        """Listen at PORT (0: a free one) for who wants to reach the end TARGET at ADDRESS; return the port.

        SOURCE: who alone dials it; "": the process that does is looked up.
        """
        host, _, number = address.rpartition(":")

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            who = source or self._dialler(writer)
            self._open[task] = (who, target)
            try:
                await self._carry((who, target), reader, writer, host, int(number))
            except asyncio.CancelledError:
                task.uncancel()  # It was snapped; asyncio's server would make an error of it.
            finally:
                del self._open[task]
                writer.transport.abort()

        server = await asyncio.start_server(accept, self.host_of(target), port)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def reach(self, target: str, address: str, source: str = "") -> str:
        """Return where the end TARGET, which listens at ADDRESS, is dialled, by SOURCE or anybody."""
        return f"{self.host_of(target)}:{await self.lay(target, address, source)}"

    def host_of(self, end: str) -> str:
        """Return the address of END, and of what leads to it."""
        return _LOOPBACK

    def entering(self, end: str) -> str:
        """Return the Python by which a process begins that is to be END."""
        return ""

    async def close(self) -> None:
        """Break everything."""
        for server in self._servers:
            server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    # --- what befalls them

    def cut(self, one: str, others: Iterable[str], *, one_way: bool = False) -> None:
        """Let nothing more from ONE arrive at any of OTHERS; nor, unless ONE_WAY, from them at ONE."""
        for other in others:
            self._pairs[one, other].whole.clear()
            if not one_way:
                self._pairs[other, one].whole.clear()

    def snap(self, one: str, others: Iterable[str]) -> None:
        """Break what connects ONE with any of OTHERS, whoever dialled, now and until it is mended."""
        for pair in [(one, other) for other in others]:
            for way in (pair, (pair[1], pair[0])):
                self._pairs[way].snapped = True
                for task, ends in self._open.items():
                    if ends == way:
                        task.cancel()

    def delay(self, one: str, others: Iterable[str], delay_ms: int) -> None:
        """Have all between ONE and OTHERS arrive DELAY_MS later."""
        for other in others:
            self._pairs[one, other].delay_s = self._pairs[other, one].delay_s = delay_ms / 1000

    def mend(self) -> None:
        """Make everything whole and quick."""
        for pair in self._pairs.values():
            pair.whole.set()
            pair.snapped = False
            pair.delay_s = 0.0

    # --- connections

    def _dialler(self, writer: asyncio.StreamWriter) -> str:
        port = writer.get_extra_info("peername")[1]
        owner = owner_of(port, self._processes)
        return CLIENTS if owner is None else self._processes[owner]

    async def _carry(
        self,
        ends: tuple[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        port: int,
    ) -> None:
        there, back = self._pairs[ends], self._pairs[ends[1], ends[0]]
        if there.snapped or back.snapped:
            return
        await there.whole.wait()  # The first packet would not arrive.
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            return
        pumps = [
            asyncio.ensure_future(_pump(reader, far_writer, there)),
            asyncio.ensure_future(_pump(far_reader, writer, back)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            far_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair) -> None:
    """Pass on what comes until the end of it."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE):
            if pair.delay_s:
                await asyncio.sleep(pair.delay_s)
            await pair.whole.wait()
            writer.write(data)
            await writer.drain()
    await pair.whole.wait()  # That it has ended does not arrive either.
    with contextlib.suppress(OSError):
        await writer.drain()
    # Let what was written leave before the connection is broken.
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def owner_of(port: int, processes: Iterable[int]) -> int | None:
    """Return which of PROCESSES has a connection whose own end is PORT of loopback."""
    inode = _inode_of(port)
    for process in list(processes) if inode is not None else ():
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{process}/fd/{descriptor}") == f"socket:[{inode}]":
                        return process
    return None


def _inode_of(port: int) -> str | None:
    """Return the inode of the connection whose own end is PORT."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                    return fields[9]
    return None
