"""The health of whole servers, as a probe or a load balancer asks for it over a real connection."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.carriers import GRPC_CHOICES
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.gen import grpc_health_pb2 as pb

from ..fakes import FaultyDisk
from ..served import nameserver_config
from .whole_broker import EOF, broker, run_of, store_config

PATH = "/grpc.health.v1.Health/"
SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
LOCAL = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture(params=GRPC_CHOICES)
def carrier(request: pytest.FixtureRequest) -> str:
    """What speaks HTTP/2, as settings say it."""
    found: str = request.param
    return found


async def check(channel: Any, name: str = "") -> int:
    ask = channel.unary_unary(
        PATH + "Check",
        pb.HealthCheckRequest.SerializeToString,
        pb.HealthCheckResponse.FromString,
    )
    status: int = (await ask(pb.HealthCheckRequest(service=name))).status
    return status


def watch(channel: Any, name: str = "") -> Any:
    """Open a stream that tells of NAME."""
    ask = channel.unary_stream(
        PATH + "Watch", pb.HealthCheckRequest.SerializeToString, pb.HealthCheckResponse.FromString
    )
    return ask(pb.HealthCheckRequest(service=name))


async def until_it_ends(stream: Any) -> tuple[list[int], str]:
    """Return what STREAM tells from now on, and the status that it ends with."""
    told: list[int] = []
    try:
        while (reply := await stream.read()) is not EOF:
            told.append(reply.status)
    except grpc.aio.AioRpcError as error:
        return told, error.code().name
    return told, "OK"


async def test_a_broker_tells_its_health_from_its_start_to_its_stop(
    tmp_path: Path, carrier: str
) -> None:
    async with (
        broker(store_config(tmp_path), grpc=carrier) as (server, _),
        grpc.aio.insecure_channel(server.address, options=LOCAL) as channel,
    ):
        names = ("", "pocketmq.v1.Broker", "apache.rocketmq.v2.MessagingService", "writable")
        assert [await check(channel, name) for name in names] == [SERVING] * 4
        watching = watch(channel)
        assert (await watching.read()).status == SERVING

        ended = asyncio.create_task(until_it_ends(watching))
        await server.stop()

        assert await ended == ([NOT_SERVING], "UNAVAILABLE")


async def test_a_name_server_tells_its_health_from_its_start_to_its_stop(carrier: str) -> None:
    server = NameServer.build(nameserver_config(port=0, grpc=carrier), clock=SystemClock())
    await server.start()
    async with grpc.aio.insecure_channel(server.address, options=LOCAL) as channel:
        assert [await check(channel, name) for name in ("", "pocketmq.v1.NameServer")] == [
            SERVING,
            SERVING,
        ]
        watching = watch(channel)
        assert (await watching.read()).status == SERVING

        ended = asyncio.create_task(until_it_ends(watching))
        await server.stop()

        assert await ended == ([NOT_SERVING], "UNAVAILABLE")


async def test_a_service_that_is_not_there_is_not_found(tmp_path: Path, carrier: str) -> None:
    async with broker(store_config(tmp_path), grpc=carrier) as (_, peer):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await check(peer.channel, "pocketmq.v1.NameServer")
        watching = watch(peer.channel, "pocketmq.v1.NameServer")
        assert (await watching.read()).status == pb.HealthCheckResponse.SERVICE_UNKNOWN
        watching.cancel()

    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert "pocketmq.v1.NameServer" in (raised.value.details() or "")


async def test_a_broker_that_cannot_write_serves_but_is_not_writable(
    tmp_path: Path, carrier: str
) -> None:
    disk, clock = FaultyDisk(), VirtualClock()
    async with broker(store_config(tmp_path), disk=disk, clock=clock, grpc=carrier) as (
        server,
        peer,
    ):
        await peer.create_topic()
        watching = watch(peer.channel, "writable")
        assert (await watching.read()).status == SERVING
        disk.break_writes("commitlog")
        await peer.refusal(run_of([b"lost"]))

        assert await check(peer.channel, "writable") == NOT_SERVING
        assert await check(peer.channel) == SERVING
        await server.advance("1s")
        assert (await watching.read()).status == NOT_SERVING
        watching.cancel()


async def test_secure_and_plain_callers_hear_of_one_stop(tmp_path: Path) -> None:
    async with (
        broker(store_config(tmp_path), grpc="builtin") as (server, _),
        grpc.aio.insecure_channel(server.address, options=LOCAL) as plain,
    ):
        root = await asyncio.to_thread(_certificate_at, server.port)
        credentials = grpc.ssl_channel_credentials(root)
        async with grpc.aio.secure_channel(
            f"localhost:{server.port}", credentials, options=LOCAL
        ) as secure:
            streams = [watch(channel) for channel in (plain, secure)]
            assert [(await stream.read()).status for stream in streams] == [SERVING] * 2

            ended = asyncio.gather(*map(until_it_ends, streams))
            await server.stop()

            assert await ended == [([NOT_SERVING], "UNAVAILABLE")] * 2


def _certificate_at(port: int) -> bytes:
    return ssl.get_server_certificate(("127.0.0.1", port)).encode()
