"""Pull consumers of one group over a cluster in memory, on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pocketmq.client import AsyncPullConsumer, Queue
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import NO_HOST, encode_run

from .fake_broker import FakeBroker
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections


def q(number: int, topic: str = "orders") -> Queue:
    return Queue(topic, "broker-a", number)


class World:
    """A cluster of one broker, and consumers of one group."""

    def __init__(self, queues: int = 1) -> None:
        self.cluster = FakeCluster.of_one("orders", queues=queues)
        self.clock = VirtualClock()
        self.cluster.live_by(self.clock)
        self.broker = self.cluster.broker

    def consumer(self, topics: Any = "orders", **settings: Any) -> AsyncPullConsumer:
        connections = FakeConnections(self.cluster)
        return AsyncPullConsumer(
            "billing", topics, clock=self.clock, connections=connections, **settings
        )

    def committed(self, number: int = 0) -> int | None:
        return self.broker.committed.get(("billing", "orders", number))


def store(broker: FakeBroker, count: int, topic: str = "orders", queue: int = 0) -> None:
    """Have BROKER store COUNT messages with their numbers as bodies."""
    begin = len(broker.queues.get((topic, queue), []))
    rows = [(b"%d" % number, b"") for number in range(begin, begin + count)]
    records, sizes = encode_run(topic, queue, rows, born_timestamp_ms=1, born_host=NO_HOST)
    broker.produce(pb.ProduceRun(topic=topic, queue=queue, records=records, sizes=sizes))


def numbers(messages: Sequence[Any]) -> list[int]:
    """Return the numbers that `store` gave MESSAGES as bodies."""
    return [int(message.body) for message in messages]
