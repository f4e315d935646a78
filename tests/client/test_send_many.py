"""`send_many` of values: the same as messages one by one, without making them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import AsyncProducer, Message, Queue, UnserializedMessage
from pocketmq.client.message import record_size
from pocketmq.client.producing.bodies import checked_bodies
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ConnectionLost,
    InvalidArgument,
    InvalidName,
    MessageTooLarge,
    SerializationFailed,
    TopicNotFound,
)
from pocketmq.proto.record import decode_record

from .fake_broker import bodies, property_of
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections


def producer(cluster: FakeCluster, **settings: Any) -> AsyncProducer:
    return AsyncProducer(
        clock=VirtualClock(),
        connections=FakeConnections(cluster),
        random=Random(7),
        **settings,
    )


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_values_are_stored_with_what_goes_along() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster) as sending:
        receipts = await sending.send_many(
            "orders", numbered(3), keys=["a", "b", "ç"], tag="t", properties={"p": "q"}
        )

    stored = [decode_record(record) for record in cluster.broker.queues["orders", 0]]
    assert [record.body for record in stored] == numbered(3)
    for record, receipt, key in zip(stored, receipts, "abç", strict=True):
        properties = {name: record.properties[name] for name in ("KEYS", "TAGS", "p", "UNIQ_KEY")}
        assert properties == {"KEYS": key, "TAGS": "t", "p": "q", "UNIQ_KEY": receipt.message_id}
        assert record.crc_ok
    assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]


async def test_many_values_travel_in_runs_within_the_bounds() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)

    async with producer(cluster, batch_messages_max=1_000, batch_size=100_000) as sending:
        receipts = await sending.send_many("orders", numbered(10_000))

    assert sorted(int(body) for row in bodies(cluster.broker, "orders") for body in row) == list(
        range(10_000)
    )
    assert max(count for _, _, count in cluster.broker.runs) <= 1_000
    ids = property_of(cluster.broker, "orders", "UNIQ_KEY")
    assert {receipt.message_id for receipt in receipts} == set(ids)
    assert len({queue for _, queue, _ in cluster.broker.runs}) == 4


@given(
    st.lists(st.binary(min_size=1, max_size=2_000), min_size=1, max_size=60),
    st.booleans(),
    st.integers(1, 20),
    st.integers(200, 5_000),
)
def test_parts_are_within_the_bounds_and_know_their_size(
    values: list[bytes], with_keys: bool, count_max: int, bytes_max: int
) -> None:
    pattern = Message("orders", b"-", tag="t")
    keys = [f"k{index}" for index in range(len(values))] if with_keys else None
    whole = checked_bodies(pattern, values, keys)

    parts = list(whole.cut(bytes_max, count_max))

    assert [m for part, _ in parts for m in part.bodies] == values
    for part, size_bytes in parts:
        assert size_bytes == sum(map(record_size, part))
        assert len(part) <= count_max
        assert len(part) == 1 or size_bytes < bytes_max
    expected: list[str | None] = [*keys] if keys else [None] * len(values)
    assert [message.key for message in whole] == expected
    assert [whole[index].body for index in range(len(whole))] == values


async def test_values_go_where_their_keys_say() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)
    keys = [f"key-{number % 10}" for number in range(500)]

    async with producer(cluster, queue_selector="key-hash") as sending:
        receipts = await sending.send_many("orders", numbered(500), keys=keys)
        messages = [Message("orders", b"x%d" % n, key=keys[n]) for n in range(500)]
        again = await sending.send_many(messages)

    place: dict[str, int] = {}
    for key, receipt, other in zip(keys, receipts, again, strict=True):
        assert place.setdefault(key, receipt.queue) == receipt.queue == other.queue
    rows = bodies(cluster.broker, "orders")
    for number, receipt in enumerate(receipts):
        (row,) = [row for row in rows if b"%d" % number in row]
        assert row[receipt.queue_offset] == b"%d" % number
    assert len(set(place.values())) > 1
    assert len(cluster.broker.runs) <= 8


async def test_values_for_one_place_stay_together() -> None:
    cluster = FakeCluster.of_one("orders", queues=4)

    async with producer(cluster) as sending:
        named = await sending.send_many("orders", numbered(3), queue=2)
        sharded = await sending.send_many("orders", numbered(9), sharding_key="customer-1")
        other = await sending.send(Message("orders", b"x", sharding_key="customer-1"))
        full = Queue("orders", "broker-a", 3)
        exact = await sending.send_many("orders", numbered(3), queue=full)

    assert {receipt.queue for receipt in named} == {2}
    assert {receipt.queue for receipt in sharded} == {other.queue}
    assert {receipt.queue for receipt in exact} == {3}


async def test_values_are_sent_again_and_keep_their_ids() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults += [ConnectionLost("gone"), "lose"]
    clock = VirtualClock()

    async with AsyncProducer(
        clock=clock, connections=FakeConnections(cluster), random=Random(7)
    ) as sending:
        outcome = sending.send_many_nowait("orders", numbered(50))
        while not outcome.done():
            await clock.advance(100)
        receipts = await outcome

    ids = property_of(cluster.broker, "orders", "UNIQ_KEY")
    assert set(ids) == {receipt.message_id for receipt in receipts}
    assert len(set(ids)) == 50


async def test_a_run_that_is_too_large_for_the_broker_is_cut() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults += [MessageTooLarge("run"), MessageTooLarge("run")]

    async with producer(cluster) as sending:
        receipts = await sending.send_many("orders", numbered(40), keys=[str(n) for n in range(40)])

    assert bodies(cluster.broker, "orders") == [numbered(40)]
    assert [receipt.queue_offset for receipt in receipts] == list(range(40))


async def test_large_values_are_compressed() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    large = b"large " * 1_000

    async with producer(cluster) as sending:
        await sending.send_many("orders", [b"small", large])

    small, packed = (decode_record(record) for record in cluster.broker.queues["orders", 0])
    assert (small.body, small.sys_flag, packed.sys_flag) == (b"small", 0, 0x301)
    assert len(packed.body) < 200


async def test_values_are_serialized_and_interceptors_see_them_before() -> None:
    seen: list[object] = []

    class Seeing:
        def on_send(self, message: UnserializedMessage) -> UnserializedMessage:
            seen.append((message.value, message.key))
            return message.replace(tag="seen")

    settings: dict[str, Any] = {"value_serializer": "json", "key_serializer": str}
    for interceptors in ((), (Seeing(),)):
        cluster = FakeCluster.of_one("orders", queues=1)
        async with producer(cluster, interceptors=interceptors, **settings) as sending:
            await sending.send_many("orders", [{"n": 1}, None], keys=iter([1, 2]))

        assert bodies(cluster.broker, "orders") == [[b'{"n":1}', b"null"]]
        assert property_of(cluster.broker, "orders", "KEYS") == ["1", "2"]
    assert seen == [({"n": 1}, 1), (None, 2)]
    assert property_of(cluster.broker, "orders", "TAGS") == ["seen", "seen"]


async def test_nothing_to_send_is_sent() -> None:
    async with producer(FakeCluster.of_one("orders")) as sending:
        assert list(await sending.send_many("orders", [])) == []


async def test_what_cannot_be_sent_is_refused_before_anything_is_sent() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        many: Any = sending.send_many
        cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
            (InvalidArgument, "body 1 is empty", ("orders", [b"x", b""]), {}),
            (MessageTooLarge, "body 0 has 4194305", ("orders", [bytes(4_194_305)]), {}),
            (SerializationFailed, "str is not bytes", ("orders", ["text"]), {}),
            (InvalidArgument, "2 bodies but 1 keys", ("orders", [b"x", b"y"]), {"keys": ["k"]}),
            (InvalidArgument, "key 1 is 'a b'", ("orders", [b"x", b"y"]), {"keys": ["k", "a b"]}),
            (InvalidArgument, "key 0 is ''", ("orders", [b"x"]), {"keys": [""]}),
            (
                MessageTooLarge,
                "a key has 40000 bytes",
                ("orders", [b"x"]),
                {"keys": ["k" * 40_000]},
            ),
            (SerializationFailed, "int is not text", ("orders", [b"x"]), {"keys": [1]}),
            (InvalidName, "topic", ("or/ders", [b"x"]), {}),
            (InvalidArgument, "takes a list of values", ("orders", b"x"), {}),
            (InvalidArgument, "takes a list of values", ("orders",), {}),
            (
                InvalidArgument,
                "takes no other arguments",
                ([Message("orders", b"x")],),
                {"tag": "t"},
            ),
        ]
        for error, says, arguments, parts in cases:
            with pytest.raises(error, match=says):
                await many(*arguments, **parts)
        with pytest.raises(TopicNotFound):
            await many("nowhere", [b"x"])

    assert cluster.broker.runs == []
