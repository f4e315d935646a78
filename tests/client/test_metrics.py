"""The producer's metrics: a snapshot that stays, and text that Prometheus reads."""

from __future__ import annotations

import dataclasses
import re
from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, ConsumerMetrics, Message, PushMetrics
from pocketmq.client.consuming import parts
from pocketmq.client.metrics import HistogramSnapshot, ProducerCounters, ProducerMetrics
from pocketmq.client.producing.accumulator import Budget
from pocketmq.client.pushing import push_metrics
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import Overloaded, TopicNotFound

from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections
from .push_world import World, number, store

SAMPLE = re.compile(r"(pocketmq_(?:producer|consumer)_[a-z_]+)(\{[^}]*\})? ([0-9.e+-]+)")


def producer(cluster: FakeCluster, clock: VirtualClock, **settings: Any) -> AsyncProducer:
    return AsyncProducer(
        clock=clock, connections=FakeConnections(cluster), random=Random(7), **settings
    )


def samples(text: str) -> dict[str, float]:
    """Return the samples of TEXT by name and labels; every other line must be a comment."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


async def test_a_snapshot_tells_what_happened_and_stays() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    cluster.broker.faults.append(Overloaded("not now"))
    clock = VirtualClock()

    async with producer(cluster, clock) as sending:
        before = sending.metrics()
        outcome = sending.send_many_nowait("orders", [b"x"] * 150)
        while not outcome.done():
            await clock.advance(20)
        with pytest.raises(TopicNotFound):
            await sending.send(Message("nowhere", b"x"))
        after = sending.metrics()

    assert before.messages_sent == before.requests == 0
    assert (after.messages_sent, after.messages_failed, after.retries) == (150, 1, 2)
    assert after.requests >= 3
    assert after.batch_messages.count == 2
    assert after.batch_messages.quantile(1) == 200
    assert after.queue_time_ms.count == 2
    assert after.request_latency_ms.count == after.requests
    assert (after.buffer_bytes, after.buffer_limit_bytes) == (0, 32 * 1024 * 1024)
    assert after.bytes_sent > 150 * 100


def test_every_counter_is_in_the_snapshot_and_in_the_text() -> None:
    counters = ProducerCounters()
    names = [field.name for field in dataclasses.fields(ProducerCounters)]
    numbers = [name for name in names if isinstance(getattr(counters, name), int)]
    for index, name in enumerate(numbers, 1):
        setattr(counters, name, index)
    buffer = Budget(1_000, lambda: None)
    buffer.take(800)
    buffer.wait_count = 900

    metrics = ProducerMetrics.of(counters, buffer)

    assert [getattr(metrics, name) for name in numbers] == list(range(1, len(numbers) + 1))
    others = {field.name for field in dataclasses.fields(metrics)} - {*names}
    assert others == {"buffer_waits", "buffer_bytes", "buffer_limit_bytes"}
    values = samples(metrics.text()).values()
    assert {*range(1, len(numbers) + 1), 800, 900, 1_000} <= set(values)


def test_the_text_is_what_prometheus_reads() -> None:
    counters = ProducerCounters(messages_sent=7)
    for latency_ms in (0, 3, 3, 40, 99_999):
        counters.request_latency_ms.add(latency_ms)

    text = ProducerMetrics.of(counters, Budget(1_000, lambda: None)).text({"client": 'a "b"\\'})

    found = samples(text)
    label = 'client="a \\"b\\"\\\\"'
    assert found[f"pocketmq_producer_messages_sent_total{{{label}}}"] == 7
    buckets = {
        name: value
        for name, value in found.items()
        if name.startswith("pocketmq_producer_request_latency_seconds_bucket")
    }
    assert list(buckets.values()) == sorted(buckets.values())
    within = 'pocketmq_producer_request_latency_seconds_bucket{%s,le="%s"}'
    assert found[within % (label, "0")] == 1
    assert found[within % (label, "0.005")] == 3
    assert found[within % (label, "0.05")] == 4
    assert found[within % (label, "+Inf")] == 5
    assert found[f"pocketmq_producer_request_latency_seconds_count{{{label}}}"] == 5
    assert found[f"pocketmq_producer_request_latency_seconds_sum{{{label}}}"] == 100.045
    for name in {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}:
        assert f"# HELP {name} " in text


@pytest.mark.parametrize(
    ("share", "bound"), [(0, 1), (0.5, 1), (0.75, 5), (0.76, float("inf")), (1, float("inf"))]
)
def test_a_quantile_is_a_bound_that_holds(share: float, bound: float) -> None:
    histogram = HistogramSnapshot(bounds=(1, 5), counts=(2, 1, 1), total=14)

    assert histogram.quantile(share) == bound
    assert (histogram.count, histogram.mean) == (4, 3.5)


def test_no_values_have_no_mean() -> None:
    histogram = HistogramSnapshot(bounds=(1, 5), counts=(0, 0, 0), total=0)

    assert (histogram.count, histogram.mean, histogram.quantile(0.5)) == (0, 0.0, 0.0)


async def test_a_push_consumers_figures_are_told_to_prometheus() -> None:
    world = World()
    store(world.broker, 3)

    def listener(message: Any) -> bool:
        return number(message) != 1

    async with world.consumer(listener, enable_retries=False) as consumer:
        await world.pass_ms(100)
        found = samples(consumer.metrics_text({"client": "billing-1"}))
        metrics = consumer.metrics()

    at = '{client="billing-1"}'
    assert found[f"pocketmq_consumer_handled_messages_total{at}"] == metrics.handled == 2
    assert found[f"pocketmq_consumer_dead_messages_total{at}"] == 1
    assert found[f"pocketmq_consumer_rebalances_total{at}"] == metrics.counts.rebalances == 1
    assert found[f"pocketmq_consumer_held_messages{at}"] == 0
    assert found[f"pocketmq_consumer_listener_seconds_count{at}"] == 3
    queue = '{client="billing-1",topic="orders",broker="broker-a",queue="0"}'
    assert found[f"pocketmq_consumer_lag_messages{queue}"] == 0


def test_every_figure_of_consumers_is_in_the_text() -> None:
    names = {field.name for field in dataclasses.fields(ConsumerMetrics)}
    metrics = {field.name for field in dataclasses.fields(PushMetrics)}
    told = {
        row[0]
        for row in (*parts.COUNTERS, *push_metrics._PUSH_COUNTERS, *push_metrics._PUSH_GAUGES)
    }

    assert told == names | metrics - {
        "counts",
        "lag",
        "listener_ms_bounds",
        "listener_ms_counts",
        "listener_ms_sum",
    }
    text = ConsumerMetrics(handed_out=5, gaining_ms=1_500).text()
    assert samples(text)["pocketmq_consumer_handed_out_messages_total"] == 5
    assert samples(text)["pocketmq_consumer_gaining_seconds_total"] == 1.5
