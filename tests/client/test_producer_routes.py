"""Where a producer finds the queues of a topic, and what it says where there are none."""

from __future__ import annotations

import asyncio

import pytest

from pocketmq.client import Message, Queue
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import NotWritable, QueueNotFound, RouteNotFound, TopicNotFound

from .fake_broker import add_topic
from .fake_cluster import FakeCluster
from .producing import producer


async def test_an_unknown_topic_is_left_to_the_broker_to_create() -> None:
    cluster = FakeCluster.of_one()

    async with producer(cluster) as sending:
        add_later = sending.send_nowait(Message("fresh", b"x"))
        add_topic(cluster.broker, "fresh", 4)
        assert (await add_later).topic == "fresh"


async def test_a_broker_that_does_not_create_topics_says_so() -> None:
    async with producer(FakeCluster.of_one()) as sending:
        with pytest.raises(TopicNotFound, match="fresh"):
            await sending.send(Message("fresh", b"x"))


async def test_without_a_broker_the_error_names_topic_and_servers() -> None:
    clock = VirtualClock()

    async with producer(FakeCluster(), clock, "h1:1,h2:2", route_timeout_ms=1_000) as sending:
        sent = sending.send_nowait(Message("orders", b"x"))
        await clock.advance(1_000)
        with pytest.raises(RouteNotFound, match=r"'orders' at h1:1, h2:2.*no broker"):
            await sent


async def test_without_a_name_server_the_error_names_all_of_them() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.lost.update({"h1:1", "h2:2"})
    clock = VirtualClock()

    async with producer(cluster, clock, "h1:1,h2:2", route_timeout_ms=1_000) as sending:
        sent = sending.send_nowait(Message("orders", b"x"))
        await clock.advance(1_000)
        with pytest.raises(RouteNotFound, match=r"cannot reach h1:1; cannot reach h2:2"):
            await sent


async def test_a_name_server_that_comes_late_is_waited_for() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.lost.add("127.0.0.1:9876")
    clock = VirtualClock()

    async with producer(cluster, clock) as sending:
        sent = sending.send_nowait(Message("orders", b"x"))
        await clock.advance(500)
        cluster.lost.clear()
        await clock.advance(1_000)
        assert (await sent).queue_offset == 0


async def test_a_topic_without_write_permission_is_refused() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.topics["orders"].permission = 4

    async with producer(cluster) as sending:
        with pytest.raises(NotWritable, match="permission"):
            await sending.send(Message("orders", b"x"))


async def test_a_queue_that_was_added_is_found_by_asking_once() -> None:
    cluster, clock = FakeCluster.of_one("orders", queues=2), VirtualClock()

    async with producer(cluster, clock) as sending:
        await sending.send("orders", b"0", queue=1)
        add_topic(cluster.broker, "orders", 4)
        await clock.advance(1_000)
        cluster.asked.clear()

        receipts = await asyncio.gather(
            sending.send(Message("orders", b"1", queue=3)),
            sending.send("orders", b"2", queue=Queue("orders", "broker-a", 2)),
            sending.send_many("orders", [b"3", b"4"], queue=3),
        )
        assert cluster.asked.count("127.0.0.1:9876") == 1
        with pytest.raises(QueueNotFound, match="there is no queue 9"):
            await sending.send(Message("orders", b"x", queue=9))
        with pytest.raises(QueueNotFound, match="there is no queue 9"):
            await sending.send(Message("orders", b"x", queue=9))

    assert [receipts[0].queue, receipts[1].queue] == [3, 2]
    assert cluster.asked.count("127.0.0.1:9876") == 1
