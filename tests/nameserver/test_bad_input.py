"""Random bytes and odd messages to every method of a name server: each is answered, and the server lives."""

from __future__ import annotations

import grpc.aio
import pytest

from pocketmq.nameserver import NameServer, NameServerConfig
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ..wire_fuzz import Fuzzer

ROUNDS = 150

GOOD = (
    pb.BrokerRegistration(
        cluster="c",
        broker_name="broker-a",
        broker_id=1,
        address="127.0.0.1:8081",
        data_version=1,
        topics=[
            pb.TopicConfig(name=name, read_queues=8, write_queues=8, permission=6)
            for name in ("T", "U")
        ],
    ),
    pb.RouteRequest(topics=["T", "U"]),
    pb.TopicListRequest(include_system=True),
)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_bad_request_is_answered_with_its_field(seed: int) -> None:
    server = NameServer.build(NameServerConfig(port=0), clock=SystemClock())
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
