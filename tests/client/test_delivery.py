"""Senders, accumulator and sender together, on the virtual clock, against brokers that go wrong in every way.

The laws: no byte of the buffer is lost or taken twice; each message is settled once; each that was acknowledged is
stored once, each that failed at most once, in the order of sending within a queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketmq.client import AsyncProducer, Message, Queue, Receipt
from pocketmq.client.producing.counters import ProducerCounters
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    BufferFull,
    ClientClosed,
    DeliveryTimeout,
    Disconnected,
    FlushTimeout,
    InvalidArgument,
    MessageTooLarge,
    NotServed,
    NotWritable,
    Overloaded,
    PocketMQError,
    ProducerFenced,
    QueueNotFound,
    RequestTimeout,
    SendFailed,
    SequenceBroken,
    StoreFull,
    Unreachable,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import decode_record

from .fake_cluster import FakeBroker, FakeCluster, FakeConnection, FakeConnections, add_topic, cut

QUEUES = 2
BUFFER_BYTES = 6_000
BATCH_BYTES = 1_500
REFUSALS: dict[str, Callable[[], PocketMQError]] = {
    "overloaded": lambda: Overloaded("busy"),
    "full": lambda: StoreFull("no room"),
    "stale": lambda: QueueNotFound("gone"),
    "read only": lambda: NotWritable("not now"),
    "unreachable": lambda: Unreachable("nobody there"),
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


class Weather:
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

    def __init__(self, calm: FakeConnection, broker: FakeBroker | None, weather: Weather) -> None:
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
            raise Disconnected("on the way")
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
            raise Disconnected("on the way back")
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

    def __init__(self, cluster: FakeCluster, weather: Weather) -> None:
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
class Sea:
    """Two brokers, a producer, and what was sent."""

    faults: Sequence[Fault]
    options: dict[str, Any] = field(default_factory=dict)
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.brokers = [FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2")]
        for broker in self.brokers:
            add_topic(broker, "orders", QUEUES)
        self.weather = Weather(self.faults, self.clock)
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
    def counters(self) -> ProducerCounters:
        return self.producer._sender.counters

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


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["any", "any", "named", "named", "delayed", "bad"]),
            st.integers(1, 9),
            st.integers(0, 600),
        ),
        st.tuples(st.just("wait"), st.integers(0, 1_500), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


async def act(sea: Sea, actions: list[tuple[str, int, int]]) -> None:
    async with asyncio.timeout(30):
        await sea.producer.start()
        for kind, count, size in actions:
            if kind == "wait":
                await sea.clock.advance(count)
            else:
                for _ in range(count):
                    sea.send(kind, size)
            await asyncio.sleep(0)
            sea.check()
        await sea.end()
    assert sea.counters.messages_sent + sea.counters.messages_failed == len(sea.sent)


def check_order(sea: Sea) -> None:
    """Assert that what named its queue lies there in the order in which it was sent."""
    named = {message.body for message, _ in sea.sent if message.queue is not None}
    row = [body for queue, body in sea.stored() if queue is not None and body in named]
    assert row == sorted(row)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Retries are logged, and there are thousands."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def check_laws(sea: Sea) -> None:
    """Assert what holds for a numbered producer, whatever happened."""
    times = Counter(body for _, body in sea.stored())
    assert sea.acknowledged() <= set(times)
    # A run that may have been stored and is cut leaves two of which each may be given up alone.
    assert sea.counters.possible_repeats == 0 or sea.counters.splits
    if not sea.counters.possible_repeats:
        assert set(times.values()) <= {1}
        check_order(sea)
    kinds = InvalidArgument | SendFailed | QueueNotFound | NotWritable
    assert all(isinstance(error, kinds) for error in sea.failed())


FAULT_LISTS = st.lists(st.sampled_from([*FAULTS, *["fine"] * 6]), max_size=40)


@settings(max_examples=60)
@given(
    actions=ACTIONS,
    faults=FAULT_LISTS,
    linger_ms=st.sampled_from([0, 0, 20]),
    retries=st.sampled_from([0, 2, 1_000_000, 1_000_000]),
)
async def test_a_numbered_message_is_stored_once_in_order_whatever_happens(
    actions: list[tuple[str, int, int]], faults: list[str], linger_ms: int, retries: int
) -> None:
    sea = Sea(faults, {"linger_ms": linger_ms, "retries": retries})

    await act(sea, actions)

    check_laws(sea)


@pytest.mark.parametrize("seed", range(40))
async def test_in_bad_weather_as_well(seed: int) -> None:
    """Denser than what Hypothesis makes: every remedy is taken many times."""
    random = Random(seed)
    faults = random.choices([*FAULTS, *["fine"] * 6], k=40)
    kinds = ["any", "any", "named", "named", "delayed", "bad"] if seed % 2 else ["any", "named"]
    actions = [
        ("wait", random.randint(0, 1_500), 0)
        if random.random() < 0.4
        else (random.choice(kinds), random.randint(1, 9), random.choice([0, 5, 100, 600]))
        for _ in range(25)
    ]
    sea = Sea(faults, {"linger_ms": random.choice([0, 0, 20])})

    await act(sea, actions)

    check_laws(sea)
    assert sea.counters.retries


@settings(max_examples=25)
@given(actions=ACTIONS, faults=FAULT_LISTS, ordered=st.booleans())
async def test_without_numbers_what_is_acknowledged_is_stored_at_least_once(
    actions: list[tuple[str, int, int]], faults: list[str], ordered: bool
) -> None:
    sea = Sea(faults, {"idempotence": False, "ordered": ordered})

    await act(sea, actions)

    assert sea.acknowledged() <= {body for _, body in sea.stored()}


# ------------------------------------------------------------ one remedy at a time


async def sail(sea: Sea, *kinds: str, advance_ms: int = 5_000) -> list[Receipt | BaseException]:
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


async def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    sea = Sea([])
    await sea.producer.start()
    for _ in range(2):
        sea.send("named", 10)
        await sea.clock.advance(10)
        sea.brokers[0].sequences.forget()

    sea.send("named", 10)
    await sea.clock.advance(10)
    await sea.end()

    # Nothing is known of the producer when the second comes: the first was acknowledged, so nothing is in doubt.
    assert [outcome.result().queue_offset for _, outcome in sea.sent] == [0, 1, 2]
    assert (sea.counters.epochs, sea.counters.possible_repeats) == (2, 0)


async def test_what_may_be_twice_after_a_broker_forgot_is_counted() -> None:
    sea = Sea(["fine", "stored, lost"])
    await sea.producer.start()
    sea.send("named", 10)
    await sea.clock.advance(10)
    sea.send("named", 10)
    await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    sea.brokers[0].sequences.forget()
    await sea.clock.advance(1_000)
    await sea.end()

    assert sea.sent[1][1].result().queue_offset == 2
    assert Counter(body for _, body in sea.stored())[sea.sent[1][0].body] == 2
    assert sea.counters.possible_repeats == 1


@pytest.mark.parametrize(("fault", "broker"), [("overloaded", "b"), ("stored, lost", "a")])
async def test_only_what_was_refused_for_sure_goes_elsewhere(fault: str, broker: str) -> None:
    sea = Sea([fault])
    await sea.producer.start()
    sea.producer._sender._choice.choose = lambda message, queues: queues[0]  # type: ignore[method-assign]

    (receipt,) = await sail(sea, "any")

    assert isinstance(receipt, Receipt)
    assert (receipt.broker, receipt.repeated) == (broker, fault == "stored, lost")
    assert sea.counters.moves == (broker == "b")


async def test_a_failed_run_that_may_be_stored_leaves_no_gap() -> None:
    sea = Sea(["fine", "lost"], {"retries": 0})

    first, second, third = await sail(sea, "named", "named", "named")

    assert isinstance(first, Receipt)
    assert isinstance(second, SendFailed)
    assert not isinstance(second, DeliveryTimeout)
    assert isinstance(third, Receipt)
    assert (third.queue_offset, sea.counters.epochs) == (1, 1)


async def test_what_is_bad_was_never_stored_whatever_was_lost_before() -> None:
    sea = Sea(["lost"])
    await sea.producer.start()
    for kind in ("bad", "named"):
        sea.send(kind, 10)
    await sea.clock.advance(2_000)

    assert [type(error) for error in sea.failed()] == [InvalidArgument]
    assert (sea.counters.epochs, sea.counters.possible_repeats) == (0, 0)
    await sea.end()


async def test_a_failed_run_that_is_not_stored_gives_its_numbers_back() -> None:
    sea = Sea(["fine", "overloaded"], {"retries": 0})

    _, second, third = await sail(sea, "named", "named", "named")

    assert isinstance(second, SendFailed)
    assert isinstance(third, Receipt)
    assert sea.counters.epochs == 0


async def test_a_producer_that_was_replaced_is_at_its_end() -> None:
    sea = Sea([ProducerFenced("a newer epoch")])
    await sea.producer.start()
    for _ in range(3):
        sea.send("named", 700)

    await sea.clock.advance(10)

    assert [type(error) for error in sea.failed()] == [ProducerFenced] * 3
    with pytest.raises(ProducerFenced):
        sea.producer.send_nowait(Message("orders", b"x"))
    await sea.end()


async def test_a_gap_is_closed_by_a_new_epoch() -> None:
    sea = Sea([SequenceBroken("expected 0")])

    (receipt,) = await sail(sea, "named")

    assert isinstance(receipt, Receipt)
    assert (sea.counters.epochs, sea.counters.possible_repeats) == (1, 0)


async def test_a_run_that_never_leaves_expires() -> None:
    sea = Sea(["unreachable"] * 1_000)
    await sea.producer.start()
    for _ in range(2):
        sea.send("named", 1_000)
    await sea.clock.advance(3_000)

    assert [type(error) for error in sea.failed()] == [DeliveryTimeout] * 2
    assert "nobody there" in str(sea.failed()[0])
    assert sea.counters.expired == 2
    await sea.end()


async def test_unordered_runs_of_one_queue_travel_together() -> None:
    sea = Sea(["slow", "slow"], {"ordered": False, "max_in_flight": 5})
    await sea.producer.start()
    for _ in range(2):
        sea.send("named", 1_400)
    await sea.clock.advance(60)

    assert all(outcome.done() for _, outcome in sea.sent)
    await sea.end()


async def test_ordered_runs_of_one_queue_travel_one_after_the_other() -> None:
    sea = Sea(["slow", "slow"], {"max_in_flight": 5})
    await sea.producer.start()
    for _ in range(2):
        sea.send("named", 1_400)
    await sea.clock.advance(60)

    assert [outcome.done() for _, outcome in sea.sent] == [True, False]
    await sea.end()


async def test_who_waits_for_memory_ends_a_linger() -> None:
    sea = Sea([], {"linger_ms": 2_000, "batch_size": 100_000})
    await sea.producer.start()
    while not sea.refused:
        sea.send("named", 500)
    assert not sea.brokers[0].runs

    more = asyncio.ensure_future(sea.producer.send(Message("orders", b"y" * 500)))
    await sea.clock.advance(1)

    assert sea.brokers[0].runs
    await sea.clock.advance(2_000)
    await more
    await sea.end()


async def test_without_acknowledgements_a_message_is_done_when_it_has_left() -> None:
    sea = Sea([], {"acks": "none"})

    receipt, delayed = await sail(sea, "named", "delayed")
    sea.brokers[0].faults.append(Overloaded("busy"))

    assert isinstance(receipt, Receipt)
    assert isinstance(delayed, Receipt)
    assert (receipt.queue, receipt.queue_offset, receipt.durability) == (1, -1, "none")
    assert sum(len(broker.runs) for broker in sea.brokers) == 2


async def test_a_refusal_that_nobody_waits_for_is_counted() -> None:
    sea = Sea([], {"acks": "none"})
    sea.brokers[0].faults.append(Overloaded("busy"))

    (receipt,) = await sail(sea, "named")

    assert isinstance(receipt, Receipt)
    assert sea.counters.refused_unheard == 1


async def test_a_message_above_the_largest_request_is_refused() -> None:
    sea = Sea([], {"max_request_size": 400})
    await sea.producer.start()

    with pytest.raises(MessageTooLarge, match="max_request_size is 400"):
        await sea.producer.send(Message("orders", b"x" * 400))
    with pytest.raises(MessageTooLarge):
        await sea.producer.send_many([Message("orders", b"x"), Message("orders", b"x" * 400)])
    await sea.end()


async def test_a_broker_that_does_not_serve_what_is_asked_is_told_at_once() -> None:
    sea = Sea([NotServed("no replicas")])

    (error,) = await sail(sea, "named")

    assert isinstance(error, NotServed)


async def test_the_queue_choice_hears_how_requests_end() -> None:
    heard: list[tuple[str, float, str]] = []

    class Learning:
        for_a_run = True

        def choose(self, message: Message, queues: Any) -> Queue:
            return Queue("orders", "a", 0)

        def on_result(self, queue: Queue, latency_ms: float, error: PocketMQError | None) -> None:
            heard.append((queue.broker, latency_ms, type(error).__name__))
            raise ZeroDivisionError

    sea = Sea(["slow", "unreachable"], {"queue_choice": Learning()})
    await sail(sea, "any", "any")

    assert heard == [("a", 60, "NoneType"), ("a", 0, "Unreachable"), ("b", 0, "NoneType")]


async def test_a_closed_producer_lets_go_of_what_travels() -> None:
    sea = Sea(["slow"])
    await sea.producer.start()
    sea.send("named", 10)
    await asyncio.sleep(0)

    await sea.producer.close(timeout_ms=1)

    assert [type(error) for error in sea.failed()] == [ClientClosed]
    assert sea.producer._sender.budget.taken_bytes == 0


async def test_counters_tell_what_was_done() -> None:
    sea = Sea(["overloaded", "stored, lost"])
    await sail(sea, "named")
    counters = sea.counters

    assert (counters.requests, counters.retries, counters.repeats_dropped) == (3, 2, 1)
    assert counters.batch_messages.counts[0] == 1
    assert counters.queue_time_ms.count == 1
    assert counters.request_latency_ms.count == 3
    assert counters.batch_bytes.total == counters.bytes_sent
