"""The pull consumer's core against a cluster in memory: reading, positions, commits, errors."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pocketmq.client import AsyncPullConsumer, Queue
from pocketmq.client.consuming.queue_reader import QueueReader
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ClientClosed,
    ConfigError,
    InvalidName,
    NotReadable,
    OffsetOutOfRange,
    QueueNotFound,
    RouteNotFound,
    Unsupported,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_broker import FakeBroker, add_topic
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections
from .pull_world import numbers, store


def consumer(
    cluster: FakeCluster, topics: Any = "orders", clock: VirtualClock | None = None, **settings: Any
) -> AsyncPullConsumer:
    return AsyncPullConsumer(
        "billing",
        topics,
        clock=clock or VirtualClock(),
        connections=FakeConnections(cluster),
        **settings,
    )


async def test_poll_returns_what_is_there_in_order() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 30)

    async with consumer(cluster) as reading:
        first = await reading.poll(max_messages=10)
        rest = await reading.poll()

    assert numbers(first) == list(range(10))
    assert numbers(rest) == list(range(10, 30))
    assert [message.queue_offset for message in first] == list(range(10))


async def test_poll_is_empty_when_nothing_comes_in_time() -> None:
    async with consumer(FakeCluster.of_one("orders")) as reading:
        assert await reading.poll(timeout_ms=0) == []


async def test_all_queues_of_all_topics_and_brokers_are_read() -> None:
    brokers = [FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2")]
    for broker in brokers:
        for topic in ("orders", "bills"):
            add_topic(broker, topic, 3)
            for queue in range(3):
                store(broker, 5, topic, queue)

    seen: dict[tuple[str, str, int], list[int]] = {}
    async with consumer(FakeCluster(*brokers), ["orders", "bills"]) as reading:
        while sum(map(len, seen.values())) < 60:
            for message in await reading.poll():
                place = (message.topic, message.broker, message.queue)
                seen.setdefault(place, []).append(int(message.body))

    assert len(seen) == 12
    assert all(values == [0, 1, 2, 3, 4] for values in seen.values())


async def test_a_run_is_cut_at_the_bounds_of_a_fetch() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)

    async with consumer(cluster, fetch_messages_max=4) as reading:
        sizes = [len(await reading.poll()) for _ in range(3)]

    assert sizes == [4, 4, 2]


async def test_a_broker_that_forgot_a_commit_hears_it_again() -> None:
    cluster, clock = FakeCluster.of_one("orders", queues=1), VirtualClock()
    broker = cluster.broker
    cluster.live_by(clock)
    store(broker, 5)

    async with consumer(cluster, clock=clock) as reading:
        assert len(await reading.poll()) == 5
        await reading.commit()
        cluster.lost.add(broker.address)
        for wake in broker.waiting:
            wake()
        await clock.advance(100)
        broker.committed.clear()
        cluster.lost.clear()
        await clock.advance(6_000)
        assert broker.committed == {("billing", "orders", 0): 5}


async def test_prefetching_stops_at_its_bound_and_goes_on() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 100)

    async with consumer(cluster, fetch_messages_max=10, prefetch_max_bytes=2_000) as reading:
        await reading.poll()
        cluster.asked.clear()
        await settle()
        ahead = sum(1 for address in cluster.asked if address == cluster.broker.address)
        assert ahead < 4
        rest = [await reading.poll() for _ in range(9)]

    assert sum(map(len, rest)) == 90


# ------------------------------------------------------------ positions


async def test_a_new_consumer_goes_on_where_the_group_was() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)

    async with consumer(cluster) as reading:
        await reading.poll(max_messages=4)
    async with consumer(cluster) as reading:
        assert numbers(await reading.poll()) == [4, 5, 6, 7, 8, 9]

    assert cluster.broker.committed["billing", "orders", 0] == 10


async def test_a_consumer_waits_while_consumption_is_switched_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pocketmq")
    cluster = FakeCluster.of_one("orders", queues=3)
    store(cluster.broker, 2)
    clock = VirtualClock()
    real, is_off = cluster.broker.fetch, True

    def fetch(request: pb.FetchRequest) -> pb.FetchReply:
        if is_off and request.group == "billing":
            raise NotReadable("consumption is switched off", group="billing")
        return real(request)

    cluster.broker.fetch = fetch  # type: ignore[method-assign]
    async with consumer(cluster, clock=clock) as reading:
        polling = asyncio.ensure_future(reading.poll(timeout_ms=60_000))
        await clock.advance(10_000)
        assert not polling.done()
        is_off = False
        await clock.advance(1_000)
        assert numbers(await polling) == [0, 1]

    assert caplog.text.count("consumption disabled, waiting") == 1
    assert caplog.text.count("consumption enabled again") == 1
    assert "not readable" not in caplog.text


async def test_a_poll_finishes_what_the_one_before_returned() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)
    clock = VirtualClock()

    async with consumer(cluster, clock=clock, auto_commit_interval_ms=100) as reading:
        await reading.poll(max_messages=4)
        await clock.advance(100)
        assert cluster.broker.committed.get(("billing", "orders", 0)) in (None, 0)
        await reading.poll(max_messages=3)
        await clock.advance(100)
        assert cluster.broker.committed["billing", "orders", 0] == 4


async def test_an_error_in_the_block_brings_the_message_under_way_again() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)

    async def fail_at_three() -> None:
        async with consumer(cluster) as reading:
            async for message in reading:
                if message.body == b"3":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_three()
    async with consumer(cluster) as reading:
        assert numbers(await reading.poll())[0] == 3


async def test_leaving_a_loop_loses_no_message() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)

    async with consumer(cluster) as reading:
        async for message in reading:
            if message.body == b"3":
                break
        async for message in reading:
            assert message.body == b"4"
            break
        assert numbers(await reading.poll(2)) == [5, 6]
        await reading.commit()
        assert cluster.broker.committed["billing", "orders", 0] == 7
        assert numbers(await reading.poll()) == [7, 8, 9]


async def test_without_auto_commit_only_commit_commits() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)

    async with consumer(cluster, auto_commit=False) as reading:
        await reading.poll(max_messages=4)
        await reading.commit()
        await reading.poll(max_messages=4)

    assert cluster.broker.committed["billing", "orders", 0] == 4


@pytest.mark.parametrize(
    ("start", "committed", "first"),
    [
        ("committed", 3, 3),
        ("committed", None, 0),
        ("committed-or-latest", 3, 3),
        ("committed-or-latest", None, 10),
        ("earliest", 3, 0),
        ("latest", 3, 10),
    ],
)
async def test_where_it_starts(start: str, committed: int | None, first: int) -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)
    if committed is not None:
        cluster.broker.committed["billing", "orders", 0] = committed

    async with consumer(cluster, start=start, fetch_max_wait_ms=0, retry_backoff_ms=0) as reading:
        await settle()
        store(cluster.broker, 1)
        assert numbers(await reading.poll())[0] == first


# ------------------------------------------------------------ what may go wrong


async def test_expired_messages_are_skipped() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)
    cluster.broker.min_offset = 6
    cluster.broker.committed["billing", "orders", 0] = 2

    async with consumer(cluster) as reading:
        assert numbers(await reading.poll()) == [6, 7, 8, 9]


async def test_an_offset_behind_the_end_goes_back_to_the_end() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 3)
    cluster.broker.committed["billing", "orders", 0] = 99

    async with consumer(cluster, fetch_max_wait_ms=0, retry_backoff_ms=0) as reading:
        await settle()
        store(cluster.broker, 1)
        assert numbers(await reading.poll()) == [3]


async def test_a_topic_that_comes_late_is_warned_of_once_and_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster.of_one()
    clock = VirtualClock()

    async with consumer(cluster, clock=clock) as reading:
        assert await reading.poll(timeout_ms=0) == []
        await clock.advance(5_000)
        (line,) = [record.message for record in caplog.records]
        assert line.startswith(
            "topic has no route, waiting for it group=billing topic=orders reason="
        )
        add_topic(cluster.broker, "orders", 1)
        store(cluster.broker, 2)
        await clock.advance(1_000)
        assert numbers(await reading.poll()) == [0, 1]


async def test_queues_that_are_added_are_read() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    clock = VirtualClock()

    async with consumer(cluster, clock=clock) as reading:
        assert await reading.poll(timeout_ms=0) == []
        add_topic(cluster.broker, "orders", 2)
        store(cluster.broker, 2, queue=1)
        await clock.advance(60_000)
        assert numbers(await reading.poll()) == [0, 1]


async def test_a_lost_broker_is_read_again_when_it_is_back() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 5)
    cluster.lost.add(cluster.broker.address)
    clock = VirtualClock()

    async with consumer(cluster, clock=clock) as reading:
        await clock.advance(3_000)
        assert await reading.poll(timeout_ms=0) == []
        cluster.lost.clear()
        await clock.advance(3_000)
        assert numbers(await reading.poll()) == [0, 1, 2, 3, 4]


async def test_an_error_that_stays_reaches_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async def refuse(self: QueueReader, offset: int) -> int:
        raise Unsupported("no fetches here")

    monkeypatch.setattr(QueueReader, "_read", refuse)
    async with consumer(cluster) as reading:
        with pytest.raises(Unsupported, match="no fetches here"):
            await reading.poll()


async def test_a_failed_regular_commit_is_repeated() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    store(cluster.broker, 10)
    clock = VirtualClock()

    async with consumer(cluster, clock=clock, auto_commit_interval_ms=100) as reading:
        await reading.poll(max_messages=4)
        await reading.poll(max_messages=1)
        cluster.lost.add(cluster.broker.address)
        await clock.advance(100)
        cluster.lost.clear()
        await clock.advance(100)
        assert cluster.broker.committed["billing", "orders", 0] == 4


# ------------------------------------------------------------ pull


async def test_pull_reads_at_any_offset_and_moves_nothing() -> None:
    cluster = FakeCluster.of_one("orders", queues=2)
    store(cluster.broker, 10, queue=1)

    async with consumer(cluster, topics=()) as reading:
        pulled = await reading.pull("orders", 1, 4, max_messages=3)
        by_name = await reading.pull("orders", Queue("orders", "broker-a", 1), 9)
        with pytest.raises(OffsetOutOfRange) as caught:
            await reading.pull("orders", 1, 99)
        with pytest.raises(QueueNotFound):
            await reading.pull("orders", 7, 0)

    assert numbers(pulled.messages) == [4, 5, 6]
    assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (7, 0, 10)
    assert numbers(by_name.messages) == [9]
    assert caught.value.details["max_offset"] == "10"
    assert cluster.broker.committed == {}


async def test_pulling_an_unknown_topic_says_so() -> None:
    async with consumer(FakeCluster.of_one(), topics=()) as reading:
        with pytest.raises(RouteNotFound, match="topic create"):
            await reading.pull("orders", 0, 0)


async def test_queues_of_a_topic_are_listed() -> None:
    async with consumer(FakeCluster.of_one("orders", queues=2), topics=()) as reading:
        assert [str(queue) for queue in await reading.queues("orders")] == [
            "orders[broker-a:0]",
            "orders[broker-a:1]",
        ]


async def test_a_closed_consumer_refuses_everything() -> None:
    reading = consumer(FakeCluster.of_one("orders"))
    with pytest.raises(ClientClosed, match="not started"):
        await reading.poll()
    await reading.start()
    await reading.close()
    await reading.close()

    with pytest.raises(ClientClosed):
        await reading.poll()
    with pytest.raises(ClientClosed):
        await reading.commit()


def test_bad_names_and_settings_are_refused() -> None:
    with pytest.raises(InvalidName, match="group"):
        AsyncPullConsumer("no/slash", "orders")
    with pytest.raises(InvalidName, match="topic"):
        AsyncPullConsumer("billing", ["orders", ""])
    with pytest.raises(ConfigError, match="start is 'here'"):
        AsyncPullConsumer("billing", "orders", start="here")  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)
