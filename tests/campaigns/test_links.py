"""Links that can be cut: what arrives, what does not, and what does when they are mended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from .links import CLIENTS, Links, owner_of

SOON_S = 30.0
#: In it nothing may arrive that is cut off.
QUIET_S = 0.1

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[..., Awaitable[Ends]]


class Echo:
    """Answers each line with itself, in capitals."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.ended = asyncio.Event()
        self.address = ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # Links snap here.
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(line.upper())
        self.ended.set()
        writer.transport.abort()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    answering = Echo()
    server = await asyncio.start_server(answering.accept, "127.0.0.1", 0)
    answering.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield answering
    server.close()


@pytest.fixture
async def links() -> AsyncIterator[Links]:
    made = Links({})
    yield made
    await made.close()


@pytest.fixture
async def dial(links: Links, echo: Echo) -> AsyncIterator[Dial]:
    """Dials the echo as the end that is named."""
    writers: list[asyncio.StreamWriter] = []

    async def dialled(source: str = "a") -> Ends:
        port = await links.lay("b", echo.address, source)
        ends = await asyncio.open_connection("127.0.0.1", port)
        writers.append(ends[1])
        return ends

    yield dialled
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def answer(ends: Ends, line: bytes) -> bytes:
    ends[1].write(line)
    return await asyncio.wait_for(ends[0].readline(), SOON_S)


async def is_silent(ends: Ends) -> bool:
    try:
        await asyncio.wait_for(ends[0].read(1), QUIET_S)
    except TimeoutError:
        return True
    return False


async def test_a_whole_link_carries_both_ways_and_ends_with_either_end(
    dial: Dial, echo: Echo
) -> None:
    ends = await dial()

    assert await answer(ends, b"one\n") == b"ONE\n"
    assert await answer(ends, b"x" * 40_000 + b"\n") == b"X" * 40_000 + b"\n"
    ends[1].close()
    await asyncio.wait_for(echo.ended.wait(), SOON_S)


async def test_over_a_cut_link_nothing_arrives_until_it_is_mended(
    links: Links, dial: Dial, echo: Echo
) -> None:
    ends = await dial()
    await answer(ends, b"one\n")

    links.cut("b", ["a"])
    ends[1].write(b"two\n")
    assert await is_silent(ends)
    assert echo.heard == [b"one\n"]

    links.mend()
    assert await asyncio.wait_for(ends[0].readline(), SOON_S) == b"TWO\n"


async def test_a_link_that_is_cut_one_way_carries_the_other_way(
    links: Links, dial: Dial, echo: Echo
) -> None:
    ends = await dial()
    await answer(ends, b"one\n")

    links.cut("b", ["a"], one_way=True)
    ends[1].write(b"two\n")

    assert await is_silent(ends)
    assert echo.heard == [b"one\n", b"two\n"]


async def test_who_dials_over_a_cut_link_hears_nothing(
    links: Links, dial: Dial, echo: Echo
) -> None:
    links.cut("a", ["b", "c"])
    ends = await dial()
    ends[1].write(b"one\n")

    assert await is_silent(ends)
    assert echo.heard == []


async def test_the_end_of_a_process_does_not_cross_a_cut_link(
    links: Links, dial: Dial, echo: Echo
) -> None:
    ends = await dial()
    await answer(ends, b"one\n")

    links.cut("a", ["b"])
    ends[1].transport.abort()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(echo.ended.wait(), QUIET_S)

    links.mend()
    await asyncio.wait_for(echo.ended.wait(), SOON_S)


async def test_a_snapped_link_breaks_and_so_does_the_next(
    links: Links, dial: Dial, echo: Echo
) -> None:
    ends = await dial()
    await answer(ends, b"one\n")

    links.snap("b", ["a"])
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(ends[0].readexactly(1), SOON_S)
    again = await dial()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(again[0].readexactly(1), SOON_S)

    links.mend()
    assert await answer(await dial(), b"two\n") == b"TWO\n"


async def test_only_the_pair_that_is_named_is_cut(links: Links, dial: Dial, echo: Echo) -> None:
    links.cut("a", ["b"])

    assert await answer(await dial("c"), b"one\n") == b"ONE\n"


async def test_a_delayed_link_takes_its_time_each_way(links: Links, dial: Dial, echo: Echo) -> None:
    links.delay("a", ["b"], 30)
    ends = await dial()

    began = time.monotonic()
    assert await answer(ends, b"one\n") == b"ONE\n"
    assert time.monotonic() - began >= 0.06


@pytest.mark.processes
@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="who dialled is read in /proc")
async def test_who_dialled_a_shared_address_is_known_by_its_process(echo: Echo) -> None:
    processes: dict[int, str] = {}
    links = Links(processes)
    port = await links.lay("b", echo.address)
    talk = "import socket, sys; s = socket.create_connection(('127.0.0.1', %d)); sys.stdin.read(1)"
    talk += "; s.sendall(b'one\\n'); print(s.recv(9))"
    children = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", talk % port, stdin=-1, stdout=-1)
        for _ in range(2)
    ]
    try:
        processes.update({children[0].pid: "a", children[1].pid: "c"})
        links.cut("a", ["b"])
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"1")
        assert children[1].stdout is not None
        assert await asyncio.wait_for(children[1].stdout.read(), SOON_S) == b"b'ONE\\n'\n"
        assert echo.heard == [b"one\n"]
        ends = await asyncio.open_connection("127.0.0.1", port)
        assert owner_of(ends[1].get_extra_info("sockname")[1], [os.getpid()]) == os.getpid()
        assert await answer(ends, b"of clients\n") == b"OF CLIENTS\n"
        links.cut(CLIENTS, ["b"])
        ends[1].write(b"again\n")
        assert await is_silent(ends)
        ends[1].transport.abort()
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()
        await links.close()
