"""Channels whose server comes, goes, and comes again."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.proto.rpc import Carrier, Limits
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import CallFailed, Channel, StatusCode

from ...waiting import until
from ..carriers.echo import RUN, EchoService
from ..carriers.kinds import OWN, CarrierKind
from .conftest import Dialling
from .methods import echo, free_port, unary


async def start(kind: CarrierKind, service: EchoService, port: int) -> Carrier:
    carrier = kind.plain([service.methods()], limits=Limits())
    await carrier.start("127.0.0.1", port)
    return carrier


async def answered_at_last(channel: Channel) -> bool:
    """Ask until there is an answer; is it the right one?"""
    while True:
        try:
            return bool((await unary(channel)(RUN(run_id=3))).run_id == 3)
        except CallFailed:
            await asyncio.sleep(0.05)


async def test_a_server_that_comes_late_is_found(kind: CarrierKind) -> None:
    port = free_port()
    async with Http2Channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(60):
        with pytest.raises(CallFailed):
            await unary(channel)(RUN())
        carrier = await start(kind, EchoService(), port)
        assert await answered_at_last(channel)
    await carrier.stop(0)


async def test_a_loss_fails_what_waits_and_the_next_call_connects_anew(kind: CarrierKind) -> None:
    port, service = free_port(), EchoService()
    first = await start(kind, service, port)
    async with Http2Channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(60):
        stream = echo(channel)()
        await stream.write(RUN(run_id=1))
        await stream.read()
        waiting = asyncio.ensure_future(unary(channel)(RUN(topic="later")))
        reading = asyncio.ensure_future(stream.read())
        await until(lambda: service.calls)
        await first.stop(0)
        for lost in (waiting, reading):
            with pytest.raises(CallFailed) as caught:
                await lost
            assert caught.value.code() is StatusCode.UNAVAILABLE

        second = await start(kind, EchoService(), port)
        assert await answered_at_last(channel)
    await second.stop(0)


def aged(service: EchoService, age_ms: int) -> Carrier:
    """Return a carrier of our own whose connections grow old soon; grpcio's do so when it likes."""
    limits = Limits(connection_age_ms=age_ms, connection_age_grace_ms=60_000)
    return OWN.plain([service.methods()], limits=limits)


async def test_calls_go_on_over_one_connection_after_the_other() -> None:
    carrier = aged(EchoService(), 100)
    port = await carrier.start("127.0.0.1", 0)
    async with Http2Channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(60):
        ports: set[str] = set()
        while len(ports) < 4:
            replies = await asyncio.gather(
                *(unary(channel)(RUN(topic="context")) for _ in range(10))
            )
            ports |= {reply.store_host.split()[0].rpartition(":")[2] for reply in replies}
    await carrier.stop(0)


async def test_a_stream_outlives_the_farewell_of_its_connection() -> None:
    service = EchoService()
    carrier = aged(service, 50)
    port = await carrier.start("127.0.0.1", 0)
    async with Http2Channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(60):
        stream = echo(channel)()
        await stream.write(RUN(run_id=1))
        await stream.read()
        old = service.receivers[0].stream.peer
        while (await unary(channel)(RUN(topic="context"))).store_host.split()[0] == old:
            continue
        await stream.write(RUN(run_id=2))

        assert (await stream.read()).run_id == 2
        stream.cancel()
    await carrier.stop(0)


async def test_calls_that_ask_together_share_one_connection(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        replies = await asyncio.gather(*(unary(channel)(RUN(topic="context")) for _ in range(50)))

    assert len({reply.store_host.split()[0] for reply in replies}) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_all_addresses_of_a_name_are_tried(host: str) -> None:
    carrier = OWN.plain([EchoService().methods()], limits=Limits())
    try:
        port = await carrier.start(host, 0)
    except ConfigError:
        pytest.skip(f"no {host} here")
    if host not in {place[4][0] for place in socket.getaddrinfo("localhost", port)}:
        await carrier.stop(0)
        pytest.skip(f"localhost is not {host} here")
    async with Http2Channel(f"localhost:{port}") as channel:
        assert (await unary(channel)(RUN(run_id=3))).run_id == 3
    await carrier.stop(0)
