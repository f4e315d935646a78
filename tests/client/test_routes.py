"""Routes: how long they are kept, when they are asked for, what is served without a name server."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pocketmq.client.config import ClientConfig
from pocketmq.client.session import Session, local_host
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConnectionLost, RouteNotFound
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import NO_HOST, Host

from .fake_broker import FakeBroker, add_topic
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections


def session(cluster: FakeCluster, clock: VirtualClock, nameservers: str = "n1:1,n2:2") -> Session:
    config = ClientConfig(nameservers=nameservers)
    return Session(config, FakeConnections(cluster), clock, Random(1))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_queues_are_interleaved_over_brokers() -> None:
    brokers = [FakeBroker("a", "h:1"), FakeBroker("b", "h:2")]
    for broker in brokers:
        add_topic(broker, "orders", 2)

    route = await session(FakeCluster(*brokers), VirtualClock()).routes.find("orders")

    assert [(q.broker, q.number) for q in route.writable] == [
        ("a", 0),
        ("b", 0),
        ("a", 1),
        ("b", 1),
    ]
    assert route.addresses == {"a": "h:1", "b": "h:2"}


async def test_a_fresh_route_is_not_asked_for_again() -> None:
    cluster, clock = FakeCluster.of_one("orders"), VirtualClock()
    routes = session(cluster, clock).routes

    await routes.find("orders")
    await clock.advance(29_999)
    await routes.find("orders")

    assert cluster.asked == ["n1:1"]


async def test_an_old_route_is_served_while_it_is_asked_for() -> None:
    cluster, clock = FakeCluster.of_one("orders", queues=1), VirtualClock()
    routes = session(cluster, clock).routes
    await routes.find("orders")
    add_topic(cluster.broker, "orders", 2)
    await clock.advance(30_000)

    assert len((await routes.find("orders")).writable) == 1
    await settle()
    assert len((await routes.find("orders")).writable) == 2


async def test_a_known_route_outlives_all_name_servers() -> None:
    cluster, clock = FakeCluster.of_one("orders"), VirtualClock()
    routes = session(cluster, clock).routes
    await routes.find("orders")
    cluster.lost.update({"n1:1", "n2:2"})
    routes.forget("orders")
    await clock.advance(120_000)

    assert len((await routes.find("orders")).writable) == 4


async def test_a_forgotten_route_is_asked_for_at_once() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    routes = session(cluster, VirtualClock()).routes
    await routes.find("orders")
    add_topic(cluster.broker, "orders", 3)
    routes.forget("orders")

    assert len((await routes.find("orders")).writable) == 3


async def test_asking_anew_finds_where_a_broker_has_gone_without_waiting() -> None:
    cluster = FakeCluster.of_one("orders")
    routes = session(cluster, VirtualClock()).routes
    await routes.find("orders")
    cluster.broker.address = "127.0.0.9:9"

    routes.refresh("orders")
    await settle()

    assert routes.address("broker-a") == "127.0.0.9:9"
    assert cluster.asked == ["n1:1", "n1:1"]


async def test_a_deleted_topic_loses_its_route() -> None:
    cluster = FakeCluster.of_one("orders")
    routes = session(cluster, VirtualClock()).routes
    await routes.find("orders")
    del cluster.broker.topics["orders"]
    routes.forget("orders")

    with pytest.raises(RouteNotFound, match="topic create"):
        await routes.find("orders")
    assert routes.known("orders") is None


async def test_the_last_good_name_server_is_asked_first() -> None:
    cluster = FakeCluster.of_one("orders", "bills")
    cluster.lost.add("n1:1")
    routes = session(cluster, VirtualClock()).routes

    await routes.find("orders")
    await routes.find("bills")

    assert cluster.asked == ["n1:1", "n2:2", "n2:2"]


async def test_a_provisional_route_serves_writing_only_and_not_for_long() -> None:
    cluster, clock = FakeCluster.of_one(), VirtualClock()
    routes = session(cluster, clock).routes

    assert len((await routes.find("fresh", provisional=True)).writable) == 4
    with pytest.raises(RouteNotFound):
        await routes.find("fresh")
    add_topic(cluster.broker, "fresh", 8)
    await clock.advance(1_000)
    routes.known("fresh")
    await settle()
    assert len((await routes.find("fresh", provisional=True)).writable) == 8


async def test_brokers_without_a_master_are_left_out() -> None:
    cluster = FakeCluster.of_one("orders")
    routes = session(cluster, VirtualClock()).routes
    slave = pb.BrokerData(cluster="c", broker_name="broker-a", addresses={1: "h:1"})
    cluster.route = lambda request, _: pb.RouteReply(  # type: ignore[method-assign]
        routes=[
            pb.TopicRoute(
                topic="orders",
                queues=[pb.QueueData(broker_name="broker-a", write_queues=4, permission=6)],
                brokers=[slave],
            )
        ]
    )

    assert (await routes.find("orders")).writable == ()


async def test_an_unknown_broker_is_named() -> None:
    routes = session(FakeCluster.of_one("orders"), VirtualClock()).routes
    await routes.find("orders")

    with pytest.raises(RouteNotFound, match=r"'broker-z'.*broker-a"):
        routes.address("broker-z")


async def test_all_name_servers_are_asked_and_lost_ones_left_out() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.lost.add("n1:1")
    servers = session(cluster, VirtualClock()).name_servers

    assert len(await servers.ask_all("Cluster", pb.ClusterRequest(), pb.ClusterReply)) == 1
    cluster.lost.add("n2:2")
    with pytest.raises(ConnectionLost, match="n2:2"):
        await servers.ask_all("Cluster", pb.ClusterRequest(), pb.ClusterReply)


async def test_the_own_address_is_the_one_towards_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await local_host("127.0.0.1:9") == Host(bytes((127, 0, 0, 1)), 0)

    async def refuse(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_datagram_endpoint", refuse)
    assert await local_host("127.0.0.1:9") == NO_HOST
