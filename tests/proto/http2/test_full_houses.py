"""More than there is room for: streams, connections, fields, bytes half sent and bytes not taken."""

from __future__ import annotations

import asyncio
import gzip
import threading
from contextlib import AsyncExitStack

import pytest

from pocketmq.proto.rpc import Limits
from pocketmq.proto.rpc.conversation import CALL_BYTES
from pocketmq.proto.rpc.messages import Inflation

from ..carriers.echo import REPLY, RUN
from . import frames
from .calls import message, request_fields
from .frames import Code, Setting
from .peer import Peer
from .stage import LATER, PLAIN, staged, turns

pytestmark = pytest.mark.slow

RESOURCE_EXHAUSTED = "8"


async def test_streams_beyond_the_limit_are_refused_and_the_others_live() -> None:
    async with (
        staged(Limits(concurrent_streams_max=10)) as stage,
        Peer.open(stage.port) as peer,
    ):
        waiting = [peer.call("/test.Echo/Plain", LATER) for _ in range(10)]
        # Not having heard of the limit is no mistake that is held against it.
        beyond = [peer.call("/test.Echo/Plain", LATER) for _ in range(300)]
        for stream in beyond:
            assert (await peer.answer(stream)).reset == Code.REFUSED_STREAM
        assert peer.settings[Setting.MAX_CONCURRENT_STREAMS] == 10
        assert len(stage.echo.calls) == 10
        while stage.echo.calls:
            stage.echo.calls.pop().reply(REPLY(run_id=1))
        for stream in waiting:
            assert (await peer.answer(stream)).status == "0"
        assert (await peer.answer(peer.call("/test.Echo/Plain", PLAIN))).status == "0"


async def test_connections_beyond_the_limit_are_closed_until_another_ends() -> None:
    async with staged(Limits(connections_max=2)) as stage:
        async with Peer.open(stage.port) as first, Peer.open(stage.port) as second:
            await first.round_trip()
            await second.round_trip()
            for _ in range(5):
                async with Peer.open(stage.port) as beyond:
                    assert await beyond.ended() is None
            await first.round_trip()
        await turns(lambda: stage.carrier.connections == 0)


@pytest.mark.parametrize("pairs", [600, 2_000], ids=["in a few frames", "in many"])
async def test_more_fields_than_the_limit_fail_their_call_alone(pairs: int) -> None:
    async with staged(Limits(metadata_bytes_max=10_000)) as stage, Peer.open(stage.port) as peer:
        more = [(f"x-{number % 600}", "y") for number in range(pairs)]
        block = peer.block([*request_fields("/test.Echo/Plain"), *more])
        stream = peer.stream()
        pieces = [block[at : at + 10_000] for at in range(0, len(block), 10_000)]
        peer.write(frames.headers(stream, pieces[0], whole=len(pieces) == 1))
        for piece in pieces[1:]:
            peer.write(frames.continuation(stream, piece, whole=piece is pieces[-1]))
        peer.write(frames.data(stream, message(PLAIN), end=True))

        answer = await peer.answer(stream)
        assert answer.status == RESOURCE_EXHAUSTED
        assert "10000" in answer.status_text
        assert peer.settings[Setting.MAX_HEADER_LIST_SIZE] == 10_000
        assert not stage.echo.calls
        # The table of the connection is still that of the peer.
        stream = peer.begin(request_fields("/test.Echo/Plain", ("x-1", "y")), end=False)
        peer.write(frames.data(stream, message(PLAIN), end=True))
        assert (await peer.answer(stream)).status == "0"


async def test_a_bomb_of_references_fails_its_call_alone() -> None:
    async with staged() as stage, Peer.open(stage.port) as peer:
        large = ("x-large", "y" * 4_000)
        stream = peer.begin([*request_fields("/test.Echo/Plain"), large])
        peer.write(frames.data(stream, message(PLAIN), end=True))
        assert (await peer.answer(stream)).status == "0"
        reference = peer.block([large])
        assert len(reference) == 1
        for _ in range(3):
            stream = peer.stream()
            block = peer.block(request_fields("/test.Echo/Plain")) + reference * 16_000
            peer.write(frames.headers(stream, block[:16_000], whole=False))
            peer.write(frames.continuation(stream, block[16_000:], whole=True))
            peer.write(frames.data(stream, message(PLAIN), end=True))
            assert (await peer.answer(stream)).status == RESOURCE_EXHAUSTED
        assert len(stage.echo.calls) == 1


async def test_bytes_half_sent_have_a_limit_on_a_connection() -> None:
    limits = Limits(half_sent_bytes_connection=100_000)
    async with staged(limits) as stage, Peer.open(stage.port) as peer:
        half = message(bytes(10_000), length=20_000)
        streams = [peer.begin(request_fields("/test.Echo/Plain")) for _ in range(15)]
        for stream in streams:
            peer.write(frames.data(stream, half))
        for stream in streams[10:]:
            answer = await peer.answer(stream)
            assert answer.status == RESOURCE_EXHAUSTED
            assert "100000" in answer.status_text
        assert stage.carrier.served.half_sent <= 100_000 + len(streams) * CALL_BYTES
        async with Peer.open(stage.port) as other:  # Which has room of its own.
            run = RUN(topic="mirror", records=bytes(50_000)).SerializeToString()
            stream = other.begin(request_fields("/test.Echo/Plain"))
            await other.send_body(stream, message(run))
            assert (await other.answer(stream)).status == "0"


async def test_bytes_half_sent_have_a_limit_on_the_server_where_the_oldest_give_way() -> None:
    async with staged(Limits(half_sent_bytes_server=100_000)) as stage:
        async with Peer.open(stage.port) as first, Peer.open(stage.port) as second:
            half = message(bytes(14_000), length=20_000)
            streams = [first.begin(request_fields("/test.Echo/Plain")) for _ in range(6)]
            for stream in streams:
                first.write(frames.data(stream, half))
            await first.round_trip()
            await asyncio.sleep(0.01)
            run = RUN(topic="mirror", records=bytes(60_000)).SerializeToString()
            stream = second.begin(request_fields("/test.Echo/Plain"))
            await second.send_body(stream, message(run))
            assert (await second.answer(stream)).status == "0"
            answer = await first.answer(streams[0])
            assert answer.status == RESOURCE_EXHAUSTED
            assert "100000" in answer.status_text
            assert stage.carrier.served.half_sent <= 100_000
        await turns(lambda: stage.carrier.connections == 0)
        assert stage.carrier.served.half_sent == 0


@pytest.mark.parametrize("length", [1_001, 2**32 - 1])
async def test_a_message_that_says_to_be_too_large_is_refused_before_it_comes(length: int) -> None:
    async with (
        staged(Limits(receive_bytes_max=1_000)) as stage,
        Peer.open(stage.port) as peer,
    ):
        stream = peer.begin(request_fields("/test.Echo/Plain"))
        peer.write(frames.data(stream, message(b"x", length=length)))
        answer = await peer.answer(stream)
        assert answer.status == RESOURCE_EXHAUSTED
        assert answer.reset in (None, Code.NO_ERROR)


async def test_a_bomb_of_gzip_is_not_inflated_beyond_the_limit() -> None:
    async with (
        staged(Limits(receive_bytes_max=1_000_000)) as stage,
        Peer.open(stage.port) as peer,
    ):
        stream = peer.begin(request_fields("/test.Echo/Plain", grpc_encoding="gzip"))
        bomb = gzip.compress(bytes(50_000_000))
        await peer.send_body(stream, message(bomb, compressed=1))
        assert (await peer.answer(stream)).status == RESOURCE_EXHAUSTED


@pytest.mark.parametrize("path", ["/test.Echo/Plain", "/test.Echo/Count", "/test.Echo/Echo"])
async def test_what_is_large_once_it_is_inflated_is_taken_in_its_order(path: str) -> None:
    async with staged() as stage, Peer.open(stage.port) as peer:
        topic = "mirror" if path.endswith("Plain") else ""
        run = RUN(run_id=3, topic=topic, queue=1, records=b"x" * 900_000).SerializeToString()
        packed = message(gzip.compress(run), compressed=1)
        first = peer.begin(request_fields(path, grpc_encoding="gzip"))
        bodies = packed + message(RUN(run_id=4, queue=1).SerializeToString())
        await peer.send_body(first, bodies if path.endswith("Echo") else packed)
        answer = await peer.answer(first)
        assert answer.status == "0"
        if path.endswith("Echo"):
            assert [REPLY.FromString(one).run_id for one in answer.messages] == [3, 4]
        assert stage.carrier.served.half_sent == 0


@pytest.mark.parametrize("path", ["/test.Echo/Plain", "/test.Echo/Count", "/test.Echo/Echo"])
async def test_bombs_of_gzip_do_not_hold_the_loop_up(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()
    may_go_on = threading.Event()
    threads = set()
    rest = Inflation.rest

    def slow(self: Inflation) -> bytes:
        threads.add(threading.current_thread())
        began.set()
        assert may_go_on.wait(60)
        return rest(self)

    monkeypatch.setattr(Inflation, "rest", slow)
    bomb = message(gzip.compress(bytes(31_000_000)), compressed=1)
    async with staged() as stage, AsyncExitStack() as stack:
        hostile = [await stack.enter_async_context(Peer.open(stage.port)) for _ in range(4)]
        streams = []
        for peer in hostile:
            for _ in range(5):
                streams.append((peer, peer.begin(request_fields(path, grpc_encoding="gzip"))))
                await peer.send_body(streams[-1][1], bomb)
        await turns(began.is_set)
        # One is being inflated, and takes as long as it takes: others are served meanwhile.
        for _ in range(20):
            await stage.serves_others()
        may_go_on.set()
        for peer, stream in streams:
            assert (await peer.answer(stream)).status == RESOURCE_EXHAUSTED
        assert len(threads) == 1
        assert stage.carrier.served.half_sent == 0


@pytest.mark.parametrize("path", ["/test.Echo/Plain", "/test.Echo/Count", "/test.Echo/Echo"])
async def test_a_call_that_waits_to_be_inflated_may_be_given_up(path: str) -> None:
    bomb = message(gzip.compress(bytes(31_000_000)), compressed=1)
    async with staged() as stage, Peer.open(stage.port) as peer:
        streams = [peer.begin(request_fields(path, grpc_encoding="gzip")) for _ in range(5)]
        for stream in streams:
            await peer.send_body(stream, bomb)
            peer.write(frames.reset(stream, Code.CANCEL))
        await peer.round_trip()
        assert (await peer.answer(peer.call("/test.Echo/Plain", PLAIN))).status == "0"
        await turns(lambda: stage.carrier.served.half_sent == 0)


@pytest.mark.long
@pytest.mark.parametrize("path", ["/test.Echo/Plain", "/test.Echo/Count", "/test.Echo/Echo"])
async def test_answers_that_nobody_takes_have_a_limit_on_a_connection(path: str) -> None:
    async with (
        staged(Limits(connection_queue_bytes_max=1_000_000)) as stage,
        Peer.open(stage.port, settings={Setting.INITIAL_WINDOW_SIZE: 0}) as peer,
    ):
        topic = "mirror" if path.endswith("Plain") else ""
        run = RUN(topic=topic, records=b"x" * 15_000, queue=15_000).SerializeToString()
        streams = [peer.begin(request_fields(path)) for _ in range(200)]
        for stream in streams:
            peer.write(frames.data(stream, message(run), end=True))
        await peer.round_trip()
        (figures,) = stage.carrier.connection_figures(0, 10)
        assert figures.bytes_queued <= 1_100_000
        refused = [peer.answers[stream] for stream in streams if stream in peer.answers]
        if path.endswith("Echo"):  # What answers message by message waits until it is read.
            assert not any(answer.ended for answer in refused)
            peer.write(frames.settings({Setting.INITIAL_WINDOW_SIZE: 1_000_000}))
            for stream in streams:
                assert (await peer.answer(stream)).status == "0"
        else:
            assert any(answer.status == RESOURCE_EXHAUSTED for answer in refused)
