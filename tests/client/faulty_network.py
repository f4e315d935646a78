"""A producer between two brokers, whose requests meet what is planned: refusals, losses, late stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from pocketmq.client import AsyncProducer, Message, ProducerMetrics, Queue, Receipt
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    BufferFull,
    ConnectFailed,
    ConnectionLost,
    FlushTimeout,
    InvalidArgument,
    MessageTooLarge,
    NotWritable,
    Overloaded,
    PocketMQError,
    QueueNotFound,
    RequestTimeout,
    StoreFull,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import decode_record

from .fake_broker import FakeBroker, add_topic, cut
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnection, FakeConnections

QUEUES = 2
BUFFER_BYTES = 6_000
BATCH_BYTES = 1_500
REFUSALS: dict[str, Callable[[], PocketMQError]] = {
    "overloaded": lambda: Overloaded("busy"),
    "full": lambda: StoreFull("no room"),
    "stale": lambda: QueueNotFound("gone"),
    "read only": lambda: NotWritable("not now"),
    "unreachable": lambda: ConnectFailed("nobody there"),
}
#: What a request meets. "stored, …": the broker has stored it, and the sender does not hear of it.
FAULTS = [
    *REFUSALS,
    "lost",
    "stored, lost",
    "stored, not on the device",
    "stored late",
    "slow",
    "too large",
]


#: One of these, or a refusal of its own.
Fault: TypeAlias = str | PocketMQError


class FaultSchedule:
    """What the next requests meet; fine once all is used up."""

    def __init__(self, faults: Sequence[Fault], clock: VirtualClock) -> None:
        self._faults = iter(faults)
        self.clock = clock
        self.late: list[asyncio.Task[None]] = []
        #: More messages than this are too large for a run.
        self.messages_max = 1_000

    def next(self) -> Fault:
        return next(self._faults, "fine")

    def clear(self) -> None:
        self._faults = iter(())


class StormyConnection:
    """A connection to a broker in WEATHER."""

    def __init__(
        self, calm: FakeConnection, broker: FakeBroker | None, weather: FaultSchedule
    ) -> None:
        self.address = calm.address
        self._calm = calm
        self._broker = broker
        self._weather = weather

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calm, name)

    async def produce(self, run: pb.ProduceRun, timeout_ms: float) -> pb.ProduceReply:
        assert self._broker is not None
        check_numbers(run)
        fault = self._weather.next()
        clock = self._weather.clock
        if isinstance(fault, PocketMQError):
            raise fault
        if fault in REFUSALS:
            raise REFUSALS[fault]()
        if fault == "lost":
            raise ConnectionLost("on the way")
        if fault == "stored late":
            self._weather.late.append(asyncio.ensure_future(self._store_late(run, 700)))
            await clock.sleep_until(clock.now_ms() + int(timeout_ms))
            raise RequestTimeout("no answer")
        if fault == "too large":
            self._weather.messages_max = 1
        if fault == "slow":
            await clock.sleep_until(clock.now_ms() + 60)
        reply = self._stored(run)
        if fault == "stored, lost":
            raise ConnectionLost("on the way back")
        if fault == "stored, not on the device":
            raise FlushTimeout("not yet")
        return reply

    async def _store_late(self, run: pb.ProduceRun, delay_ms: int) -> None:
        await self._weather.clock.sleep_until(self._weather.clock.now_ms() + delay_ms)
        try:
            self._stored(run)
        except PocketMQError:
            return

    def _stored(self, run: pb.ProduceRun) -> pb.ProduceReply:
        assert self._broker is not None
        stored = self._broker.sequences.knows(run)
        if len(run.sizes) > self._weather.messages_max and not stored:
            self._weather.messages_max = 1_000
            raise MessageTooLarge("send it in parts")
        if b"BAD" in run.records:
            raise InvalidArgument("a bad one")
        return self._broker.produce(run)


class StormyConnections(FakeConnections):
    """Connections to CLUSTER in WEATHER."""

    def __init__(self, cluster: FakeCluster, weather: FaultSchedule) -> None:
        super().__init__(cluster)
        self._brokers = cluster.brokers
        self._weather = weather

    def to(self, address: str) -> Any:
        return StormyConnection(super().to(address), self._brokers.get(address), self._weather)


def check_numbers(run: pb.ProduceRun) -> None:
    """Assert that fields and properties of RUN say the same."""
    said = [
        decode_record(record).properties.get("PRODUCER_SEQUENCE")
        for record in cut(run.records, list(run.sizes))
    ]
    own = f"{run.producer_id:x}:{run.producer_epoch}"
    count, first = len(run.sizes), run.first_sequence
    if not run.producer_id:
        assert said == [None] * count
    elif len(said) > 1 and said[1] is not None:
        assert said == [f"{own}:{first + row}:1" for row in range(count)]
    else:
        assert said == [f"{own}:{first}:{count}", *[None] * (count - 1)]


@dataclass
class FaultyNetwork:
    """Two brokers, a producer, and what was sent."""

    faults: Sequence[Fault]
    options: dict[str, Any] = field(default_factory=dict)
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.brokers = [FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2")]
        for broker in self.brokers:
            add_topic(broker, "orders", QUEUES)
        self.weather = FaultSchedule(self.faults, self.clock)
        chosen: dict[str, Any] = {
            "buffer_memory": BUFFER_BYTES,
            "batch_size": BATCH_BYTES,
            "batch_messages_max": 6,
            "max_in_flight": 2,
            "request_timeout_ms": 500,
            "delivery_timeout_ms": 3_000,
        }
        self.producer = AsyncProducer(
            clock=self.clock,
            connections=StormyConnections(FakeCluster(*self.brokers), self.weather),
            random=Random(3),
            **chosen | self.options,
        )
        self.sent: list[tuple[Message, asyncio.Future[Receipt]]] = []
        self.refused = 0

    @property
    def counters(self) -> ProducerMetrics:
        return self.producer.metrics()

    def send(self, kind: str, size: int) -> None:
        body = b"%06d%s" % (len(self.sent), b"x" * size)
        parts: dict[str, Any] = {}
        if kind == "named":
            parts["queue"] = Queue("orders", "a", 1)
        elif kind == "delayed":
            parts["delay_level"] = 3
        elif kind == "bad":
            body = b"BAD" + body
        message = Message("orders", body, **parts)
        try:
            self.sent.append((message, self.producer.send_nowait(message)))
        except BufferFull:
            self.refused += 1

    def check(self) -> None:
        sender = self.producer._sender
        assert 0 <= sender.budget.taken_bytes <= BUFFER_BYTES
        sender._accumulator.check()

    async def end(self) -> None:
        """Let the weather clear, and wait until everything is settled."""
        self.weather.clear()
        closing = asyncio.ensure_future(self.producer.close())
        while not closing.done():
            await self.clock.advance(500)
            self.check()
        await closing
        await self.clock.advance(700)
        for late in self.weather.late:
            await late
        assert self.producer._sender.budget.taken_bytes == 0
        assert all(outcome.done() for _, outcome in self.sent)

    def stored(self) -> Iterator[tuple[Queue | None, bytes]]:
        """Yield every stored record: its queue (None: it waits for its time) and its body."""
        for broker in self.brokers:
            for (topic, number), records in broker.queues.items():
                for record in records:
                    yield Queue(topic, broker.name, number), decode_record(record).body
            for _, record in broker.pending.values():
                yield None, decode_record(record).body

    def acknowledged(self) -> set[bytes]:
        return {message.body for message, outcome in self.sent if outcome.exception() is None}

    def failed(self) -> list[BaseException]:
        return [error for _, outcome in self.sent if (error := outcome.exception()) is not None]


async def sail(
    sea: FaultyNetwork, *kinds: str, advance_ms: int = 5_000
) -> list[Receipt | BaseException]:
    """Send a message of each of KINDS, one after the other; return what became of them."""
    await sea.producer.start()
    results: list[Receipt | BaseException] = []
    for kind in kinds:
        sea.send(kind, 10)
        await sea.clock.advance(advance_ms)
        outcome = sea.sent[-1][1]
        assert outcome.done()
        results.append(outcome.exception() or outcome.result())
    await sea.end()
    return results
