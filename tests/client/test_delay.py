"""Messages that are delivered later: what the client sends, what it makes of the answers, and recalling."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import AsyncProducer, Message, Queue, Receipt, Receipts
from pocketmq.client.producing.receipt import BatchReceipts
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    AlreadyDelivered,
    ClientClosed,
    ConnectionLost,
    InvalidArgument,
    InvalidDelay,
    MessageNotFound,
    RouteNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.recall_handle import decode_handle
from pocketmq.proto.record import decode_record

from .fake_broker import WAITING_FROM, FakeBroker, add_topic, bodies
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections

NOW_MS = 1_700_000_000_000


def producer(cluster: FakeCluster, **settings: Any) -> AsyncProducer:
    return AsyncProducer(
        "127.0.0.1:9876",
        clock=VirtualClock(),
        connections=FakeConnections(cluster),
        random=Random(7),
        **settings,
    )


async def test_a_receipt_says_when_and_where_it_waits() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster) as sending:
        at_once = await sending.send(Message("orders", b"now"))
        later = await sending.send(Message("orders", b"later", delay="2h"))

    assert (at_once.due_ms, at_once.recall_handle, at_once.queue_offset) == (0, "", 0)
    assert later.due_ms == NOW_MS + 7_200_000
    assert later.queue_offset == WAITING_FROM
    assert (later.topic, later.queue) == ("orders", 0)
    assert bodies(cluster.broker, "orders") == [[b"now"]]


async def test_the_broker_s_clock_counts_a_delay() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.now_ms += 86_400_000

    async with producer(cluster) as sending:
        receipt = await sending.send(Message("orders", b"x", delay="1s"))

    assert receipt.due_ms == cluster.broker.now_ms + 1_000
    ((_, record),) = cluster.broker.pending.values()
    assert "TIMER_DELIVER_MS" not in decode_record(record).properties


async def test_the_handle_names_topic_broker_time_and_message() -> None:
    cluster = FakeCluster.of_one("orders")
    instant = datetime(2023, 11, 15, 12, tzinfo=UTC)

    async with producer(cluster) as sending:
        receipt = await sending.send(Message("orders", b"x", deliver_at=instant))

    told = decode_handle(receipt.recall_handle)
    assert told == ("orders", "broker-a", 1_700_049_600_000, receipt.message_id)


async def test_a_level_has_a_time_but_no_handle() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        receipt = await sending.send(Message("orders", b"x", delay_level=3))
        with pytest.raises(InvalidArgument, match=r"has a delay level.*deliver_at="):
            await sending.recall(receipt)

    assert receipt.due_ms == NOW_MS + 3_000
    assert receipt.recall_handle == ""


async def test_delayed_and_prompt_messages_travel_together() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    mixed = [
        Message("orders", b"%d" % n, delay="1m" if n % 3 == 1 else None, delay_level=n % 3 // 2)
        for n in range(30)
    ]

    async with producer(cluster) as sending:
        receipts = await sending.send_many(mixed)

    assert len(cluster.broker.runs) == 1
    for at, (message, receipt) in enumerate(zip(mixed, receipts, strict=True)):
        assert bool(receipt.due_ms) == bool(at % 3)
        assert bool(receipt.recall_handle) == message.timed == (at % 3 == 1)
        stored = (
            cluster.broker.pending[receipt.message_id][1]
            if receipt.due_ms
            else cluster.broker.queues["orders", 0][receipt.queue_offset]
        )
        record = decode_record(stored)
        assert (record.body, record.queue_offset) == (message.body, receipt.queue_offset)
        assert record.log_offset == receipt.log_offset


@given(st.data())
def test_a_receipt_is_what_the_reply_says(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    each = st.lists(st.integers(0, 2**55), min_size=count, max_size=count)
    some: st.SearchStrategy[list[int]] = each | st.just([])
    sizes = data.draw(st.lists(st.integers(91, 500), min_size=count, max_size=count))
    due_ms, offsets, logs = data.draw(some), data.draw(some), data.draw(some)
    timed = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    first, first_log = data.draw(st.integers(0, 2**50)), data.draw(st.integers(0, 2**50))
    reply = pb.ProduceReply(
        first_queue_offset=first,
        first_log_offset=first_log,
        queue_offsets=offsets,
        log_offsets=logs,
        due_ms=due_ms,
        durability=pb.DISK,
        store_timestamp_ms=5,
    )
    ids = [b"id-%d" % at for at in range(count)]
    run = BatchReceipts(Queue("orders", "b", 2), ids, sizes, reply, "1.2.3.4:5", timed)

    for at, receipt in enumerate(Receipts([(run, 0, count)])):
        handle = receipt.recall_handle
        if due_ms and due_ms[at] and timed[at]:
            assert decode_handle(handle) == ("orders", "b", due_ms[at], f"id-{at}")
        else:
            assert handle == ""
        assert receipt == Receipt(
            topic="orders",
            broker="b",
            queue=2,
            queue_offset=offsets[at] if offsets else first + at,
            log_offset=logs[at] if logs else first_log + sum(sizes[:at]),
            message_id=f"id-{at}",
            durability="disk",
            store_timestamp_ms=5,
            store_host="1.2.3.4:5",
            due_ms=due_ms[at] if due_ms else 0,
            recall_handle=handle,
        )


async def test_a_refused_time_is_the_fault_of_its_sender_alone() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults += [InvalidDelay("too far"), InvalidDelay("too far")]

    async with producer(cluster) as sending:
        refused = sending.send_nowait(Message("orders", b"x", delay="9d"))
        taken = sending.send_nowait(Message("orders", b"y", delay="1s"))
        with pytest.raises(InvalidDelay, match="too far"):
            await refused
        assert (await taken).due_ms == NOW_MS + 1_000


# ------------------------------------------------------------ recalling


async def test_a_message_is_recalled_by_its_receipt_or_its_handle() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        first = await sending.send(Message("orders", b"x", delay="2h"))
        second = await sending.send(Message("orders", b"y", delay="2h"))
        assert await sending.recall(first) == first.message_id
        assert list(cluster.broker.pending) == [second.message_id]
        assert await sending.recall(second.recall_handle) == second.message_id

    assert not cluster.broker.pending


async def test_the_broker_that_the_handle_names_is_asked() -> None:
    brokers = [FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2")]
    for broker in brokers:
        add_topic(broker, "orders", 1)
    cluster = FakeCluster(*brokers)

    async with producer(cluster) as sending:
        queue = Queue("orders", "b", 0)
        receipt = await sending.send(Message("orders", b"x", delay="2h", queue=queue))
    async with producer(cluster) as another:  # It has no route yet.
        cluster.asked.clear()
        assert await another.recall(receipt) == receipt.message_id

    assert cluster.asked == ["127.0.0.1:9876", "127.0.0.1:2"]


async def test_a_recall_that_comes_too_late_or_twice_says_so() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        late = await sending.send(Message("orders", b"x", delay="1s"))
        twice = await sending.send(Message("orders", b"x", delay="1h"))
        cluster.broker.now_ms += 1_000
        with pytest.raises(AlreadyDelivered):
            await sending.recall(late)
        await sending.recall(twice)
        with pytest.raises(MessageNotFound):
            await sending.recall(twice)


@pytest.mark.parametrize(
    ("handle", "says"),
    [
        ("", "not a recall handle"),
        ("nonsense!", "not a recall handle"),
        (base64.urlsafe_b64encode(b"v2 t b 1 id").decode(), "not a recall handle"),
        (base64.urlsafe_b64encode(b"v1 t b x id").decode(), "not a recall handle"),
        (7, "not int"),
    ],
)
async def test_what_is_no_handle_is_refused_before_anybody_is_asked(handle: Any, says: str) -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        with pytest.raises(InvalidArgument, match=says):
            await sending.recall(handle)

    assert cluster.asked == []


async def test_a_message_that_was_delivered_at_once_cannot_be_recalled() -> None:
    async with producer(FakeCluster.of_one("orders")) as sending:
        receipt = await sending.send(Message("orders", b"x"))
        with pytest.raises(InvalidArgument, match="delivered at once"):
            await sending.recall(receipt)


async def test_without_the_broker_a_recall_fails() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        receipt = await sending.send(Message("orders", b"x", delay="1h"))
        cluster.lost.add("127.0.0.1:8081")
        with pytest.raises(ConnectionLost):
            await sending.recall(receipt)
        cluster.brokers.clear()
        with pytest.raises(RouteNotFound, match="'broker-a', which stores the message"):
            await sending.recall(receipt)
    with pytest.raises(ClientClosed):
        await sending.recall(receipt)
