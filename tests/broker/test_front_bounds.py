"""The relay before the carriers: what is bounded, and where it listens."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest

from pocketmq.broker.front import (
    BUFFER_BYTES,
    DIAL_MS,
    DIRECT_STEP,
    FIRST_BYTE_MS,
    LAST_BYTES_MS,
)
from pocketmq.proto.errors import ConfigError
from pocketmq.proto.http2.frames import PREFACE
from pocketmq.proto.listening import listen

from .fronting import HELLO, Reader, Sockets, World, Writer, bye, running, until


async def test_who_says_nothing_is_closed() -> None:
    world = World()
    async with running(world, page=b"page") as front:
        ends = [await world.connect(first) for first in (b"", b"GET /met")]
        await until(lambda: front.connections == 2)
        await world.clock.advance(FIRST_BYTE_MS - 1)
        assert front.connections == 2
        await world.clock.advance(1)
        await until(lambda: front.connections == 0)
        for _, writer in ends:
            await bye(writer)


async def test_who_waits_too_long_for_a_carrier_is_closed() -> None:
    world = World()
    never = asyncio.Event()

    async def wait_for_ever() -> Sockets:
        await never.wait()
        return world.secure

    world.make_secure = wait_for_ever  # type: ignore[method-assign]
    async with running(world) as front:
        _, writer = await world.connect(HELLO)
        await until(lambda: len(front._tasks) == 1)
        await world.clock.advance(DIAL_MS)
        await until(lambda: front.connections == 0)
        never.set()
        await bye(writer)


async def test_who_does_not_end_after_the_other_side_is_closed() -> None:
    async def end_at_once(reader: Reader, writer: Writer) -> None:
        writer.close()

    world = World(end_at_once)
    async with running(world) as front:
        reader, writer = await world.connect(PREFACE)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await world.clock.advance(LAST_BYTES_MS)
        await until(lambda: front.connections == 0)
        await bye(writer)


async def test_a_relayed_connection_may_be_silent_for_ever() -> None:
    world = World()
    async with running(world) as front:
        reader, writer = await world.connect(PREFACE)
        await reader.readexactly(len(PREFACE))
        await world.clock.advance(86_400_000)
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        assert front.connections == 1
        await bye(writer)


async def test_connections_over_the_limit_are_closed_until_there_is_room() -> None:
    world = World()
    async with running(world, connections_max=2) as front:
        (reader, writer), (_, other) = await world.connect(PREFACE), await world.connect(PREFACE)
        await reader.readexactly(len(PREFACE))
        late_reader, late = await world.connect(PREFACE)
        with contextlib.suppress(ConnectionError):
            assert await late_reader.read() == b""
        assert front.connections == 2
        await bye(late)
        await bye(other)
        await until(lambda: front.connections == 1)
        reader, again = await world.connect(PREFACE)
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        await bye(again)
        await bye(writer)


async def test_a_peer_that_does_not_read_holds_back_the_carrier() -> None:
    written = 0

    async def shout(reader: Reader, writer: Writer) -> None:
        nonlocal written
        await reader.readexactly(1)
        for _ in range(1_000):
            writer.write(bytes(1 << 16))
            written += 1 << 16
            await writer.drain()

    world = World(shout)
    async with running(world) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1_000)
        writer.write(PREFACE)
        connection = None
        while connection is None or connection.transport.get_write_buffer_size() < BUFFER_BYTES:
            await asyncio.sleep(0.001)
            connection = next(iter(front._open), None)
        await asyncio.sleep(0.05)
        assert BUFFER_BYTES <= connection.transport.get_write_buffer_size() <= 2 * BUFFER_BYTES
        assert written < 64_000_000

        received = 0
        while received < 1_000 << 16:
            received += len(await reader.read(1 << 20))
        await bye(writer)


async def test_the_direct_port_lies_ten_thousand_away() -> None:
    world = World()
    async with running(world) as front:
        assert abs(front.direct_port - world.port) == DIRECT_STEP
        assert front.direct_address == f"127.0.0.1:{front.direct_port}"


async def test_a_direct_port_that_is_taken_is_another_one_unless_it_was_asked_for() -> None:
    (public,) = listen("127.0.0.1", 0)
    port = public.getsockname()[1]
    public.close()
    direct = port + DIRECT_STEP if port + DIRECT_STEP <= 65_535 else port - DIRECT_STEP
    (taken,) = listen("127.0.0.1", direct)
    with taken:
        world = World()
        front = world.front()
        assert await front.start("127.0.0.1", port) == port
        assert world.plain.starts == [("127.0.0.1", direct), ("127.0.0.1", 0)]
        assert front.direct_port not in (0, direct)
        await front.stop(0)

        picky = World().front(direct_port=direct)
        with pytest.raises(ConfigError, match=f":{direct}: Address already in use; "):
            await picky.start("127.0.0.1", port)
    listen("127.0.0.1", port)[0].close()  # It was let go.


async def test_a_port_that_is_taken_is_an_error() -> None:
    (taken,) = listen("127.0.0.1", 0)
    with taken, pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:"):
        await World().front().start("127.0.0.1", taken.getsockname()[1])


async def test_carriers_of_a_front_for_all_networks_are_on_loopback() -> None:
    world = World()
    front = world.front()
    port = await front.start("0.0.0.0", 0)
    world.port = port
    reader, writer = await world.connect(PREFACE)
    assert await reader.readexactly(3) == b"PRI"
    await bye(writer)
    assert {host for host, _ in world.plain.starts} == {"127.0.0.1"}
    await front.stop(0)


def test_the_tests_hello_is_what_tls_begins_with() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="a")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    assert outgoing.read()[0] == HELLO[0]
