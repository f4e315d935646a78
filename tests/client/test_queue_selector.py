"""Choosing queues: by name, by an object, and what a message says itself."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, Message, Queue
from pocketmq.client.config import ProducerConfig
from pocketmq.client.producing.queue_selector import (
    JavaHash,
    KeyHash,
    LeastLatency,
    RoundRobin,
    StickyChoice,
    queue_selector,
    sharded_queue,
)
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConfigError, ConnectionLost

from .fake_broker import FakeBroker, add_topic, bodies, property_of
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections

QUEUES = tuple(Queue("T", "a", number) for number in range(4))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("round-robin", RoundRobin),
        ("sticky", StickyChoice),
        ("least-latency", LeastLatency),
        ("key-hash", KeyHash),
        ("java-hash", JavaHash),
    ],
)
def test_a_choice_is_taken_by_its_name(name: Any, kind: type) -> None:
    config = ProducerConfig(queue_selector=name)

    made = queue_selector(
        config.queue_selector, clock=VirtualClock(), random=Random(1), run_bytes=9
    )

    assert type(made) is kind


@pytest.mark.parametrize("wanted", ["round", "", None, object()])
def test_what_does_not_choose_is_refused(wanted: Any) -> None:
    with pytest.raises(ConfigError, match=r"queue_selector is .*round-robin, sticky"):
        ProducerConfig(queue_selector=wanted)


def test_a_sticky_choice_stays_until_a_run_is_full() -> None:
    choice = StickyChoice(1_000, Random(1))
    message = Message("T", b"x")

    chosen = []
    for _ in range(8):
        queue = choice.choose(message, QUEUES)
        chosen.append(queue.number)
        choice.on_added(queue, 500)

    first = chosen[0]
    assert chosen == [(first + turn // 2) % 4 for turn in range(8)]


def test_a_sticky_choice_leaves_a_queue_that_failed_or_is_gone() -> None:
    choice = StickyChoice(1_000, Random(1))
    message = Message("T", b"x")
    first = choice.choose(message, QUEUES)

    choice.on_result(first, 5, None)
    assert choice.choose(message, QUEUES) == first
    choice.on_result(first, 5, ConnectionLost("gone"))
    second = choice.choose(message, QUEUES)
    assert second != first
    left = tuple(queue for queue in QUEUES if queue != second)
    assert choice.choose(message, left) in left


def producer(cluster: FakeCluster, **settings: Any) -> AsyncProducer:
    return AsyncProducer(
        clock=VirtualClock(),
        connections=FakeConnections(cluster),
        random=Random(7),
        **settings,
    )


async def test_sticky_sendings_share_a_queue() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)

    async with producer(cluster, queue_selector="sticky", batch_size=1_000) as sending:
        receipts = [await sending.send(Message("orders", b"x" * 250)) for _ in range(9)]

    numbers = [receipt.queue for receipt in receipts]
    assert numbers == [(numbers[0] + turn // 3) % 4 for turn in range(9)]


async def test_a_sharding_key_leads_to_one_queue_in_order_whatever_the_choice() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)
    sent = [
        Message("orders", b"%d" % number, sharding_key=f"customer-{number % 5}")
        for number in range(50)
    ]

    async with producer(cluster) as sending:
        for message in sent[:10]:
            await sending.send(message)
        await sending.send_many(sent[10:])

    queues = [Queue("orders", "broker-a", number) for number in range(4)]
    expected = [
        [m.body for m in sent if sharded_queue(m.sharding_key or "", queues) == queue]
        for queue in queues
    ]
    assert bodies(cluster.broker, "orders") == [row for row in expected if row]
    assert set(property_of(cluster.broker, "orders", "__SHARDINGKEY")) == {
        f"customer-{number}" for number in range(5)
    }


async def test_an_explicit_queue_comes_before_a_sharding_key() -> None:
    async with producer(FakeCluster.of_one("orders", queues=4)) as sending:
        receipts = [
            await sending.send(Message("orders", b"x", sharding_key="k", queue=number))
            for number in range(4)
        ]

    assert [receipt.queue for receipt in receipts] == [0, 1, 2, 3]


async def test_a_priority_chooses_the_queue_with_its_number_or_the_last() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)
    async with producer(cluster) as sending:
        single = [
            await sending.send(Message("orders", b"x", priority=priority))
            for priority in (0, 3, 9, 1)
        ]
        many = await sending.send_many(
            [Message("orders", b"x", priority=priority) for priority in (2, 2, 0, 2**31 - 1)]
        )
        alike = await sending.send_many("orders", [b"a", b"b"], priority=1)
        named = await sending.send(Message("orders", b"x", priority=1, queue=2))

    assert [receipt.queue for receipt in single] == [0, 3, 3, 1]
    assert [receipt.queue for receipt in many] == [2, 2, 0, 3]
    assert [receipt.queue for receipt in alike] == [1, 1]
    assert named.queue == 2


@pytest.mark.parametrize("choice", ["round-robin", "sticky", "least-latency", "key-hash"])
async def test_the_choice_chooses_only_the_broker_of_a_priority(choice: Any) -> None:
    brokers = [FakeBroker("broker-a", "127.0.0.1:8081"), FakeBroker("broker-b", "127.0.0.1:8082")]
    add_topic(brokers[0], "orders", 4)
    add_topic(brokers[1], "orders", 2)
    async with producer(FakeCluster(*brokers), queue_selector=choice) as sending:
        receipts = [
            await sending.send(Message("orders", b"x", priority=priority))
            for priority in (0, 1, 3, 3, 7, 1) * 3
        ]

    places = [
        (min(wanted, 3 if receipt.broker == "broker-a" else 1), receipt.queue)
        for wanted, receipt in zip((0, 1, 3, 3, 7, 1) * 3, receipts, strict=True)
    ]
    assert all(wanted == queue for wanted, queue in places)
    if choice == "round-robin":
        assert {receipt.broker for receipt in receipts} == {"broker-a", "broker-b"}
