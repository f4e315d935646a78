"""The producer's core against a cluster in memory: order, batching, retries, bounds, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, Message, Queue
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConfigError, QueueNotFound

from .fake_broker import FakeBroker, add_topic, bodies, property_of
from .fake_cluster import FakeCluster
from .producing import messages, producer, settle, until


async def test_a_receipt_tells_where_the_message_lies() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster) as sending:
        first = await sending.send(Message("orders", b"one", key="k"))
        second = await sending.send(Message("orders", b"two"))

    assert (first.topic, first.broker, first.queue) == ("orders", "broker-a", 0)
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert first.log_offset == 0
    assert second.log_offset > 90
    assert first.durability == "memory"
    assert first.offset_message_id == "7F00000100001F910000000000000000"
    assert property_of(cluster.broker, "orders", "UNIQ_KEY") == [
        first.message_id,
        second.message_id,
    ]


async def test_durability_is_asked_for_and_told() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster, acks="disk") as sending:
        receipt = await sending.send(Message("orders", b"one"))

    assert receipt.durability == "disk"


async def test_single_messages_go_round_the_queues() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)

    async with producer(cluster) as sending:
        receipts = [await sending.send(message) for message in messages(8)]

    assert sorted(receipt.queue for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_messages_that_are_sent_at_once_travel_in_one_run() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)

    async with producer(cluster) as sending:
        for _ in range(4):
            await asyncio.gather(*(sending.send(message) for message in messages(10)))

    assert sorted(cluster.broker.runs) == [("orders", queue, 10) for queue in range(4)]


async def test_a_choice_for_each_message_is_asked_for_each() -> None:
    class ByKey:
        for_a_run = False

        def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
            return queues[int(message.key or 0) % len(queues)]

    cluster = FakeCluster.of_one("orders", queues=4)
    keyed = [Message("orders", b"%d" % number, key=str(number)) for number in range(40)]

    async with producer(cluster, queue_selector=ByKey()) as sending:
        await sending.send_many(keyed[:20])
        await asyncio.gather(*(sending.send(message) for message in keyed[20:]))

    assert bodies(cluster.broker, "orders") == [
        [b"%d" % number for number in range(queue, 40, 4)] for queue in range(4)
    ]


async def test_a_named_queue_is_kept() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)

    async with producer(cluster) as sending:
        by_number = await sending.send(Message("orders", b"x", queue=3))
        by_name = await sending.send(Message("orders", b"x", queue=Queue("orders", "broker-a", 2)))
        with pytest.raises(QueueNotFound, match="broker-a:0"):
            await sending.send(Message("orders", b"x", queue=4))

    assert (by_number.queue, by_name.queue) == (3, 2)


async def test_a_mere_number_is_refused_where_two_brokers_have_it() -> None:
    brokers = [FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2")]
    for broker in brokers:
        add_topic(broker, "orders", 1)

    async with producer(FakeCluster(*brokers)) as sending:
        with pytest.raises(QueueNotFound, match=r"2 brokers have a queue 0 .a, b.: name one"):
            await sending.send(Message("orders", b"x", queue=0))


async def test_receipts_of_many_are_in_the_order_of_the_messages() -> None:
    cluster = FakeCluster.of_one("orders", "bills", queues=3)
    mixed = [Message("orders" if n % 5 else "bills", b"%d" % n) for n in range(100)]

    async with producer(cluster, batch_messages_max=7) as sending:
        receipts = await sending.send_many(mixed)

    assert len(receipts) == 100
    for message, receipt in zip(mixed, receipts, strict=True):
        rows = bodies_by_queue(cluster.broker, receipt.topic)
        assert rows[receipt.queue][receipt.queue_offset] == message.body
    assert receipts[-1] == list(receipts)[-1]
    assert receipts[3:5] == [receipts[3], receipts[4]]
    with pytest.raises(IndexError):
        _ = receipts[100]


def bodies_by_queue(broker: FakeBroker, topic: str) -> dict[int, list[bytes]]:
    numbers = sorted(queue for name, queue in broker.queues if name == topic)
    return dict(zip(numbers, bodies(broker, topic), strict=True))


async def test_no_messages_are_no_receipts() -> None:
    async with producer(FakeCluster.of_one("orders")) as sending:
        assert len(await sending.send_many([])) == 0


async def test_log_offsets_of_receipts_are_those_of_the_records() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster) as sending:
        receipts = await sending.send_many([Message("orders", b"x" * n) for n in (1, 50, 9)])

    sizes = [len(record) for record in cluster.broker.queues["orders", 0]]
    assert [r.log_offset for r in receipts] == [0, sizes[0], sizes[0] + sizes[1]]


async def test_what_arrives_while_a_run_travels_leaves_together() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    gate = cluster.broker.gate = asyncio.Event()

    async with producer(cluster) as sending:
        first = sending.send_nowait(Message("orders", b"first"))
        await until(lambda: len(cluster.broker.runs) == 1)
        others = [sending.send_nowait(message) for message in messages(50)]
        await settle()
        assert len(cluster.broker.runs) == 1
        gate.set()
        await asyncio.gather(first, *others)

    assert [count for _, _, count in cluster.broker.runs] == [1, 50]


async def test_order_within_a_queue_is_the_order_of_sending() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster, batch_messages_max=4) as sending:
        futures = [sending.send_nowait(message) for message in messages(5)]
        futures.append(sending.send_nowait(Message("orders", b"5")))
        many = sending.send_many_nowait([Message("orders", b"%d" % n) for n in range(6, 20)])
        await asyncio.gather(*futures)
        await many

    assert bodies(cluster.broker, "orders") == [[b"%d" % number for number in range(20)]]


async def test_runs_stay_within_their_bounds() -> None:
    cluster = FakeCluster.of_one("orders", queues=2)

    async with producer(cluster, batch_size=2_000, batch_messages_max=10) as sending:
        await sending.send_many([Message("orders", b"x" * (1 + n % 7 * 100)) for n in range(60)])
        await sending.send(Message("orders", b"x" * 5_000))

    assert all(count <= 10 for _, _, count in cluster.broker.runs)
    assert sum(count for _, _, count in cluster.broker.runs) == 61


async def test_linger_waits_for_company_but_not_for_a_full_run() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    clock = VirtualClock()

    async with producer(cluster, clock, linger_ms=20, batch_messages_max=3) as sending:
        slow = [sending.send_nowait(message) for message in messages(2)]
        await clock.advance(19)
        assert cluster.broker.runs == []
        await clock.advance(1)
        await asyncio.gather(*slow)
        full = [sending.send_nowait(message) for message in messages(3)]
        await asyncio.gather(*full)

    assert [count for _, _, count in cluster.broker.runs] == [2, 3]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"linger_ms": -1}, "linger_ms is -1"),
        ({"linger_ms": 30_000}, r"delivery_timeout_ms \(30000\)"),
        ({"acks": "none", "idempotence": True}, "idempotence=True needs acknowledgements"),
        ({"ordered": False, "idempotence": True}, "idempotence=True needs ordered=True"),
        ({"batch_messages_max": 0}, "batch_messages_max is 0"),
        ({"acks": "paper"}, "acks is 'paper'"),
        ({"nameservers": ""}, "at least one host:port"),
        ({"nameservers": "localhost"}, "'localhost' is no host:port"),
        ({"nameservers": "h:99999"}, "no host:port"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        AsyncProducer(**settings)
