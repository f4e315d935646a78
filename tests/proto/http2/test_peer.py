"""The raw peer itself, against the carrier that grpcio makes: what tests of ours say is said as HTTP/2 demands."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from pocketmq.broker.ports.certificates import development_certificate
from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.rpc import Limits

from ..carriers.echo import REPLY, RUN, EchoService
from . import frames
from .calls import Answer, message, request_fields
from .frames import Code, Type
from .peer import Peer

_LIMITS = Limits(peer_keepalive_min_ms=1)


@pytest.fixture
async def served() -> AsyncIterator[tuple[EchoService, int]]:
    echo = EchoService()
    carrier = GrpcioCarrier([echo.methods()], limits=_LIMITS)
    port = await carrier.start("127.0.0.1", 0)
    yield echo, port
    await carrier.stop(0)


async def test_a_unary_call_is_answered(served: tuple[EchoService, int]) -> None:
    async with Peer.open(served[1]) as peer:
        stream = peer.call("/test.Echo/Plain", RUN(run_id=7).SerializeToString())
        answer = await peer.answer(stream)
    assert answer.http_status == "200"
    assert answer.headers["content-type"].startswith("application/grpc")
    assert [REPLY.FromString(one).run_id for one in answer.messages] == [7]
    assert answer.status == "0"


async def test_a_stream_is_answered_message_by_message(served: tuple[EchoService, int]) -> None:
    async with Peer.open(served[1]) as peer:
        stream = peer.begin(request_fields("/test.Echo/Echo"))
        for number in range(3):
            encoded = RUN(run_id=number, queue=40_000).SerializeToString()
            await peer.send_body(stream, message(encoded), end=False)
        await peer.send_body(stream, b"")
        answer = await peer.answer(stream)
    assert [REPLY.FromString(one).run_id for one in answer.messages] == [0, 1, 2]
    assert answer.status == "0"


async def test_a_body_larger_than_every_window_is_sent_as_windows_open(
    served: tuple[EchoService, int],
) -> None:
    async with Peer.open(served[1]) as peer:
        stream = peer.begin(request_fields("/test.Echo/Plain"))
        run = RUN(topic="mirror", records=b"x" * 1_000_000)
        assert await peer.send_body(stream, message(run.SerializeToString()))
        answer = await peer.answer(stream)
    assert len(REPLY.FromString(answer.messages[0]).store_host) == 1_000_000


async def test_a_ping_comes_back(served: tuple[EchoService, int]) -> None:
    async with Peer.open(served[1]) as peer:
        await peer.round_trip()
        await peer.round_trip()


async def test_an_impolite_peer_answers_nothing_and_opens_no_window(
    served: tuple[EchoService, int],
) -> None:
    async with Peer.open(served[1], polite=False) as peer:
        run = RUN(topic="mirror", records=b"x" * 60_000).SerializeToString()
        stream = peer.begin(request_fields("/test.Echo/Plain"))
        await peer.send_body(stream, message(run))
        first = await peer.answer(stream)
        stream = peer.begin(request_fields("/test.Echo/Plain"))
        await peer.send_body(stream, message(run))
        left = 65_535 - len(first.body)
        await peer.flush()
        await peer.until_true(lambda: len(peer.answers.get(stream, Answer()).body) == left)
        await peer.round_trip()
        assert not peer.answers[stream].ended


async def test_a_reset_reaches_the_handler(served: tuple[EchoService, int]) -> None:
    echo, port = served
    async with Peer.open(port) as peer:
        stream = peer.call("/test.Echo/Plain", RUN(topic="later").SerializeToString())
        await peer.flush()
        await echo.arrived.wait()
        await peer.send(frames.reset(stream))
        await echo.cancelled.wait()


@pytest.fixture
async def hanging_up() -> AsyncIterator[int]:
    """Serve connections that say GOAWAY to their first byte and close, though more is there to be read."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(frames.settings())
        writer.write(frames.frame(Type.GOAWAY, payload=bytes((0, 0, 0, 0, 0, 0, 0, 11))))
        await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_the_last_words_of_a_server_are_heard(hanging_up: int) -> None:
    async with Peer.open(hanging_up) as peer:
        for _ in range(100):
            await peer.send(frames.ping() * 1_000)
        heard = await peer.ended()
    assert heard is not None
    assert heard.code == Code.ENHANCE_YOUR_CALM


async def test_a_connection_that_ends_first_loses_its_streams(hanging_up: int) -> None:
    async with Peer.open(hanging_up) as peer:
        answer = await peer.answer(peer.call("/test.Echo/Plain", b""))
    assert answer.lost
    assert not answer.ended


async def test_a_peer_speaks_tls() -> None:
    certificate = development_certificate([], datetime.now(UTC))
    echo = EchoService()
    carrier = GrpcioCarrier([echo.methods()], limits=_LIMITS, certificate=lambda: certificate)
    port = await carrier.start("127.0.0.1", 0)
    context = ssl.create_default_context(cadata=certificate.chain.decode())
    context.set_alpn_protocols(["h2"])
    async with Peer.open(port, tls=context) as peer:
        assert peer.wire.protocol == "h2"
        run = RUN(topic="mirror", records=b"x" * 300_000).SerializeToString()
        stream = peer.begin(request_fields("/test.Echo/Plain", scheme="https"))
        await peer.send_body(stream, message(run))
        answer = await peer.answer(stream)
        assert len(REPLY.FromString(answer.messages[0]).store_host) == 300_000
    await carrier.stop(0)


def test_frames_are_cut_where_they_end() -> None:
    received = bytearray(frames.ping() + frames.data(3, b"abc", end=True) + b"\x00\x00")
    found = list(frames.cut(received))
    assert [(one.type, one.stream, one.payload) for one in found] == [
        (Type.PING, 0, bytes(8)),
        (Type.DATA, 3, b"abc"),
    ]
    assert found[1].ends_stream
    assert received == b"\x00\x00"
