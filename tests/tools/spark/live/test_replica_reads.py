"""Spark's reads of a replica set: records from followers on request, everything else from the master, nothing twice or
left out whatever becomes of a follower."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pocketmq.client.queue import Queue
from pocketmq.proto.errors import ConfigError, OffsetOutOfRange
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.tools.spark.live.cluster import LiveCluster
from pocketmq.tools.spark.live.losses import Losses
from pocketmq.tools.spark.live.place import Place
from pocketmq.tools.spark.live.range_reading import fetched
from pocketmq.tools.spark.live.ranges import QueueRange
from pocketmq.tools.spark.live.read_options import Choice, Pulling, read_options

from ....client.fake_connections import FakeConnections
from ....client.fake_replica_set import FakeReplicaSet
from ....client.pull_world import store

ORDERS = Queue("orders", "broker-a", 0)
CHOICE = Choice(topics=("orders",))


class World:
    """A set with COUNT messages, and Spark's way to it."""

    def __init__(self, read_from: str = "any") -> None:
        self.replicas = FakeReplicaSet("orders")
        self.cluster = LiveCluster(
            Place(("127.0.0.1:9876",)),
            Pulling(batch_size=3, retries=2, retry_interval_ms=1, read_from=read_from),
            connections=FakeConnections(self.replicas),
        )

    def read(self, begin: int, end: int, wanted: pb.Filter | None = None) -> list[int]:
        """Return the offsets of what a task with that range reads."""
        parts = fetched(self.cluster, QueueRange(ORDERS, begin, end), wanted, Losses(True))
        return [
            offset
            for part in parts
            for offset in part.run.columns.queue_offset[part.begin : part.end].tolist()
        ]

    @property
    def asked_of_followers(self) -> int:
        return sum(one.fetches for one in self.replicas.replicas.values())


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.cluster.close()


def test_records_come_from_followers_and_bounds_from_the_master(world: World) -> None:
    store(world.replicas.data, 10)
    for one in world.replicas.replicas.values():
        one.has = 7

    assert world.cluster.bounds(CHOICE, strict=True)[ORDERS] == (0, 10)
    assert world.read(0, 7) == list(range(7))

    assert world.asked_of_followers >= 3


def test_nothing_is_asked_of_followers_unasked() -> None:
    world = World("master")
    store(world.replicas.data, 10)
    try:
        assert world.read(0, 10) == list(range(10))
    finally:
        world.cluster.close()
    assert world.asked_of_followers == 0


@pytest.mark.parametrize("has", [0, 1, 5, 8])
def test_what_a_follower_does_not_have_yet_is_neither_lost_nor_the_end(
    world: World, has: int
) -> None:
    store(world.replicas.data, 10)
    for one in world.replicas.replicas.values():
        one.has = has

    assert world.read(0, 10) == list(range(10))
    assert world.read(6, 10) == [6, 7, 8, 9]


def test_what_the_master_does_not_have_any_more_is_lost_and_said(world: World) -> None:
    store(world.replicas.data, 10)
    world.replicas.data.min_offset = 4

    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        world.read(0, 10)


def test_reading_goes_on_when_followers_are_lost(world: World) -> None:
    store(world.replicas.data, 10)
    assert world.read(0, 3) == [0, 1, 2]
    for id in (2, 3):
        world.replicas.lost.add(world.replicas.address(id))

    assert world.read(3, 10) == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("read_from", ["master", "any"])
def test_reading_goes_on_when_another_replica_is_master(read_from: str) -> None:
    world = World(read_from)
    store(world.replicas.data, 10)
    try:
        assert world.read(0, 3) == [0, 1, 2]
        world.replicas.told = world.replicas.as_told()  # Name servers have not heard of it.
        world.replicas.elect(2)

        assert world.read(3, 10) == [3, 4, 5, 6, 7, 8, 9]
    finally:
        world.cluster.close()


def test_a_broker_without_replicas_is_read_itself() -> None:
    world = World()
    store(world.replicas.data, 4)
    told = world.replicas.as_told()
    del told.replicas[:]
    world.replicas.told = told
    try:
        assert world.read(0, 4) == [0, 1, 2, 3]
    finally:
        world.cluster.close()
    assert world.asked_of_followers == 0


def test_followers_are_asked_as_clients_ask_them(world: World) -> None:
    store(world.replicas.data, 1)
    asked: list[pb.FetchRequest] = []
    data = world.replicas.data
    answer = data.fetch

    def note(request: pb.FetchRequest) -> pb.FetchReply:
        asked.append(request)
        return answer(request)

    data.fetch = note  # type: ignore[method-assign]
    world.read(0, 1)
    world.read(0, 1, pb.Filter(kind=pb.Filter.TAG, expression="a"))

    for one in asked:
        assert (one.from_any, one.min_bytes, one.group) == (True, 1, "")
        assert 0 < one.max_wait_ms < 10_000, "less than a fetch may take"
    assert [one.HasField("filter") for one in asked] == [False, True]


def test_the_option_is_the_word_of_the_clients() -> None:
    given = {"subscribe": "orders", "readFrom": "Any"}
    assert read_options(given, streaming=False).pulling.read_from == "any"
    assert read_options({"subscribe": "orders"}, streaming=True).pulling.read_from == "master"
    with pytest.raises(ConfigError, match="write one of master, any"):
        read_options({**given, "readFrom": "slave"}, streaming=True)
    with pytest.raises(ConfigError, match="give nameServer, not endpoints"):
        read_options({**given, "endpoints": "127.0.0.1:8081"}, streaming=True)
