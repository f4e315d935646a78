"""The end of a connection that is too old: announced, orderly even for streams that never end, noticed by no caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.rpc import Limits

from ..carriers.calling import Caller
from ..carriers.echo import REPLY, RUN, EchoService
from .calls import message, request_fields
from .frames import Code, Type, ping
from .peer import Peer

_LAST_STREAM = 2**31 - 1
LOCAL = [("grpc.use_local_subchannel_pool", 1)]


@asynccontextmanager
async def served(**limits: int) -> AsyncIterator[tuple[EchoService, int]]:
    echo = EchoService()
    carrier = Http2Carrier([echo.methods()], limits=Limits(**limits))
    port = await carrier.start("127.0.0.1", 0)
    yield echo, port
    await carrier.stop(0)


async def test_an_old_connection_is_told_twice_and_serves_what_was_under_way() -> None:
    async with served(connection_age_ms=50) as (_, port), Peer.open(port, polite=False) as peer:
        call = peer.call("/test.Echo/Plain", RUN(run_id=6).SerializeToString())
        assert (await peer.answer(call)).status == "0"
        await peer.until(lambda frame: frame.type == Type.GOAWAY)
        # As far as the server knows the peer has not read it yet.
        late = peer.call("/test.Echo/Plain", RUN(run_id=7).SerializeToString())
        assert (await peer.answer(late)).status == "0"
        asked = await peer.until(lambda frame: frame.type == Type.PING)
        peer.write(ping(asked.payload, ack=True))
        await peer.ended()
    told = [frame for frame in peer.frames if frame.type == Type.GOAWAY]
    assert [int.from_bytes(frame.payload[:4], "big") for frame in told] == [_LAST_STREAM, late]
    assert {frame.code for frame in told} == {Code.NO_ERROR}


async def test_streams_that_would_never_end_are_ended_well_after_the_grace() -> None:
    async with (
        served(connection_age_ms=50, connection_age_grace_ms=50) as (echo, port),
        Peer.open(port) as peer,
    ):
        stream = peer.begin(request_fields("/test.Echo/Echo"))
        await peer.send_body(stream, message(RUN(run_id=1).SerializeToString()), end=False)
        answer = await peer.answer(stream)
        await asyncio.wait_for(echo.receivers[0].closed.wait(), 30)
        last = await peer.ended()
    assert (len(answer.messages), answer.status) == (1, "0")
    assert echo.receivers[0].heard == ["run 1", "end", "close"]
    assert not echo.receivers[0].stream.cancelled
    assert last is not None
    assert last.code == Code.NO_ERROR


@asynccontextmanager
async def calling() -> AsyncIterator[tuple[EchoService, Caller]]:
    """Serve connections that soon are old, and call as grpcio's client does."""
    async with (
        served(connection_age_ms=100, connection_age_grace_ms=60_000) as (echo, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=LOCAL) as channel,
    ):
        yield echo, Caller(channel)


async def port_of(caller: Caller) -> str:
    """Return the port that CALLER calls from."""
    reply = await caller.ask("Plain", RUN(topic="context"))
    return reply.store_host.split()[0].rpartition(":")[2]


async def test_calls_go_on_over_one_connection_after_the_other() -> None:
    async with calling() as (_, caller), asyncio.timeout(60):
        ports: set[str] = set()
        while len(ports) < 4:
            ports |= set(await asyncio.gather(*[port_of(caller) for _ in range(10)]))


async def test_what_waits_is_answered_on_the_old_connection() -> None:
    async with calling() as (echo, caller), asyncio.timeout(60):
        waiting = asyncio.ensure_future(caller.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        (call,) = echo.calls
        while await port_of(caller) == call.peer.rpartition(":")[2]:
            continue
        await port_of(caller)
        call.reply(REPLY(run_id=5))
        assert (await waiting).run_id == 5
        assert not call.cancelled
