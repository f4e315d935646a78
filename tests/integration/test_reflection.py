"""A client that knows nothing but gRPC learns from a server what it serves, and calls it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

from pocketmq.broker.broker import Broker, Network
from pocketmq.broker.metrics.opencensus import TRACES
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.carriers import GRPC_CHOICES
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.gen import grpc_reflection_pb2 as v1, grpc_reflection_v1alpha_pb2 as v1alpha
from pocketmq.proto.rpc import Limits, MethodTable
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config, nameserver_config
from .whole_broker import broker, store_config

VERSIONS = pytest.mark.parametrize("version", [v1, v1alpha], ids=["v1", "v1alpha"])
V2 = "apache.rocketmq.v2.MessagingService"


@pytest.fixture(params=GRPC_CHOICES)
def carrier(request: pytest.FixtureRequest) -> str:
    """What speaks HTTP/2, as settings say it."""
    found: str = request.param
    return found


class Stranger:
    """Calls methods by their names with JSON; all it knows of them comes from the server behind CHANNEL."""

    def __init__(self, channel: Any, version: Any) -> None:
        self._channel = channel
        self._version = version
        self._pool = DescriptorPool()
        self._files: set[str] = set()
        service = version.DESCRIPTOR.services_by_name["ServerReflection"].full_name
        self._questions = channel.stream_stream(
            f"/{service}/ServerReflectionInfo",
            version.ServerReflectionRequest.SerializeToString,
            version.ServerReflectionResponse.FromString,
        )()

    async def question(self, **asked: Any) -> Any:
        await self._questions.write(self._version.ServerReflectionRequest(**asked))
        return await self._questions.read()

    async def services(self) -> list[str]:
        reply = await self.question(list_services="")
        return [each.name for each in reply.list_services_response.service]

    async def learn(self, service: str) -> None:
        """Take the files that declare SERVICE, what is imported first."""
        reply = await self.question(file_containing_symbol=service)
        assert not reply.HasField("error_response"), reply.error_response
        for data in reversed(reply.file_descriptor_response.file_descriptor_proto):
            name = descriptor_pb2.FileDescriptorProto.FromString(data).name
            if name not in self._files:
                self._files.add(name)
                self._pool.AddSerializedFile(data)

    def methods(self, service: str) -> set[str]:
        return set(self._pool.FindServiceByName(service).methods_by_name)

    async def call(self, service: str, method: str, asked: dict[str, Any], **options: Any) -> Any:
        described = self._pool.FindServiceByName(service).methods_by_name[method]
        request, reply = map(
            message_factory.GetMessageClass, (described.input_type, described.output_type)
        )
        call = self._channel.unary_unary(
            f"/{service}/{method}", request.SerializeToString, reply.FromString
        )
        document = json_format.ParseDict(asked, request(), descriptor_pool=self._pool)
        return json_format.MessageToDict(await call(document, **options))


@VERSIONS
async def test_a_broker_can_be_called_in_both_protocols_by_who_knows_neither(
    tmp_path: Path, version: Any, carrier: str
) -> None:
    async with broker(store_config(tmp_path), name="broker-x", grpc=carrier) as (server, peer):
        stranger = Stranger(peer.channel, version)
        services = await stranger.services()
        for service in services:
            await stranger.learn(service)

        config = {"name": "seen", "readQueues": 3, "writeQueues": 3, "permission": 6}
        await stranger.call("pocketmq.v1.Broker", "CreateTopic", {"topic": config})
        status = await stranger.call("pocketmq.v1.Broker", "Status", {})
        endpoint = {"addresses": [{"host": "127.0.0.1", "port": server.port}], "scheme": "IPv4"}
        asked = {"topic": {"name": "seen"}, "endpoints": endpoint}
        route = await stranger.call(
            V2, "QueryRoute", asked, metadata=(("x-mq-client-id", "stranger"),)
        )
        health = await stranger.call("grpc.health.v1.Health", "Check", {})

    assert {"pocketmq.v1.Broker", V2, "grpc.health.v1.Health"} < set(services)
    assert status["brokerName"] == "broker-x"
    assert [queue["id"] for queue in route["messageQueues"] if "id" in queue] == [1, 2]
    assert len(route["messageQueues"]) == 3
    assert health == {"status": "SERVING"}


async def test_every_method_that_is_carried_is_described(tmp_path: Path) -> None:
    carried: set[str] = set()

    def make(tables: Iterable[MethodTable], *, limits: Limits) -> GrpcioCarrier:
        made = list(tables)
        carried.update(method.path for table in made for method in table)
        return GrpcioCarrier(made, limits=limits)

    server = Broker.build(
        broker_config(port=0, nameservers=()),
        store_config(tmp_path),
        disk=OsDisk(),
        clock=SystemClock(),
        network=Network(make_carrier=make),
    )
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stranger = Stranger(channel, v1)
            described = set()
            for service in await stranger.services():
                await stranger.learn(service)
                described |= {f"/{service}/{method}" for method in stranger.methods(service)}
    finally:
        await server.stop()

    # Of traces nothing is read: what they look like is nowhere written down.
    assert {path.rpartition("/")[0] for path in carried - described} == {f"/{TRACES}"}
    assert len(described) > 50


async def test_a_name_server_describes_itself_and_goes_on_after_bad_questions(carrier: str) -> None:
    server = NameServer.build(nameserver_config(port=0, grpc=carrier), clock=SystemClock())
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stranger = Stranger(channel, v1)
            for bad in ({}, {"file_containing_symbol": "pocketmq.v1.Borker"}):
                assert (await stranger.question(**bad)).HasField("error_response")
            assert "pocketmq.v1.NameServer" in await stranger.services()
            await stranger.learn("pocketmq.v1.NameServer")
            found = await stranger.call("pocketmq.v1.NameServer", "Cluster", {})
    finally:
        await server.stop(grace_s=0)

    assert found == {}
