"""The relay before the carriers: who is sent where, what is bounded, and how connections end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pocketmq.broker.front import (
    BUFFER_BYTES,
    DIAL_MS,
    DIRECT_STEP,
    FIRST_BYTE_MS,
    LAST_BYTES_MS,
    Front,
)
from pocketmq.broker.timers import Timers
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConfigError, StoreFull
from pocketmq.proto.listening import address_of, listen

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
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


# ---------------------------------------------------------------- who is sent where


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


# ---------------------------------------------------------------- how connections end


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


# ---------------------------------------------------------------- bounds


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


# ---------------------------------------------------------------- where it listens


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
