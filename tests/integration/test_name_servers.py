"""Several name servers, a broker and clients: any name server may be lost, and comes back with all there is to know."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import grpc.aio
import pytest

from pocketmq.broker.broker import Broker
from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from pocketmq.nameserver import NameServer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import Unsupported
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config, nameserver_config
from .whole_broker import store_config


class Servers:
    """Starts servers, and stops whatever is left at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    async def name_server(self, port: int = 0) -> NameServer:
        server = NameServer.build(nameserver_config(port=port), clock=SystemClock())
        await server.start()
        self._stack.push_async_callback(server.stop, 0)
        return server

    async def broker(self, *servers: NameServer) -> Broker:
        config = broker_config(port=0, nameservers=tuple(server.address for server in servers))
        broker = Broker.build(
            config, store_config(self._folder), disk=OsDisk(), clock=SystemClock()
        )
        await broker.start()
        self._stack.push_async_callback(broker.stop)
        return broker


async def brokers_of(server: NameServer, topic: str) -> list[str]:
    """Ask SERVER alone where TOPIC is."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = channel.unary_unary(
            "/pocketmq.v1.NameServer/Route",
            pb.RouteRequest.SerializeToString,
            pb.RouteReply.FromString,
        )
        reply = await call(pb.RouteRequest(topics=[topic]))
    return [queue.broker_name for route in reply.routes for queue in route.queues]


async def until(server: NameServer, topic: str, brokers: list[str]) -> None:
    """Ask until the answer is BROKERS; the test's time limit is the bound."""
    while await brokers_of(server, topic) != brokers:
        pass


async def test_any_name_server_may_be_lost_and_come_back(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        first, second = await servers.name_server(), await servers.name_server()
        addresses = f"{first.address},{second.address}"
        await servers.broker(first, second)
        await until(first, "broker-a", ["broker-a"])
        await until(second, "broker-a", ["broker-a"])
        async with AsyncAdmin(addresses) as admin, AsyncProducer(addresses) as producer:
            await admin.create_topic("T")
            await until(first, "T", ["broker-a"])
            await until(second, "T", ["broker-a"])

            await first.stop(grace_s=0)
            await producer.send(Message("T", b"one"))

            first = await servers.name_server(first.port)
            await until(first, "T", ["broker-a"])
            await second.stop(grace_s=0)
            await admin.create_topic("U")
            await producer.send(Message("U", b"two"))
            assert await brokers_of(first, "U") == ["broker-a"]


async def test_a_stopped_broker_is_gone_at_once_from_all(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        first, second = await servers.name_server(), await servers.name_server()
        broker = await servers.broker(first, second)
        await until(first, "broker-a", ["broker-a"])
        await until(second, "broker-a", ["broker-a"])

        await broker.stop()

        await until(first, "broker-a", [])
        await until(second, "broker-a", [])


async def test_a_broker_starts_without_any_name_server_and_registers_when_one_comes(
    tmp_path: Path,
) -> None:
    async with Servers(tmp_path) as servers:
        absent = await servers.name_server()
        await absent.stop(grace_s=0)
        await servers.broker(absent)

        late = await servers.name_server(absent.port)

        await until(late, "broker-a", ["broker-a"])


async def test_a_brokers_port_given_as_name_server_is_named_as_what_it_is(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        broker = await servers.broker(await servers.name_server())
        says = rf"{broker.address} is not a name server: .* Is it the port of a broker\?"

        async with AsyncProducer(broker.address) as sending:
            with pytest.raises(Unsupported, match=says):
                await sending.send(Message("orders", b"x"))
        async with AsyncPullConsumer(
            "g", "orders", broker.address, nameserver_timeout_ms=100
        ) as reading:
            with pytest.raises(Unsupported, match=f"after 0.* s, no name server answers: {says}"):
                await reading.poll(timeout_ms=10_000)
