"""The producer's core against a cluster in memory: order, batching, retries, bounds, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, Message, Queue
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    InvalidArgument,
    NotWritable,
    Overloaded,
    PocketMQError,
    QueueNotFound,
    RouteNotFound,
    SendFailed,
    TopicNotFound,
)

from .fake_cluster import (
    FakeBroker,
    FakeCluster,
    FakeConnections,
    add_topic,
    bodies,
    property_of,
)


def producer(
    cluster: FakeCluster,
    clock: VirtualClock | None = None,
    nameservers: str = "127.0.0.1:9876",
    **settings: Any,
) -> AsyncProducer:
    return AsyncProducer(
        nameservers,
        clock=clock or VirtualClock(),
        connections=FakeConnections(cluster),
        random=Random(7),
        **settings,
    )


def messages(count: int, topic: str = "orders") -> list[Message]:
    return [Message(topic, b"%d" % number) for number in range(count)]


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

    async with producer(cluster, queue_choice=ByKey()) as sending:
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
        with pytest.raises(QueueNotFound, match="name the broker"):
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


# ------------------------------------------------------------ errors and retries


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

    async with producer(FakeCluster.of_one("orders"), queue_choice=Broken()) as sending:
        for _ in range(2):
            with pytest.raises(LookupError, match="no idea"):
                await sending.send(Message("orders", b"x"))
        with pytest.raises(LookupError, match="no idea"):
            await sending.send_many(messages(3))


async def test_something_else_than_a_message_is_refused() -> None:
    async with producer(FakeCluster.of_one("orders")) as sending:
        with pytest.raises(InvalidArgument, match="not bytes"):
            await sending.send(b"x")  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="not str"):
            await sending.send_many([Message("orders", b"x"), "y"])  # type: ignore[list-item]
        with pytest.raises(InvalidArgument, match=r"send_many\(\[message\]\)"):
            await sending.send_many(Message("orders", b"x"))  # type: ignore[arg-type]


# ------------------------------------------------------------ routes


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


# ------------------------------------------------------------ bounds and closing


async def test_a_full_buffer_refuses_send_nowait() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.gate = asyncio.Event()

    async with producer(cluster, buffer_memory=1_000) as sending:
        taken = [sending.send_nowait(Message("orders", b"x" * 300)) for _ in range(2)]
        with pytest.raises(BufferFull, match="1000 bytes was full"):
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


async def test_close_fails_what_is_not_acknowledged_in_time() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.gate = asyncio.Event()
    sending = producer(cluster)
    await sending.start()
    sent = [sending.send_nowait(message) for message in messages(3)]

    await sending.close(timeout_ms=1)

    for future in sent:
        with pytest.raises(ClientClosed, match="3 messages were not acknowledged within 1 ms"):
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


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"linger_ms": -1}, "linger_ms is -1"),
        ({"linger_ms": 30_000}, "delivery_timeout_ms is 30000"),
        ({"acks": "none", "idempotence": True}, "idempotence needs acknowledgements"),
        ({"ordered": False, "idempotence": True}, "idempotence keeps the order"),
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


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never came true")
