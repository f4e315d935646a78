"""Where reading begins and ends."""

import logging

import pytest

from pocketmq.client.queue import Queue
from pocketmq.proto.errors import ConfigError, OffsetOutOfRange
from pocketmq.tools.spark.live.end_points import resolved, settled, within
from pocketmq.tools.spark.live.losses import Losses
from pocketmq.tools.spark.live.offsets import EARLIEST, LATEST
from pocketmq.tools.spark.live.plans import batch_ranges
from pocketmq.tools.spark.live.ranges import QueueRange
from pocketmq.tools.spark.live.read_options import Point, read_options

from .fake_cluster import FakeCluster, cluster_of, queue


def batch(cluster: FakeCluster, **given: str) -> list[QueueRange]:
    options = read_options({"subscribe": "orders", **given}, streaming=False)
    return batch_ranges(options, cluster)


def test_a_batch_reads_what_is_there_from_end_to_end() -> None:
    cluster = cluster_of(10, 3, 5, least=3)

    assert batch(cluster) == [QueueRange(queue(0), 3, 10), QueueRange(queue(2), 3, 5)]


def test_a_batch_reads_what_its_offsets_say() -> None:
    starting = '{"orders": {"broker-a": {"0": 2, "1": -2}}}'
    ending = '{"orders": {"broker-a": {"0": 4, "1": -1}}}'

    found = batch(cluster_of(10, 20), startingOffsets=starting, endingOffsets=ending)

    assert found == [QueueRange(queue(0), 2, 4), QueueRange(queue(1), 0, 20)]


def test_a_batch_reads_between_two_instants() -> None:
    found = batch(cluster_of(100, 5), startingTimestamp="20", endingTimestamp="75")

    assert found == [QueueRange(queue(0), 2, 8), QueueRange(queue(1), 2, 5)]


def test_a_batch_begins_where_the_group_stands() -> None:
    cluster = cluster_of(10, 20)
    cluster.offsets["g"] = {queue(0): 7}

    found = batch(cluster, startingOffsets="group", consumerGroup="g")

    assert found == [QueueRange(queue(0), 7, 10), QueueRange(queue(1), 0, 20)]
    assert not cluster.commits


@pytest.mark.parametrize(
    ("offsets", "word"),
    [
        ('{"orders": {"broker-a": {"0": 1}}}', "orders[broker-a:1]"),
        ('{"orders": {"broker-a": {"0": 1, "1": 1, "2": 1}}}', "orders[broker-a:2]"),
    ],
    ids=["missing", "unknown"],
)
def test_offsets_name_every_queue_and_no_other(offsets: str, word: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        batch(cluster_of(10, 20), startingOffsets=offsets)

    assert word in refusal.value.message


def test_an_instant_that_is_too_young_is_an_error_or_the_end() -> None:
    cluster = cluster_of(10, 20)
    point = Point("time", time_ms=150, option="startingTimestamp")

    with pytest.raises(ConfigError, match="startingTimestamp"):
        resolved(point, cluster.queues, cluster, "")
    latest = Point("time", time_ms=150, latest_if_none=True)
    assert resolved(latest, cluster.queues, cluster, "") == {queue(0): LATEST, queue(1): 15}


def test_words_become_numbers_where_the_bounds_are_known() -> None:
    cluster = cluster_of(10, 20, 30, least=4)
    offsets = {queue(0): EARLIEST, queue(1): LATEST, queue(2): 9}

    assert settled(offsets, cluster.queues) == {queue(0): 4, queue(1): 20, queue(2): 9}


@pytest.mark.parametrize(("offset", "nearest"), [(1, 4), (11, 10)])
def test_an_offset_that_is_not_there_is_a_loss(
    offset: int, nearest: int, caplog: pytest.LogCaptureFixture
) -> None:
    bounds, offsets = cluster_of(10, least=4).queues, {queue(0): offset}

    with pytest.raises(OffsetOutOfRange, match=rf"{offset}.*failOnDataLoss"):
        within(offsets, bounds, Losses(True), "startingOffsets")
    with caplog.at_level(logging.WARNING):
        found: dict[Queue, int] = within(offsets, bounds, Losses(False), "startingOffsets")
    assert found == {queue(0): nearest}
    assert "lost" in caplog.text


def test_an_end_before_its_beginning_is_a_loss_or_nothing() -> None:
    starting = '{"orders": {"broker-a": {"0": 5}}}'
    ending = '{"orders": {"broker-a": {"0": 4}}}'

    with pytest.raises(OffsetOutOfRange, match="before it begins"):
        batch(cluster_of(10), startingOffsets=starting, endingOffsets=ending)
    found = batch(
        cluster_of(10), startingOffsets=starting, endingOffsets=ending, failOnDataLoss="false"
    )
    assert found == []


def test_a_batch_is_cut_for_its_tasks() -> None:
    assert len(batch(cluster_of(100, 50), minPartitions="6")) >= 6
    assert all(part.size <= 30 for part in batch(cluster_of(100), maxRecordsPerPartition="30"))
