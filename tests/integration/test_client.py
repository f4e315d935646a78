"""The client library against real name servers and a real broker, in this process, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.client import (
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
)
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import (
    MessageNotFound,
    OffsetOutOfRange,
    RouteNotFound,
    TopicExists,
    TopicNotFound,
)
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config, nameserver_config
from .whole_broker import store_config


class Cluster:
    """Name servers and one broker, which can be stopped and started again at the same address."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = settings
        self.name_servers: list[NameServer] = []
        self.broker: Broker | None = None
        self._port = 0

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.name_servers)

    async def start_name_server(self) -> None:
        server = NameServer.build(nameserver_config(port=0), clock=SystemClock())
        await server.start()
        self.name_servers.append(server)

    async def start_broker(self) -> None:
        servers = tuple(server.address for server in self.name_servers)
        config = broker_config(port=self._port, nameservers=servers, **self._settings)
        store = store_config(self._folder, index_slots=5_000, index_entries=20_000)
        self.broker = Broker.build(config, store, disk=OsDisk(), clock=SystemClock())
        await self.broker.start()
        self._port = self.broker.port
        assert await self.broker.registered(10)

    async def stop_broker(self) -> None:
        if self.broker is not None:
            await self.broker.stop()
            self.broker = None


@asynccontextmanager
async def running(
    folder: Path, *, name_servers: int = 1, **settings: Any
) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, **settings)
    async with AsyncExitStack() as stack:
        for _ in range(name_servers):
            await cluster.start_name_server()
            stack.push_async_callback(cluster.name_servers[-1].stop)
        stack.push_async_callback(cluster.stop_broker)
        await cluster.start_broker()
        yield cluster


async def receive(consumer: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    """Return the next COUNT messages, or those that come within ten seconds of silence."""
    received: list[ReceivedMessage] = []
    while len(received) < count:
        messages = await consumer.poll(timeout_ms=10_000)
        if not messages:
            break
        received += messages
    return received


async def test_what_is_sent_is_received_and_found(tmp_path: Path) -> None:
    sent = [
        Message(
            "orders",
            b"body %d" % number,
            keys=[f"key-{number}", f"tenth-{number // 10}"],
            tag=f"tag-{number % 3}",
            properties={"number": str(number)},
        )
        for number in range(1_000)
    ]
    async with running(tmp_path) as cluster:
        async with AsyncAdmin(cluster.address) as admin:
            await admin.create_topic("orders", queues=3)
        async with AsyncProducer(cluster.address) as producer:
            receipts = await producer.send_many(sent)
        async with AsyncPullConsumer("billing", "orders", cluster.address) as consumer:
            received = await receive(consumer, 1_000)
        async with AsyncAdmin(cluster.address) as admin:
            by_key = await admin.lookup("orders", "key-777")
            tenth = await admin.lookup("orders", "tenth-5")
            by_id = await admin.lookup_id(receipts[5].message_id)
            by_offset_id = await admin.lookup_id(receipts[6].offset_message_id)
            with pytest.raises(MessageNotFound):
                await admin.lookup_id("01" + "0" * 32)

    by_place = {(r.queue, r.queue_offset): (m, r) for m, r in zip(sent, receipts, strict=True)}
    assert len(received) == 1_000
    for message in received:
        original, receipt = by_place[message.queue, message.queue_offset]
        assert message.body == original.body
        assert message.keys == original.keys
        assert message.tag == original.tag
        assert message.properties["number"] == original.properties["number"]
        assert message.message_id == receipt.message_id
        assert message.log_offset == receipt.log_offset
        assert message.offset_message_id == receipt.offset_message_id
    assert [message.body for message in by_key] == [b"body 777"]
    assert sorted(m.body for m in tenth) == sorted(b"body %d" % n for n in range(50, 60))
    assert (by_id.body, by_offset_id.body) == (b"body 5", b"body 6")


async def test_messages_are_found_by_the_time_of_their_storing(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as cluster,
        AsyncProducer(cluster.address) as producer,
        AsyncAdmin(cluster.address) as admin,
    ):
        receipts = [await producer.send(Message("orders", b"%d" % n)) for n in range(20)]
        begin, end = receipts[0].store_timestamp_ms, receipts[-1].store_timestamp_ms + 1
        everything = await admin.lookup_time("orders", begin, end)
        assert await admin.lookup_time("orders", end + 1_000, end + 2_000) == []

    assert sorted(int(message.body) for message in everything) == list(range(20))


async def test_durability_on_disk_is_stated(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as cluster,
        AsyncProducer(cluster.address, acks="disk") as producer,
    ):
        receipts = await asyncio.gather(
            *(producer.send(Message("orders", b"%d" % number)) for number in range(64))
        )

    assert {receipt.durability for receipt in receipts} == {"disk"}


async def test_topics_are_visible_when_they_are_made_and_gone_when_they_are_deleted(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, name_servers=2, auto_create_topics=False) as cluster,
        AsyncAdmin(cluster.address) as admin,
        AsyncProducer(cluster.address) as producer,
    ):
        for round_number in range(5):
            topic = f"orders-{round_number}"
            await admin.create_topic(topic, queues=2)
            for server in cluster.name_servers:
                async with AsyncPullConsumer("billing", topic, server.address) as consumer:
                    assert len(await consumer.queues(topic)) == 2
            await producer.send(Message(topic, b"x"))
            with pytest.raises(TopicExists):
                await admin.create_topic(topic)
            assert (await admin.update_topic(topic, queues=4)).write_queues == 4
            assert len((await admin.describe_topic(topic)).queues) == 4
            await admin.delete_topic(topic)
            async with AsyncPullConsumer("billing", (), cluster.address) as consumer:
                with pytest.raises(RouteNotFound):
                    await consumer.queues(topic)
        with pytest.raises(TopicNotFound):
            await producer.send(Message("nowhere", b"x"))


async def test_an_unknown_topic_is_made_by_the_broker(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as cluster,
        AsyncPullConsumer("billing", "fresh", cluster.address) as consumer,
        AsyncProducer(cluster.address) as producer,
    ):
        await producer.send_many([Message("fresh", b"%d" % n) for n in range(100)])
        assert len(await receive(consumer, 100)) == 100


async def test_a_long_poll_brings_a_message_as_soon_as_it_is_stored(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as cluster,
        AsyncProducer(cluster.address) as producer,
        AsyncPullConsumer(
            "billing", "orders", cluster.address, fetch_max_wait_ms=60_000
        ) as consumer,
    ):
        for number in range(5):
            await producer.send(Message("orders", b"%d" % number))
            messages = await consumer.poll(timeout_ms=10_000)
            assert [message.body for message in messages] == [b"%d" % number]


async def test_groups_go_on_where_they_were_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer:
            await producer.send_many([Message("orders", b"%d" % n, queue=0) for n in range(100)])
        async with AsyncPullConsumer("billing", "orders", cluster.address) as consumer:
            assert len(await consumer.poll(60, timeout_ms=10_000)) == 60
        await cluster.stop_broker()
        await cluster.start_broker()
        async with AsyncAdmin(cluster.address) as admin:
            positions = await admin.group_offsets("billing", "orders")
            assert [p.lag for p in positions if p.queue.number == 0] == [40]
        async with AsyncPullConsumer("billing", "orders", cluster.address) as consumer:
            rest = await receive(consumer, 40)
            with pytest.raises(OffsetOutOfRange):
                await consumer.pull("orders", 0, 101)

    assert [int(message.body) for message in rest] == list(range(60, 100))


async def test_a_restart_amid_sending_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        async with AsyncProducer(cluster.address, batch_messages_max=50) as producer:
            await producer.send(Message("orders", b"first"))
            sending = producer.send_many_nowait(
                [Message("orders", b"%d" % number) for number in range(5_000)]
            )
            await asyncio.sleep(0)
            await cluster.stop_broker()
            await cluster.start_broker()
            receipts = await sending
        async with AsyncPullConsumer("billing", "orders", cluster.address) as consumer:
            received = await receive(consumer, 5_001)
            while more := await consumer.poll(timeout_ms=200):
                received += more

    stored = {message.message_id: message.body for message in received}
    assert len(receipts) == 5_000
    assert all(stored[receipt.message_id] == b"%d" % n for n, receipt in enumerate(receipts))


async def test_either_name_server_may_be_lost(tmp_path: Path) -> None:
    async with running(tmp_path, name_servers=2) as cluster:
        address = cluster.address
        async with AsyncProducer(address) as producer:
            await producer.send(Message("orders", b"one"))
            await cluster.name_servers[0].stop()
            await producer.send(Message("bills", b"two"))
        async with AsyncPullConsumer("billing", ["orders", "bills"], address) as consumer:
            assert {message.body for message in await receive(consumer, 2)} == {b"one", b"two"}


async def test_brokers_and_groups_are_described(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, AsyncAdmin(cluster.address) as admin:
        (broker,) = await admin.brokers()
        made = await admin.create_group("billing", retry_max_times=3)
        assert "billing" in [group.name for group in await admin.groups()]
        await admin.delete_group("billing")
        assert "billing" not in [group.name for group in await admin.groups()]

    assert (broker.broker_name, broker.writable) == ("broker-a", True)
    assert made.retry_max_times == 3


async def test_the_synchronous_faces_do_the_same(tmp_path: Path) -> None:
    def work(address: str) -> list[bytes]:
        with Producer(address) as producer:
            producer.send(Message("orders", b"one", key="order-1"))
            producer.send_many([Message("orders", b"%d" % number) for number in range(100)])
        bodies: list[bytes] = []
        with PullConsumer("billing", "orders", address) as consumer:
            for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 101:
                    break
        return bodies

    async with running(tmp_path) as cluster:
        bodies = await asyncio.to_thread(work, cluster.address)

    assert sorted(bodies) == sorted([b"one", *(b"%d" % number for number in range(100))])
