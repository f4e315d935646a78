"""Random bytes and odd messages to every method of a name server: each is answered, and the server lives."""

from __future__ import annotations

import asyncio
import contextlib
import random

import grpc.aio
import pytest

from pocketmq.nameserver import NameServer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ..served import nameserver_config
from ..wire_fuzz import Fuzzer

ROUNDS = 150

GOOD = (
    pb.BrokerRegistration(
        cluster="c",
        broker_name="broker-a",
        broker_id=1,
        address="127.0.0.1:8081",
        data_version=1,
        role=pb.FOLLOWER,
        epoch=3,
        topics=[
            pb.TopicConfig(name=name, read_queues=8, write_queues=8, permission=6)
            for name in ("T", "U")
        ],
    ),
    pb.RouteRequest(topics=["T", "U"]),
    pb.TopicListRequest(include_system=True),
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_bad_request_is_answered_with_its_field(seed: int) -> None:
    server = NameServer.build(nameserver_config(port=0), clock=SystemClock())
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        fuzzer = Fuzzer(seed, channel, GOOD)
        methods = pb.DESCRIPTOR.services_by_name["NameServer"].methods
        complaints = [
            complaint
            for _ in range(ROUNDS)
            for method in methods
            if (complaint := await fuzzer.assault(method))
        ]
        assert await fuzzer.lives("/pocketmq.v1.NameServer/Cluster")
    await server.stop(grace_s=0)

    assert complaints == [], f"seed {seed}"


async def test_bytes_that_are_no_http2_at_all_cost_their_own_connection() -> None:
    chooser = random.Random(7)
    server = NameServer.build(nameserver_config(port=0), clock=SystemClock())
    await server.start()
    host, _, port = server.address.rpartition(":")
    for preface in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(preface + chooser.randbytes(5_000))
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
    async with grpc.aio.insecure_channel(server.address) as channel:
        assert await Fuzzer(0, channel).lives("/pocketmq.v1.NameServer/Cluster")
    await server.stop(grace_s=0)
