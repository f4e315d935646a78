"""The admin against clusters in memory: what it does on which brokers, and when it returns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer, Message, OffsetTarget, Queue
from pocketmq.client.administration.brokers import Brokers
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    InvalidArgument,
    InvalidName,
    MessageNotFound,
    QueueNotFound,
    RequestTimeout,
    RouteNotFound,
    TopicExists,
    TopicInUse,
    TopicNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record, encode_record

from .fake_broker import FakeBroker, add_topic
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections


def admin(
    cluster: FakeCluster, clock: VirtualClock | None = None, servers: str = "n1:1"
) -> AsyncAdmin:
    return AsyncAdmin(servers, clock=clock or VirtualClock(), connections=FakeConnections(cluster))


def cluster_of_two() -> FakeCluster:
    return FakeCluster(FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2"))


async def test_a_topic_is_made_on_every_broker() -> None:
    cluster = cluster_of_two()

    async with admin(cluster) as managing:
        made = await managing.create_topic("orders", queues=3, type="FIFO")

    assert made.brokers == ("a", "b")
    assert (made.read_queues, made.write_queues, made.type) == (3, 3, "FIFO")
    assert all("orders" in broker.topics for broker in cluster.brokers.values())


async def test_a_topic_that_some_broker_lacks_is_completed_and_one_that_all_have_is_refused() -> (
    None
):
    cluster = cluster_of_two()
    add_topic(cluster.broker, "orders", 3)

    async with admin(cluster) as managing:
        assert (await managing.create_topic("orders", queues=3)).brokers == ("b",)
        with pytest.raises(TopicExists):
            await managing.create_topic("orders", queues=3)


async def test_creating_returns_only_when_every_name_server_shows_it() -> None:
    cluster, clock = FakeCluster.of_one(), VirtualClock()
    shown = False
    real_route = cluster.route
    cluster.route = lambda request, call: (  # type: ignore[method-assign, assignment]
        real_route(request, call) if shown else pb.RouteReply()
    )

    async with admin(cluster, clock) as managing:
        creating = asyncio.ensure_future(managing.create_topic("orders"))
        await clock.advance(2_000)
        assert not creating.done()
        shown = True
        await clock.advance(2_000)
        assert (await creating).name == "orders"


async def test_a_change_that_never_shows_is_told() -> None:
    cluster, clock = FakeCluster.of_one(), VirtualClock()
    cluster.route = lambda request, call: pb.RouteReply()  # type: ignore[method-assign, assignment]

    async with admin(cluster, clock) as managing:
        creating = asyncio.ensure_future(managing.create_topic("orders"))
        await clock.advance(10_000)
        with pytest.raises(RequestTimeout, match="do not show"):
            await creating


async def test_a_topic_is_changed_listed_described_and_deleted() -> None:
    cluster = cluster_of_two()

    async with admin(cluster) as managing:
        await managing.create_topic("orders", queues=2)
        changed = await managing.update_topic("orders", queues=4, permission=4)
        listed = await managing.topics()
        described = await managing.describe_topic("orders")
        await managing.delete_topic("orders")
        assert await managing.topics() == []
        with pytest.raises(TopicNotFound):
            await managing.describe_topic("orders")
        with pytest.raises(TopicNotFound):
            await managing.delete_topic("orders")

    assert (changed.write_queues, changed.permission) == (4, 4)
    assert [(topic.name, topic.brokers) for topic in listed] == [("orders", ("a", "b"))]
    assert len(described.queues) == 8


async def test_queues_that_nobody_has_read_go_by_force_only() -> None:
    cluster = cluster_of_two()

    async with admin(cluster) as managing:
        await managing.create_topic("orders", queues=4)
        cluster.brokers["127.0.0.1:2"].queues["orders", 3] = [b"a record"]
        with pytest.raises(TopicInUse, match=r"1 message in .*\(b:3\), not read by any group;"):
            await managing.update_topic("orders", queues=2)
        written = await managing.update_topic("orders", queues=2, read_queues=4)
        forced = await managing.update_topic("orders", queues=2, force=True)

    assert (written.read_queues, written.write_queues) == (4, 2)
    assert (forced.read_queues, forced.write_queues) == (2, 2)


async def test_queues_go_once_every_group_of_the_topic_has_read_them() -> None:
    cluster = cluster_of_two()
    a, b = (cluster.brokers[f"127.0.0.1:{n}"] for n in (1, 2))

    async with admin(cluster) as managing:
        await managing.create_topic("orders", queues=4)
        for group in ("billing", "other", "slow"):
            await managing.create_group(group)
        b.queues["orders", 3] = [b"a record"] * 5
        b.committed["billing", "orders", 3] = 5
        b.committed["slow", "orders", 3] = 3
        a.committed["slow", "orders", 0] = 0
        a.committed["other", "elsewhere", 0] = 1
        with pytest.raises(TopicInUse, match=r"not read by slow \(2 messages\);") as refused:
            await managing.update_topic("orders", queues=2)
        del b.committed["slow", "orders", 3]
        with pytest.raises(TopicInUse, match=r"not read by slow \(5 messages\);"):
            await managing.update_topic("orders", queues=2)
        b.committed["slow", "orders", 3] = 5
        updated = await managing.update_topic("orders", queues=2)

    assert refused.value.details["messages"] == "2"
    assert updated.read_queues == 2


async def test_queues_stay_if_groups_that_you_may_not_see_may_not_have_read_them() -> None:
    cluster = cluster_of_two()
    b = cluster.brokers["127.0.0.1:2"]

    def list_groups(_: pb.GroupListRequest, __: Any) -> pb.GroupListReply:
        return pb.GroupListReply(groups=b.groups.values(), hidden=2)

    async with admin(cluster) as managing:
        await managing.create_topic("orders", queues=4)
        await managing.create_group("billing")
        b.queues["orders", 3] = [b"a record"] * 5
        b.committed["billing", "orders", 3] = 5
        b.list_groups = list_groups  # type: ignore[method-assign]
        with pytest.raises(TopicInUse, match="groups that you are not allowed to see: 2;"):
            await managing.update_topic("orders", queues=2)


async def test_groups_are_made_listed_and_deleted() -> None:
    async with admin(cluster_of_two()) as managing:
        made = await managing.create_group("billing", retry_max_times=3, order=True)
        assert await managing.groups() == [made]
        await managing.delete_group("billing")
        assert await managing.groups() == []

    assert (made.retry_max_times, made.order) == (3, True)


async def test_offsets_of_a_group_tell_its_lag() -> None:
    cluster = FakeCluster.of_one("orders", queues=2)
    connections = FakeConnections(cluster)
    async with AsyncProducer(connections=connections, clock=VirtualClock()) as producer:
        for number in range(10):
            await producer.send(Message("orders", b"x", queue=number % 2))

    async with admin(cluster) as managing:
        await managing.set_group_offsets("billing", {Queue("orders", "broker-a", 1): 3})
        everywhere = await managing.group_offsets("billing", "orders")
        known = await managing.group_offsets("billing")
        queues = await managing.queue_offsets("orders")
        with pytest.raises(RouteNotFound, match="broker-z"):
            await managing.set_group_offsets("billing", {Queue("orders", "broker-z", 1): 3})

    assert [(p.queue.number, p.offset, p.lag) for p in everywhere] == [(0, -1, 5), (1, 3, 2)]
    assert [(p.queue.number, p.offset) for p in known] == [(1, 3)]
    assert [queue.message_count for queue in queues] == [5, 5]


async def test_messages_are_found_by_key_and_by_either_id() -> None:
    cluster = FakeCluster.of_one("orders", "bills")
    connections = FakeConnections(cluster)
    async with AsyncProducer(connections=connections, clock=VirtualClock()) as producer:
        receipt = await producer.send(Message("orders", b"one", keys=["k1", "k2"]))
        await producer.send(Message("orders", b"two", key="k2"))

    async with admin(cluster) as managing:
        by_key = await managing.lookup("orders", "k2")
        with_topic = await managing.lookup_id(receipt.message_id, "orders")
        without_topic = await managing.lookup_id(receipt.message_id)
        assert await managing.lookup("orders", "nothing") == []
        with pytest.raises(MessageNotFound, match="'0123'"):
            await managing.lookup_id("0123")

    assert [message.body for message in by_key] == [b"one", b"two"]
    assert with_topic.body == without_topic.body == b"one"


async def test_of_all_brokers_the_newest_messages_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answers(*_: object, **__: object) -> dict[str, pb.LookupReply]:
        return {"a": reply_of(1, 3, 5), "b": reply_of(2, 4)}

    def reply_of(*times: int) -> pb.LookupReply:
        records = [Record(topic="orders", body=b"%d" % at, store_timestamp_ms=at) for at in times]
        return pb.LookupReply(records=b"".join(map(encode_record, records)))

    monkeypatch.setattr(Brokers, "ask_all", answers)
    async with admin(cluster_of_two()) as managing:
        found = await managing.lookup("orders", "k", max_messages=3)

    assert [message.body for message in found] == [b"3", b"4", b"5"]


async def test_messages_are_found_by_time() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    connections = FakeConnections(cluster)
    async with AsyncProducer(connections=connections, clock=VirtualClock()) as producer:
        await producer.send_many([Message("orders", b"%d" % n) for n in range(5)])

    async with admin(cluster) as managing:
        stored_at = 0  # as the fake broker leaves it
        found = await managing.lookup_time("orders", stored_at, stored_at + 1, max_messages=3)
        with pytest.raises(InvalidArgument, match="end_ms"):
            await managing.lookup_time("orders", 5, 5)
        for asked in (
            managing.lookup_time("orders", 1_764_331_200, 1_764_331_300),
            managing.lookup_time("orders", 0, 1_764_331_300),
            managing.lookup("orders", "k", begin_ms=1_764_331_200),
            managing.lookup("orders", "k", end_ms=1_764_331_200),
            managing.queue_offsets("orders", time_ms=1_764_331_200),
        ):
            with pytest.raises(InvalidArgument, match="Unix seconds"):
                await asked
        with pytest.raises(InvalidArgument, match="Unix seconds"):
            OffsetTarget(time_ms=1_764_331_200)

    assert [message.body for message in found] == [b"0", b"1", b"2"]


async def test_a_time_is_looked_up_in_all_queues_at_once() -> None:
    cluster = FakeCluster.of_one("orders", queues=1_000)
    connections = FakeConnections(cluster)
    async with AsyncProducer(connections=connections, clock=VirtualClock()) as producer:
        await producer.send_many([Message("orders", b"%d" % n) for n in range(40)])
    with_messages = sum(1 for run in cluster.broker.queues.values() if run)
    cluster.asked.clear()

    async with admin(cluster) as managing:
        everything = await managing.lookup_time("orders", 0, 1, max_messages=64)
        asked = len(cluster.asked)
        some = await managing.lookup_time("orders", 0, 1, max_messages=7)

    assert sorted(int(message.body) for message in everything) == list(range(40))
    assert asked <= 2 * with_messages + 5
    assert [one.body for one in some] == [one.body for one in everything[:7]]


async def test_messages_are_found_by_their_offset() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    connections = FakeConnections(cluster)
    async with AsyncProducer(connections=connections, clock=VirtualClock()) as producer:
        await producer.send_many([Message("orders", b"%d" % n) for n in range(5)])

    async with admin(cluster) as managing:
        one = await managing.lookup_offset("orders", 0, 3)
        rest = await managing.lookup_offset("orders", 0, 3, max_messages=9)
        for offset in (5, 6):
            with pytest.raises(MessageNotFound, match=f"offset {offset}"):
                await managing.lookup_offset("orders", 0, offset)
        with pytest.raises(QueueNotFound):
            await managing.lookup_offset("orders", 1, 0)

    assert [message.body for message in one] == [b"3"]
    assert [message.body for message in rest] == [b"3", b"4"]


async def test_brokers_are_described() -> None:
    async with admin(cluster_of_two()) as managing:
        assert [(b.broker_name, b.writable) for b in await managing.brokers()] == [
            ("a", True),
            ("b", True),
        ]


async def test_without_a_broker_everything_says_so() -> None:
    async with admin(FakeCluster()) as managing:
        with pytest.raises(RouteNotFound, match="no broker is registered at n1:1"):
            await managing.topics()
        with pytest.raises(InvalidName):
            await managing.create_topic("no/slash")
