"""What a producer does about errors: tries again, goes elsewhere, or tells the sender."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from pocketmq.client import Message, Queue
from pocketmq.client.message import record_size
from pocketmq.client.producing.receipt import SendFuture
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    InvalidArgument,
    MasterFenced,
    Overloaded,
    PocketMQError,
    QueueNotFound,
    SendFailed,
    TopicNotFound,
)

from .fake_broker import FakeBroker, add_topic, bodies, property_of
from .fake_cluster import FakeCluster
from .producing import messages, producer


async def test_a_passing_error_is_tried_again_after_a_pause() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.faults.extend([Overloaded("busy"), Overloaded("busy")])
    clock = VirtualClock()

    async with producer(cluster, clock, retry_backoff_ms=100) as sending:
        sent = sending.send_nowait(Message("orders", b"x"))
        await clock.advance(40)
        assert not sent.done()
        await clock.advance(400)
        receipt = await sent

    assert receipt.queue_offset == 0


async def test_pauses_do_not_grow_while_a_master_hands_over() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.faults.extend([MasterFenced("hands over")] * 8)
    clock = VirtualClock()

    async with producer(cluster, clock, retry_backoff_ms=50) as sending:
        sent = sending.send_nowait(Message("orders", b"x"))
        for _ in range(80):
            await clock.advance(10)
        receipt = await sent

    assert receipt.queue_offset == 0


async def test_after_a_lost_acknowledgement_the_broker_drops_the_repeat() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults.append("lose")

    async with producer(cluster, retry_backoff_ms=0) as sending:
        receipt = await sending.send(Message("orders", b"x"))
        after = await sending.send(Message("orders", b"y"))

    assert (receipt.queue_offset, receipt.repeated) == (0, True)
    assert (after.queue_offset, after.repeated) == (1, False)
    assert bodies(cluster.broker, "orders") == [[b"x", b"y"]]


async def test_without_idempotence_the_message_is_stored_twice_with_one_id() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults.append("lose")

    async with producer(cluster, retry_backoff_ms=0, idempotence=False) as sending:
        receipt = await sending.send(Message("orders", b"x"))

    assert (receipt.queue_offset, receipt.repeated) == (1, False)
    assert property_of(cluster.broker, "orders", "UNIQ_KEY") == [receipt.message_id] * 2


async def test_order_holds_over_a_retry() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults.append(Overloaded("busy"))

    async with producer(cluster, retry_backoff_ms=0, batch_messages_max=2) as sending:
        await sending.send_many(messages(6))

    assert bodies(cluster.broker, "orders") == [[b"%d" % number for number in range(6)]]


async def test_another_broker_takes_what_the_first_cannot() -> None:
    brokers = [FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2")]
    for broker in brokers:
        add_topic(broker, "orders", 2)
    cluster = FakeCluster(*brokers)
    cluster.lost.add("127.0.0.1:1")

    async with producer(cluster, retry_backoff_ms=0) as sending:
        receipts = await sending.send_many(messages(10))
        single = [await sending.send(message) for message in messages(6)]

    assert {receipt.broker for receipt in [*receipts, *single]} == {"b"}


async def test_a_named_queue_waits_for_its_broker() -> None:
    brokers = [FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2")]
    for broker in brokers:
        add_topic(broker, "orders", 1)
    cluster = FakeCluster(*brokers)
    cluster.lost.add("127.0.0.1:1")
    clock = VirtualClock()

    async with producer(cluster, clock) as sending:
        sent = sending.send_nowait(Message("orders", b"x", queue=Queue("orders", "a", 0)))
        await clock.advance(500)
        assert not sent.done()
        cluster.lost.clear()
        await clock.advance(1_000)
        assert (await sent).broker == "a"


async def test_after_the_delivery_timeout_the_last_error_is_told() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.faults.extend([Overloaded("very busy")] * 1_000)
    clock = VirtualClock()

    async with producer(cluster, clock, delivery_timeout_ms=5_000) as sending:
        sent = sending.send_nowait(Message("orders", b"x"))
        await clock.advance(5_000)
        with pytest.raises(SendFailed, match=r"not acknowledged.*very busy") as caught:
            await sent

    assert isinstance(caught.value.__cause__, Overloaded)
    assert int(caught.value.details["attempts"]) > 3


@pytest.mark.parametrize("error", [InvalidArgument("bad"), PocketMQError("what")])
async def test_an_error_that_stays_is_raised_as_it_is(error: PocketMQError) -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.faults.append(error)

    async with producer(cluster) as sending:
        with pytest.raises(type(error), match=error.message):
            await sending.send(Message("orders", b"x"))
        await sending.send(Message("orders", b"y"))

    assert bodies(cluster.broker, "orders") == [[b"y"]]


async def test_only_the_culprit_hears_of_a_bad_record() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults.extend([InvalidArgument("a bad one"), InvalidArgument("a bad one")])

    async with producer(cluster) as sending:
        sent = [sending.send_nowait(message) for message in messages(3)]
        results = await asyncio.gather(*sent, return_exceptions=True)
        await sending.flush()

    assert isinstance(results[0], InvalidArgument)
    assert bodies(cluster.broker, "orders") == [[b"1", b"2"]]


async def test_a_topic_that_lost_a_queue_is_asked_for_again_without_ado(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster) as sending:
        await sending.send(Message("orders", b"x"))
        cluster.broker.faults.append(QueueNotFound("no queue 0"))
        await sending.send(Message("orders", b"y"))
        cluster.broker.faults.extend([TopicNotFound("gone"), TopicNotFound("gone")])
        with pytest.raises(TopicNotFound):
            await sending.send(Message("orders", b"z"))

    assert bodies(cluster.broker, "orders") == [[b"x", b"y"]]
    assert caplog.records == []


async def test_one_failed_run_of_many_is_told_when_all_are_dealt_with() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults.append(InvalidArgument("bad"))

    async with producer(cluster, batch_messages_max=2) as sending:
        with pytest.raises(InvalidArgument):
            await sending.send_many(messages(6))

    assert bodies(cluster.broker, "orders") == [[b"2", b"3", b"4", b"5"]]


async def test_an_iterable_that_raises_fails_its_sending() -> None:
    def broken() -> Iterator[Message]:
        yield Message("orders", b"x")
        raise OSError("no more input")

    async with producer(FakeCluster.of_one("orders")) as sending:
        with pytest.raises(OSError, match="no more input"):
            await sending.send_many(broken())


async def test_a_choice_that_fails_is_told_to_the_sender() -> None:
    class Broken:
        for_a_run = True

        def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
            raise LookupError("no idea")

    async with producer(FakeCluster.of_one("orders"), queue_selector=Broken()) as sending:
        for _ in range(2):
            with pytest.raises(LookupError, match="no idea"):
                await sending.send(Message("orders", b"x"))
        with pytest.raises(LookupError, match="no idea"):
            await sending.send_many(messages(3))


@pytest.mark.parametrize("for_a_run", [False, True])
async def test_messages_in_a_row_for_which_a_choice_fails_count_as_failed(for_a_run: bool) -> None:
    class Broken:
        def __init__(self) -> None:
            self.for_a_run = for_a_run

        def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
            raise LookupError("no idea")

    async with producer(FakeCluster.of_one("orders"), queue_selector=Broken()) as sending:
        sender = sending._sender
        futures = [SendFuture() for _ in range(3)]
        for future, message in zip(futures, messages(3), strict=True):
            future.message, future.size_bytes = message, record_size(message)
            assert sender.budget.take(future.size_bytes)
        sender.accept_row(futures)
        await sending.flush()

        assert all(isinstance(future.exception(), LookupError) for future in futures)
        assert sending.metrics().messages_failed == 3
        assert sender.budget.taken_bytes == 0


async def test_something_else_than_a_message_is_refused() -> None:
    async with producer(FakeCluster.of_one("orders")) as sending:
        with pytest.raises(InvalidArgument, match="not bytes"):
            await sending.send(b"x")  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="not str"):
            await sending.send_many([Message("orders", b"x"), "y"])  # type: ignore[list-item]
        with pytest.raises(InvalidArgument, match=r"send_many\(\[message\]\)"):
            await sending.send_many(Message("orders", b"x"))  # type: ignore[arg-type]
