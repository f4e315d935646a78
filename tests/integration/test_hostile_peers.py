"""Peers that hold what they can of a broker process: its memory stays within what is stated, and others are served."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from pocketmq.client import Message, Producer
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ..proto.http2 import frames
from ..proto.http2.calls import message, request_fields
from ..proto.http2.frames import Setting
from ..proto.http2.peer import Peer
from ..served import ServerProcess, need_own

pytestmark = pytest.mark.processes

MIB = 1024 * 1024
HELD_MAX = 32 * MIB
#: What a broker needs besides, of what comes and goes: three copies of an answer, reads, freed memory in between.
SLACK = 48 * MIB
FETCH = "/pocketmq.v1.Broker/Fetch"
PRODUCE = "/pocketmq.v1.Broker/Produce"
RESOURCE_EXHAUSTED = "8"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    need_own("grpcio has bounds of its own")
    folder = tmp_path_factory.mktemp("hostile")
    config = folder / "broker.yaml"
    config.write_text(f"broker:\n  pending_max_bytes: {HELD_MAX}\n", encoding="utf-8")
    with ServerProcess(folder / "store", "--config", str(config)) as running:
        with Producer(running.nameserver) as producer:
            for _ in range(4):
                producer.send(Message("big", os.urandom(MIB), queue=0))
        yield running


def port_of(server: ServerProcess) -> int:
    return int(str(server.ready["broker"]).rpartition(":")[2])


async def crowd(
    server: ServerProcess, size: int, settings: dict[int, int], stack: AsyncExitStack
) -> AsyncIterator[Peer]:
    """Yield SIZE peers that announce SETTINGS and stay connected until STACK closes.

    Each connects when it is its turn: the server closes a connection that asks for nothing in its first 10 s.
    """
    for _ in range(size):
        yield await stack.enter_async_context(Peer.open(port_of(server), settings=settings))


def fetch(peer: Peer) -> int:
    """Have PEER ask for 4 MiB; return the stream."""
    request = pb.FetchRequest(fetch_id=1, topic="big", offset=0, max_bytes=4 * MIB)
    stream = peer.begin(request_fields(FETCH))
    peer.write(frames.data(stream, message(request.SerializeToString()), end=True))
    return stream


async def check_served(server: ServerProcess) -> None:
    """Assert that a peer that comes now fetches 4 MiB, and sends 3 MiB."""
    async with Peer.open(port_of(server)) as honest:
        answer = await honest.answer(fetch(honest))
        assert (answer.status, len(answer.body) > 3 * MIB) == ("0", True)
        run = pb.ProduceRun(run_id=7, topic="big", queue=0, records=bytes(3 * MIB))
        stream = honest.begin(request_fields(PRODUCE))
        await honest.send_body(stream, message(run.SerializeToString()))
        answer = await honest.answer(stream)
        assert answer.status == "0"
        # It came whole, and was looked at.
        assert pb.ProduceReply.FromString(answer.messages[0]).error.name == "InvalidRecord"


async def check_memory(server: ServerProcess, before: int) -> None:
    assert server.rss_bytes() - before <= HELD_MAX + SLACK


async def check_given_back(server: ServerProcess, before: int) -> None:
    """Assert that what was held is the system's again, some seconds after it was freed."""
    for _ in range(100):
        if server.rss_bytes() - before <= SLACK:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{(server.rss_bytes() - before) // MIB} MiB are not given back")


async def test_answers_that_nobody_takes_are_bounded_in_memory(server: ServerProcess) -> None:
    await check_served(server)
    before = server.rss_bytes()
    async with AsyncExitStack() as stack:
        async for peer in crowd(server, 8, {Setting.INITIAL_WINDOW_SIZE: 0}, stack):
            for _ in range(20):
                fetch(peer)
            await peer.round_trip()
            await check_memory(server, before)
        await check_served(server)
        await check_memory(server, before)
    await check_given_back(server, before)


async def test_answers_on_their_way_to_peers_that_do_not_read_are_bounded_in_memory(
    server: ServerProcess,
) -> None:
    await check_served(server)
    before = server.rss_bytes()
    wide: dict[int, int] = {Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}
    async with AsyncExitStack() as stack:
        async for peer in crowd(server, 100, wide, stack):
            await peer.round_trip()
            peer.reading.clear()
            peer.write(frames.window_update(0, 2**30))
            for _ in range(5):
                fetch(peer)
            await peer.flush()
        await check_served(server)
        await check_memory(server, before)
        await check_served(server)
    await check_given_back(server, before)


async def test_requests_that_are_half_sent_are_bounded_in_memory_and_do_not_keep_others_out(
    server: ServerProcess,
) -> None:
    await check_served(server)
    before = server.rss_bytes()
    peers = []
    async with AsyncExitStack() as stack:
        async for peer in crowd(server, 5, {}, stack):
            peers.append(peer)
            await peer.round_trip()
            streams = [peer.begin(request_fields(PRODUCE)) for _ in range(8)]
            for stream in streams:
                peer.write(frames.data(stream, message(b"", length=16 * MIB)))
            for _ in range(192):
                for stream in streams:
                    peer.write(frames.data(stream, bytes(16_000)))
                await peer.flush()
            await peer.round_trip()
            await check_memory(server, before)
            await check_served(server)
        ended = [one for peer in peers for one in peer.answers.values() if one.ended]
        assert {answer.status for answer in ended} == {RESOURCE_EXHAUSTED}
        assert (
            HELD_MAX // 4
            < await shown(server, "pocketmq_broker_incomplete_request_bytes")
            <= HELD_MAX
        )
    await check_given_back(server, before)
    assert await shown(server, "pocketmq_broker_incomplete_request_bytes") == 0


async def shown(server: ServerProcess, name: str) -> float:
    """Return what the page of metrics says of NAME."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    return float(next(line for line in page.splitlines() if line.startswith(f"{name} ")).split()[1])


async def test_a_crowd_of_connections_that_hold_a_little_each_does_not_keep_others_out(
    server: ServerProcess,
) -> None:
    await check_served(server)
    before = server.rss_bytes()
    async with AsyncExitStack() as stack:
        async for peer in crowd(server, 300, {}, stack):
            stream = peer.begin(request_fields(PRODUCE))
            peer.write(frames.data(stream, message(b"", length=16 * MIB)))
            for _ in range(12):
                peer.write(frames.data(stream, bytes(16_000)))
            await peer.flush()
        for _ in range(3):
            await check_served(server)
        await check_memory(server, before)
    await check_given_back(server, before)
