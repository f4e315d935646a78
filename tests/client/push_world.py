"""Push consumers over a cluster in memory: a broker that takes messages back, and consumers on a virtual clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from pocketmq.client import AsyncPushConsumer
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import NO_HOST, decode_record, encode_record, encode_run
from pocketmq.proto.rpc import MethodTable, service, unary

from .fake_broker import FakeBroker, add_topic
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections

RETRIES = "%RETRY%billing"
DEAD = "%DLQ%billing"


@dataclass
class TakingBroker(FakeBroker):
    """A broker that takes messages back: they come again at once, or are dead."""

    sent_back: list[pb.SendBackRequest] = field(default_factory=list)
    #: What the next messages that are sent back meet.
    refusals: deque[PocketMQError] = field(default_factory=deque)
    #: What the next commits meet.
    commit_refusals: deque[PocketMQError] = field(default_factory=deque)
    #: Every fetch, in order.
    fetches: list[pb.FetchRequest] = field(default_factory=list)
    retry_max_times: int = 16

    def fetch(self, request: pb.FetchRequest) -> pb.FetchReply:
        self.fetches.append(request)
        return super().fetch(request)

    def commit(self, request: pb.CommitOffsetsRequest, _: Any) -> pb.CommitOffsetsReply:
        if self.commit_refusals:
            raise self.commit_refusals.popleft()
        return super().commit(request, _)

    def send_back(self, request: pb.SendBackRequest, _: Any) -> pb.SendBackReply:
        if self.refusals:
            raise self.refusals.popleft()
        self.sent_back.append(request)
        record = decode_record(self.queues[request.topic, request.queue][request.queue_offset])
        most = (
            request.retry_max_times if request.HasField("retry_max_times") else self.retry_max_times
        )
        dead = request.delay_level < 0 or record.reconsume_times >= most
        topic = DEAD if dead else RETRIES
        add_topic(self, topic, 1)
        properties = {"RETRY_TOPIC": record.topic, **record.properties}
        rows = self.queues.setdefault((topic, 0), [])
        copy = replace(
            record,
            topic=topic,
            queue_id=0,
            properties=properties,
            reconsume_times=record.reconsume_times + 1,
        )
        rows.append(self._patched(encode_record(copy), len(rows)))
        self.wake()
        return pb.SendBackReply(dead=dead, topic=topic, reconsume_times=copy.reconsume_times)

    def wake(self) -> None:
        """Answer fetches that wait."""
        waiting, self.waiting = self.waiting, []
        for try_again in waiting:
            try_again()

    def methods(self) -> MethodTable:
        return super().methods() | service(
            "pocketmq.v1.Broker",
            {"SendBack": unary(pb.SendBackRequest, pb.SendBackReply, self.send_back)},
        )

    def committed_of(self, topic: str = "orders", queue: int = 0) -> int | None:
        return self.committed.get(("billing", topic, queue))


def broker_with(queues: int = 1) -> TakingBroker:
    """Return a broker with topic "orders"."""
    broker = TakingBroker("broker-a", "127.0.0.1:8081")
    add_topic(broker, "orders", queues)
    return broker


def store(broker: FakeBroker, count: int, queue: int = 0, *, size_bytes: int = 0) -> None:
    """Have BROKER store COUNT messages with their numbers as bodies, filled up to SIZE_BYTES."""
    begin = len(broker.queues.get(("orders", queue), []))
    rows = [(b"%d" % n + b" " * size_bytes, b"") for n in range(begin, begin + count)]
    records, sizes = encode_run("orders", queue, rows, born_timestamp_ms=1, born_host=NO_HOST)
    broker.produce(pb.ProduceRun(topic="orders", queue=queue, records=records, sizes=sizes))


def number(message: Any) -> int:
    """Return the number that `store` gave MESSAGE."""
    return int(message.body)


class World:
    """A broker, a clock, and consumers."""

    def __init__(self, queues: int = 1) -> None:
        self.clock = VirtualClock()
        self.broker = broker_with(queues)
        self.broker.sharing.clock = self.clock
        self.cluster = FakeCluster(self.broker)

    def consumer(
        self, listener: Any, subscriptions: Any = "orders", **settings: Any
    ) -> AsyncPushConsumer:
        return AsyncPushConsumer(
            "billing",
            subscriptions,
            listener,
            clock=self.clock,
            connections=FakeConnections(self.cluster),
            **settings,
        )

    async def pass_ms(self, duration_ms: int = 0) -> None:
        """Let DURATION_MS pass, with all that happens in it."""
        await self.clock.advance(duration_ms)
