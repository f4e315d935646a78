"""A whole name server on a real loopback connection, its time a virtual clock."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pocketmq.nameserver import NameServer
from pocketmq.nameserver.route_table import RouteTable
from pocketmq.nameserver.service import NameServerService
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.errors import (
    ConfigError,
    InvalidArgument,
    MasterFenced,
    Overloaded,
    PocketMQError,
    ShuttingDown,
)
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ..authority import Authority
from ..served import nameserver_config

PATH = "/pocketmq.v1.NameServer/"
EOF = getattr(grpc.aio, "EOF")  # noqa: B009 (the stubs lack it)
TOPIC = pb.TopicConfig(name="T", read_queues=8, write_queues=4, permission=6)
BROKER = pb.BrokerRegistration(
    cluster="c", broker_name="broker-a", address="127.0.0.1:8081", data_version=1, topics=[TOPIC]
)
HEARTBEAT = pb.BrokerRegistration(
    cluster="c", broker_name="broker-a", address="127.0.0.1:8081", data_version=1, unchanged=True
)


class Peer:
    """A broker's and client's view of a name server."""

    def __init__(self, channel: grpc.aio.Channel, address: str = "") -> None:
        self.channel = channel
        self.address = address

    async def ask(self, method: str, request: Any, reply: Any) -> Any:
        call = self.channel.unary_unary(
            PATH + method, type(request).SerializeToString, reply.FromString
        )
        try:
            return await call(request)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def brokers_of(self, topic: str = "T") -> list[str]:
        reply = await self.ask("Route", pb.RouteRequest(topics=[topic]), pb.RouteReply)
        return [queue.broker_name for route in reply.routes for queue in route.queues]

    def register(self) -> Any:
        """Open the stream of a broker."""
        open_stream: Any = self.channel.stream_stream(
            PATH + "Register",
            pb.BrokerRegistration.SerializeToString,
            pb.RegistrationReply.FromString,
        )
        return open_stream()

    async def registered(self, registration: pb.BrokerRegistration = BROKER) -> Any:
        """Open the stream of a broker and register it."""
        stream = self.register()
        await stream.write(registration)
        assert not (await stream.read()).send_topics
        return stream


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[VirtualClock, Peer]]:
    clock = VirtualClock()
    server = NameServer.build(nameserver_config(port=0, **settings), clock=clock)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            yield clock, Peer(channel, server.address)
    finally:
        await server.stop(grace_s=0)


async def until_gone(peer: Peer) -> None:
    """Ask until no broker has the topic; the test's time limit is the bound."""
    while await peer.brokers_of():
        pass


def test_every_method_of_the_protocol_is_served_with_its_types() -> None:
    table = RouteTable(nameserver_config(broker_expiry_ms=1, brokers_max=1))
    methods = NameServerService(table, nameserver_config(), SystemClock()).methods()
    described = pb.DESCRIPTOR.services_by_name["NameServer"]

    assert {
        (method.path, method.request_type.DESCRIPTOR, method.reply_type.DESCRIPTOR)
        for method in methods
    } == {
        (f"/{described.full_name}/{method.name}", method.input_type, method.output_type)
        for method in described.methods
    }


async def test_a_registered_broker_is_found_by_topic() -> None:
    async with serving() as (_, peer):
        await peer.registered()

        reply = await peer.ask("Route", pb.RouteRequest(topics=["T", "Unknown"]), pb.RouteReply)

        queues = pb.QueueData(broker_name="broker-a", read_queues=8, write_queues=4, permission=6)
        brokers = pb.BrokerData(
            cluster="c", broker_name="broker-a", addresses={0: "127.0.0.1:8081"}
        )
        assert list(reply.routes) == [pb.TopicRoute(topic="T", queues=[queues], brokers=[brokers])]
        cluster = await peer.ask("Cluster", pb.ClusterRequest(), pb.ClusterReply)
        assert list(cluster.brokers) == [brokers]


async def test_topics_are_listed() -> None:
    async with serving() as (_, peer):
        own = pb.TopicConfig(name="TBW102", read_queues=8, write_queues=8, permission=7)
        registration = pb.BrokerRegistration()
        registration.CopyFrom(BROKER)
        registration.topics.append(own)
        await peer.registered(registration)

        for include_system, names in ((False, ["T"]), (True, ["T", "TBW102"])):
            request = pb.TopicListRequest(include_system=include_system)
            assert list((await peer.ask("ListTopics", request, pb.TopicListReply)).topics) == names


async def test_a_broken_stream_unregisters_at_once() -> None:
    async with serving() as (_, peer):
        stream = await peer.registered()
        stream.cancel()
        await until_gone(peer)


async def test_a_finished_stream_unregisters_and_ends_well() -> None:
    async with serving() as (_, peer):
        stream = await peer.registered()
        await stream.done_writing()

        assert await stream.read() is EOF
        assert await stream.code() is grpc.StatusCode.OK
        await until_gone(peer)


async def test_a_lost_connection_unregisters_at_once() -> None:
    async with serving() as (_, peer):
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(peer.address, options=options) as own:
            await Peer(own).registered()
            assert await peer.brokers_of() == ["broker-a"]
        await until_gone(peer)


async def test_the_end_of_an_old_stream_does_not_unregister_the_new_one() -> None:
    async with serving() as (_, peer):
        old = await peer.registered()
        await peer.registered()
        await old.done_writing()
        assert await old.read() is EOF

        assert await peer.brokers_of() == ["broker-a"]


async def test_a_silent_broker_expires_although_its_stream_is_open() -> None:
    async with serving() as (clock, peer):
        stream = await peer.registered()
        await clock.advance(100_000)
        await stream.write(HEARTBEAT)
        assert not (await stream.read()).send_topics
        await clock.advance(100_000)
        assert await peer.brokers_of() == ["broker-a"]

        await clock.advance(30_000)

        assert await peer.brokers_of() == []
        await stream.write(HEARTBEAT)
        assert (await stream.read()).send_topics
        await stream.write(BROKER)
        assert not (await stream.read()).send_topics
        assert await peer.brokers_of() == ["broker-a"]


async def test_a_changed_topic_table_is_asked_for() -> None:
    async with serving() as (_, peer):
        stream = await peer.registered()
        newer = pb.BrokerRegistration()
        newer.CopyFrom(HEARTBEAT)
        newer.data_version = 2
        await stream.write(newer)
        assert (await stream.read()).send_topics


async def failure(stream: Any) -> PocketMQError:
    try:
        while await stream.read() is not EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the stream ended well")


async def test_a_bad_registration_fails_its_stream_with_the_field() -> None:
    async with serving() as (_, peer):
        stream = peer.register()
        await stream.write(pb.BrokerRegistration(cluster="c", broker_name="b", address="nowhere"))

        error = await failure(stream)
        assert type(error) is InvalidArgument
        assert error.details["field"] == "address"


async def test_a_stream_speaks_for_one_broker() -> None:
    async with serving() as (_, peer):
        stream = await peer.registered()
        other = pb.BrokerRegistration()
        other.CopyFrom(BROKER)
        other.broker_id = 1
        await stream.write(other)

        assert (await failure(stream)).details["field"] == "broker_name"
        await until_gone(peer)


async def test_a_deposed_master_hears_which_epoch_holds_and_does_not_take_the_route() -> None:
    async with serving() as (_, peer):
        old, new = pb.BrokerRegistration(), pb.BrokerRegistration()
        old.CopyFrom(BROKER)
        old.broker_id, old.role, old.epoch = 1, pb.MASTER, 7
        new.CopyFrom(old)
        new.broker_id, new.epoch, new.address = 2, 8, "127.0.0.1:8082"
        stream = await peer.registered(old)
        await peer.registered(new)

        await stream.write(old)
        error = await failure(stream)
        assert type(error) is MasterFenced
        assert error.details == {"field": "epoch", "limit": "8", "value": "7"}
        assert "epoch 8 is valid" in error.message

        old.role, old.epoch = pb.FOLLOWER, 8
        await peer.registered(old)
        brokers = pb.BrokerData(
            cluster="c",
            broker_name="broker-a",
            addresses={0: new.address, 1: old.address},
            replicas=[
                pb.Replica(replica_id=1, address=old.address, role=pb.FOLLOWER, epoch=8),
                pb.Replica(replica_id=2, address=new.address, role=pb.MASTER, epoch=8),
            ],
        )
        cluster = await peer.ask("Cluster", pb.ClusterRequest(), pb.ClusterReply)
        assert list(cluster.brokers) == [brokers]
        reply = await peer.ask("Route", pb.RouteRequest(topics=["T"]), pb.RouteReply)
        assert list(reply.routes[0].brokers) == [brokers]


async def test_bounds_are_named_when_they_are_hit() -> None:
    async with serving(brokers_max=1, topics_per_broker_max=1, topics_per_route_max=2) as (_, peer):
        await peer.registered()
        second = peer.register()
        await second.write(
            pb.BrokerRegistration(cluster="c", broker_name="b", address="h:1", topics=[TOPIC])
        )
        error = await failure(second)
        assert type(error) is Overloaded
        assert error.details["limit"] == "1"

        third = peer.register()
        await third.write(
            pb.BrokerRegistration(cluster="c", broker_name="b", address="h:1", topics=[TOPIC] * 2)
        )
        assert (await failure(third)).details == {"field": "topics", "limit": "1", "value": "2"}

        with pytest.raises(InvalidArgument, match="topics: 3 in one request, the limit is 2"):
            await peer.ask("Route", pb.RouteRequest(topics=["T"] * 3), pb.RouteReply)
        with pytest.raises(InvalidArgument, match=r"topics\[1\]: .*'/'"):
            await peer.ask("Route", pb.RouteRequest(topics=["T", "a/b"]), pb.RouteReply)


async def test_a_state_in_parts_counts_when_it_is_whole_and_a_change_adds_to_it() -> None:
    async with serving(topics_per_broker_max=3) as (_, peer):
        stream = peer.register()
        part = pb.BrokerRegistration()
        part.CopyFrom(BROKER)
        part.more = True
        await stream.write(part)
        reply = await stream.read()
        assert (reply.send_topics, reply.takes_changes) == (False, True)
        assert await peer.brokers_of("T") == []

        part.more = False
        part.topics[0].name = "U"
        await stream.write(part)
        assert not (await stream.read()).send_topics
        assert await peer.brokers_of("T") == await peer.brokers_of("U") == ["broker-a"]

        part.changed_since, part.data_version = 1, 2
        part.topics[0].name = "V"
        part.gone.append("T")
        await stream.write(part)
        assert not (await stream.read()).send_topics
        assert await peer.brokers_of("T") == []
        assert await peer.brokers_of("V") == ["broker-a"]

        part.changed_since, part.data_version = 2, 3
        part.topics.extend([pb.TopicConfig(name="W"), pb.TopicConfig(name="X")])
        await stream.write(part)
        assert (await stream.read()).send_topics  # Too many, perhaps: the whole state tells.


async def test_a_second_name_server_on_the_port_is_refused() -> None:
    first = NameServer.build(nameserver_config(port=0), clock=SystemClock())
    await first.start()
    second = NameServer.build(nameserver_config(port=first.port), clock=SystemClock())

    with pytest.raises(ConfigError, match=f"127.0.0.1:{first.port}: Address already in use"):
        await second.start()
    await second.stop()
    await first.stop()


async def test_a_stop_tells_the_brokers_and_is_quick() -> None:
    server = NameServer.build(nameserver_config(port=0), clock=VirtualClock())
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        stream = await Peer(channel).registered()
        stopping = asyncio.ensure_future(server.stop(grace_s=30))
        assert type(await failure(stream)) is ShuttingDown
        await stopping


async def test_new_files_of_the_certificate_are_shown_after_a_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"

    def write() -> str:
        made = Authority().certificate()
        chain.write_bytes(made.chain)
        key.write_bytes(made.key)
        return made.chain.decode()

    first = write()
    config = nameserver_config(port=0, tls_cert=str(chain), tls_key=str(key))
    server = NameServer.build(config, clock=SystemClock())
    await server.start()

    async def shown() -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", server.port))

    assert await shown() == first
    second = write()
    server.reload_certificate()
    assert await shown() == second
    key.write_bytes(b"garbage")
    server.reload_certificate()
    assert await shown() == second
    assert "certificate not reloaded reason=nameserver.tls_cert" in caplog.text
    await server.stop(0)


def test_tls_alone_needs_a_certificate() -> None:
    with pytest.raises(
        ConfigError, match=r"nameserver\.tls_only or tls_ca is set, but .* is empty"
    ):
        nameserver_config(tls_only=True)
    with pytest.raises(ConfigError, match=r"nameserver\.tls_key is empty"):
        nameserver_config(tls_cert="chain.pem")
    with pytest.raises(ConfigError, match=r"nameserver\.tls_cert: nowhere\.pem cannot be"):
        NameServer.build(
            nameserver_config(tls_cert="nowhere.pem", tls_key="nowhere.pem"),
            clock=SystemClock(),
        )
