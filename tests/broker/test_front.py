"""The relay before the carriers: who is sent where, and how connections end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest

from pocketmq.proto.errors import StoreFull
from pocketmq.proto.http2.frames import PREFACE
from pocketmq.proto.listening import address_of

from .fronting import HELLO, Reader, Sockets, World, Writer, bye, running, until


async def test_plaintext_reaches_the_plain_carrier_as_it_is() -> None:
    world = World()
    async with running(world) as front:
        reader, writer = await world.connect(PREFACE)
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        writer.write(bytes(range(256)) * 4_000)
        assert await reader.readexactly(1_024_000) == bytes(range(256)) * 4_000
        assert (front.connections, world.secured) == (1, 0)
        await bye(writer)
        await until(lambda: front.connections == 0)


async def test_small_answers_leave_at_once_at_both_ends() -> None:
    world = World()
    async with running(world) as front:
        reader, writer = await world.connect(PREFACE)
        await reader.readexactly(len(PREFACE))
        (connection,) = front._open
        for end in (connection, connection.inner):
            found = end.transport.get_extra_info("socket")
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        await bye(writer)


async def test_a_handshake_reaches_the_secure_carrier_which_is_made_once() -> None:
    world = World()
    async with running(world):
        ends = await asyncio.gather(*(world.connect(HELLO) for _ in range(5)))
        for reader, writer in ends:
            assert await reader.readexactly(7 + len(HELLO)) == b"secure " + HELLO
            await bye(writer)
    assert world.secured == 1
    assert world.secure.starts == [("127.0.0.1", 0)]


async def test_a_plain_request_is_answered_with_the_page_and_closed() -> None:
    world = World()
    async with running(world, page=b"head was ") as front:
        reader, writer = await world.connect(b"GET /metrics HT")
        await until(lambda: front.connections == 1)
        writer.write(b"TP/1.1\r\nHost: a\r\n\r\nrest")
        assert await reader.read() == b"head was GET /metrics HTTP/1.1\r\nHost: a"
        await bye(writer)


async def test_a_page_that_fails_costs_its_request_alone() -> None:
    world = World()
    async with running(world) as front:
        reader, writer = await world.connect(b"GET /metrics HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await bye(writer)
        await until(lambda: front.connections == 0)


@pytest.mark.parametrize("first", [b"\x00", b"SSH-2.0", b"\x17\x03", b"GET /" + b"a" * 9_000])
async def test_what_is_of_no_known_kind_is_closed(first: bytes) -> None:
    world = World()
    async with running(world, page=b"page"):
        reader, writer = await world.connect(first)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await bye(writer)


async def test_a_carrier_can_tell_who_calls() -> None:
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def look(reader: Reader, writer: Writer) -> None:
        await reader.readexactly(1)
        seen.set_result(address_of(*writer.get_extra_info("peername")))
        await reader.read()

    world = World(look)
    async with running(world):
        _, writer = await world.connect(PREFACE)
        own = address_of(*writer.get_extra_info("sockname"))
        assert world.callers[await seen] == own
        await bye(writer)
        await until(lambda: world.callers == {})


async def test_who_has_said_all_is_still_answered() -> None:
    async def answer_at_the_end(reader: Reader, writer: Writer) -> None:
        heard = await reader.read()
        writer.write(b"heard %d" % len(heard))

    world = World(answer_at_the_end)
    async with running(world) as front:
        reader, writer = await world.connect(PREFACE)
        writer.write_eof()
        assert await reader.read() == b"heard %d" % len(PREFACE)
        await until(lambda: front.connections == 0)
        await bye(writer)


async def test_a_carrier_that_has_said_all_still_hears() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def end_first(reader: Reader, writer: Writer) -> None:
        writer.write(b"all")
        writer.write_eof()
        heard.set_result(await reader.read())

    world = World(end_first)
    async with running(world) as front:
        reader, writer = await world.connect(PREFACE)
        assert await reader.read() == b"all"
        writer.write(b"more")
        writer.write_eof()
        assert await heard == PREFACE + b"more"
        await until(lambda: front.connections == 0)
        await bye(writer)


async def test_what_a_carrier_wrote_before_it_closed_arrives() -> None:
    async def shout(reader: Reader, writer: Writer) -> None:
        await reader.readexactly(1)
        writer.write(bytes(3_000_000))

    world = World(shout)
    async with running(world):
        reader, writer = await world.connect(PREFACE)
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) == 3_000_000
        await bye(writer)


async def test_a_connection_that_breaks_breaks_at_the_other_end() -> None:
    broke: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def listen_on(reader: Reader, writer: Writer) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(100):
                writer.write(b"x")
        broke.set_result(None)

    world = World(listen_on)
    async with running(world) as front:
        _, writer = await world.connect(PREFACE)
        await until(lambda: front.connections == 1)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        writer.transport.abort()  # A reset: nothing may be said any more.
        await broke
        await until(lambda: front.connections == 0)


async def test_a_carrier_that_is_not_there_costs_the_connection_alone() -> None:
    world = World()
    async with running(world) as front:
        await world.plain.stop(0)
        reader, writer = await world.connect(PREFACE)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await bye(writer)
        await until(lambda: front.connections == 0)


async def test_a_secure_carrier_that_cannot_be_made_is_tried_again() -> None:
    world = World()
    made = world.make_secure

    async def fail_once() -> Sockets:
        carrier = await made()
        if world.secured == 1:
            raise StoreFull("no space left")
        return carrier

    world.make_secure = fail_once  # type: ignore[method-assign]
    async with running(world):
        reader, writer = await world.connect(HELLO)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await bye(writer)
        reader, writer = await world.connect(HELLO)
        assert await reader.readexactly(7) == b"secure "
        await bye(writer)


async def test_a_stop_ends_all_connections_and_leaves_no_descriptor() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    tasks = len(asyncio.all_tasks())
    before = descriptors()
    world = World()
    async with running(world) as front:
        ends = [await world.connect(first) for first in (PREFACE, HELLO, b"") * 10]
        await until(lambda: front.connections == 30)
    for _, writer in ends:
        await bye(writer)
    await until(lambda: descriptors() == before and len(asyncio.all_tasks()) == tasks)
