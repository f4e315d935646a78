"""What a producer holds: its buffer, and how it is emptied at the end."""

from __future__ import annotations

import asyncio

import pytest

from pocketmq.client import Message
from pocketmq.proto.errors import BufferFull, ClientClosed, MessageTooLarge

from .fake_broker import bodies
from .fake_cluster import FakeCluster
from .producing import messages, producer, until


async def test_a_full_buffer_refuses_send_nowait() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.gate = asyncio.Event()

    async with producer(cluster, buffer_memory=1_000) as sending:
        taken = [sending.send_nowait(Message("orders", b"x" * 300)) for _ in range(2)]
        with pytest.raises(BufferFull, match="the limit is 1000 bytes"):
            sending.send_nowait(Message("orders", b"x" * 300))
        cluster.broker.gate.set()
        await asyncio.gather(*taken)
        await sending.send_nowait(Message("orders", b"x" * 300))


async def test_send_waits_for_room_and_tells_when_there_is_none() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    gate = cluster.broker.gate = asyncio.Event()

    async with producer(cluster, buffer_memory=1_000, max_block_ms=1) as sending:
        first = sending.send_nowait(Message("orders", b"x" * 800))
        with pytest.raises(BufferFull, match="for 1 ms"):
            await sending.send(Message("orders", b"x" * 300))
        gate.set()
        await first
        await sending.send(Message("orders", b"y"))


async def test_many_messages_pass_through_a_small_buffer() -> None:
    cluster = FakeCluster.of_one("orders", queues=3)

    async with producer(cluster, buffer_memory=4_000, batch_messages_max=5) as sending:
        receipts = await sending.send_many(messages(200))

    assert len(receipts) == 200
    assert sum(map(len, bodies(cluster.broker, "orders"))) == 200


async def test_a_message_larger_than_the_buffer_passes_alone() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster, buffer_memory=100) as sending:
        await sending.send(Message("orders", b"x" * 5_000))

    assert len(cluster.broker.queues["orders", 0]) == 1


async def test_flush_waits_for_what_was_sent_before() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        await sending.flush()
        sent = [sending.send_nowait(message) for message in messages(10)]
        await sending.flush()
        assert all(future.done() for future in sent)


async def test_close_delivers_what_was_accepted() -> None:
    cluster = FakeCluster.of_one("orders")
    sending = producer(cluster)
    await sending.start()
    sent = [sending.send_nowait(message) for message in messages(10)]
    many = sending.send_many_nowait(messages(5_000))

    await sending.close()

    assert all(future.exception() is None for future in sent)
    assert len(many.result()) == 5_000


async def test_lists_that_find_no_room_wait_in_their_order_behind_those_that_did() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    gate = cluster.broker.gate = asyncio.Event()
    rows = [[b"%d-%d" % (row, number) + bytes(100) for number in range(10)] for row in range(6)]

    async with producer(cluster, buffer_memory=5_000) as sending:
        sent = [sending.send_many_nowait("orders", row, queue=0) for row in rows]
        await until(lambda: sending.metrics().buffer_waits > 0)
        assert not any(future.done() for future in sent)
        gate.set()
        receipts = [await future for future in sent]

    (stored,) = bodies(cluster.broker, "orders")
    assert stored == [body for row in rows for body in row]
    offsets = [receipt.queue_offset for row in receipts for receipt in row]
    assert offsets == list(range(60))


async def test_a_list_that_no_run_can_take_is_refused_whole() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster, max_request_size=1_000) as sending:
        future = sending.send_many_nowait([Message("orders", bytes(2_000), queue=0)])
        with pytest.raises(MessageTooLarge):
            await future
        assert sending.metrics().buffer_bytes == 0

    assert not cluster.broker.queues


async def test_close_fails_what_is_not_acknowledged_in_time() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.gate = asyncio.Event()
    sending = producer(cluster)
    await sending.start()
    sent = [sending.send_nowait(message) for message in messages(3)]

    await sending.close(timeout_ms=1)

    for future in sent:
        with pytest.raises(
            ClientClosed, match="before 3 messages were acknowledged: it waited 1 ms"
        ):
            await future


async def test_a_closed_producer_refuses_messages() -> None:
    sending = producer(FakeCluster.of_one("orders"))
    with pytest.raises(ClientClosed, match="not started"):
        await sending.send(Message("orders", b"x"))
    await sending.start()
    await sending.close()
    await sending.close()

    with pytest.raises(ClientClosed, match="closed"):
        await sending.send(Message("orders", b"x"))
    with pytest.raises(ClientClosed):
        await sending.send_many([])


async def test_a_cancelled_send_leaves_the_others_alone() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    gate = cluster.broker.gate = asyncio.Event()

    async with producer(cluster) as sending:
        first, second = (asyncio.ensure_future(sending.send(m)) for m in messages(2))
        await until(lambda: bool(cluster.broker.runs))
        first.cancel()
        gate.set()
        assert (await second).queue_offset == 1
        with pytest.raises(asyncio.CancelledError):
            await first
