"""The accumulator alone, against a model: what is ready leaves, in order, in fair turns, and nothing else does."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pocketmq.client import Message, Queue
from pocketmq.client.config import ProducerConfig
from pocketmq.client.message import record_size
from pocketmq.client.producing.accumulator import Accumulator, Budget
from pocketmq.client.producing.batch import ProducerBatch
from pocketmq.client.producing.batch_parts import JointPart, SinglesPart
from pocketmq.client.producing.receipt import SendFuture
from pocketmq.proto.errors import SendFailed
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

LINGER_MS = 10
TIMEOUT_MS = 400
QUEUES = [Queue("orders", broker, number) for broker in ("a", "b") for number in range(3)]
FAILED = SendFailed("given up")


class ShortBudget(Budget):
    """A sender waits for it if `short` is set."""

    short = False

    @property
    def has_waiters(self) -> bool:
        return self.short


class AccumulatorModel(RuleBasedStateMachine):
    """Queues, what was added to each in order, and what came out of it."""

    config = ProducerConfig(
        linger_ms=LINGER_MS,
        batch_size=1_000,
        batch_messages_max=4,
        max_in_flight=2,
        delivery_timeout_ms=TIMEOUT_MS,
    )

    def __init__(self) -> None:
        super().__init__()
        self.budget = ShortBudget(1_000_000, lambda: None)
        self.accumulator = Accumulator(self.config, self.budget)
        self.now_ms = 1_000
        self.count = 0
        self.futures: list[SendFuture] = []
        #: What was added and neither travels nor is settled, by queue, in order.
        self.waiting: dict[Queue, list[bytes]] = {queue: [] for queue in QUEUES}
        self.under_way: list[ProducerBatch] = []
        #: How many runs a broker got since each of its queues was ready and did not get its turn.
        self.skipped: dict[Queue, int] = {}
        self.flushed: list[list[SendFuture]] = []

    def teardown(self) -> None:
        self.accumulator.fail_all(FAILED)
        for run in self.under_way:
            self.accumulator.finished(run)
        self.accumulator.check()
        assert self.budget.taken_bytes == 0
        assert all(future.done() for future in self.futures)

    def messages(self, count: int, size: int) -> list[Message]:
        rows = [b"%06d%s" % (self.count + at, b"x" * size) for at in range(count)]
        self.count += count
        return [Message("orders", body) for body in rows]

    # --- in

    @rule(
        queue=st.sampled_from(QUEUES),
        pinned=st.booleans(),
        count=st.integers(1, 9),
        size=st.integers(1, 400),
    )
    def add_singles(self, queue: Queue, pinned: bool, count: int, size: int) -> None:
        row = self.messages(count, size)
        sizes = list(map(record_size, row))
        futures = [SendFuture() for _ in row]
        ends = [sum(sizes[:at]) for at in range(count + 1)]
        assert self.budget.take(ends[-1])
        self.futures += futures
        begin = 0
        while begin < count:
            end = self.accumulator.add_singles(
                queue, SinglesPart(row, ends, futures), begin, self.now_ms, pinned=pinned
            )
            assert begin < end <= count
            begin = end
        self.waiting[queue] += [message.body for message in row]

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 4))
    def add_many(self, queue: Queue, count: int) -> None:
        row = self.messages(count, 10)
        size_bytes = sum(map(record_size, row))
        assert self.budget.take(size_bytes)
        self.accumulator.add(queue, JointPart(row, size_bytes, Told()), self.now_ms, pinned=False)
        assert self.accumulator.open_queue("orders", 4, 10) != queue or count == 4
        self.waiting[queue] += [message.body for message in row]

    # --- out

    @rule()
    def drain(self) -> None:
        before = {run.queue for run in self.under_way}
        drained = self.accumulator.drain(self.now_ms)
        for run in drained:
            queue = run.queue
            assert queue not in before, "a queue is muted while its run travels"
            before.add(queue)
            assert len(run.messages) <= 4
            assert run.size_bytes < 1_000 or len(run.messages) == 1
            assert run.not_before_ms <= self.now_ms
            bodies = [message.body for message in run.messages]
            assert self.waiting[queue][: len(bodies)] == bodies
            del self.waiting[queue][: len(bodies)]
            self.note_turn(queue, drained)
        self.under_way += drained
        for broker in ("a", "b"):
            busy = sum(run.queue.broker == broker for run in self.under_way)
            assert busy <= 2
            if busy < 2:
                assert not any(map(self.is_ready, self.of_broker(broker)))

    def note_turn(self, queue: Queue, drained: list[ProducerBatch]) -> None:
        """QUEUE had a turn: nobody who is ready may be passed over for long."""
        self.skipped.pop(queue, None)
        taken = {run.queue for run in drained}
        for other in self.of_broker(queue.broker):
            if other not in taken and self.is_ready(other):
                self.skipped[other] = self.skipped.get(other, 0) + 1
                assert self.skipped[other] <= 2 * len(QUEUES) // 2

    def of_broker(self, broker: str) -> list[Queue]:
        return [queue for queue in QUEUES if queue.broker == broker]

    def is_ready(self, queue: Queue) -> bool:
        runs = list(self.accumulator.waiting_for(queue))
        if not runs or any(run.queue == queue for run in self.under_way):
            return False
        first = runs[0]
        if first.attempts:
            return first.not_before_ms <= self.now_ms
        full = len(first.messages) == 4 or len(runs) > 1 or first.size_bytes >= 1_000
        lingered = self.now_ms >= first.born_ms + LINGER_MS
        return full or lingered or first.flush_requested or self.budget.short

    # --- what becomes of a run

    def one_under_way(self, data: st.DataObject) -> ProducerBatch:
        run = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(run)
        return run

    def wait_in_front(self, run: ProducerBatch) -> None:
        self.waiting[run.queue][:0] = [message.body for message in run.messages]

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        run = self.one_under_way(data)
        run.ids = [b"id"] * len(run.messages)
        self.accumulator.finished(run)
        run.succeed(pb.ProduceReply())

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), pause_ms=st.integers(0, 50))
    def try_again(self, data: st.DataObject, pause_ms: int) -> None:
        run = self.one_under_way(data)
        run.attempts += 1
        run.not_before_ms = self.now_ms + pause_ms
        self.accumulator.requeue(run)
        self.wait_in_front(run)

    @precondition(lambda self: any(len(run.messages) > 1 for run in self.under_way))
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        run = self.one_under_way(data)
        at = run.middle(within_a_sender=True)
        if not at:
            self.under_way.append(run)
            return
        self.accumulator.requeue_in_parts(run, run.split(at))
        self.wait_in_front(run)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), queue=st.sampled_from(QUEUES))
    def move(self, data: st.DataObject, queue: Queue) -> None:
        run = self.one_under_way(data)
        run.attempts += 1
        self.accumulator.requeue(run)
        self.accumulator.move(run, queue)
        self.wait_in_front(run)

    @rule()
    def expire(self) -> None:
        for run in self.accumulator.expired(self.now_ms):
            assert run.born_ms + TIMEOUT_MS <= self.now_ms
            gone = {message.body for message in run.messages}
            row = self.waiting[run.queue]
            row[:] = [body for body in row if body not in gone]
            run.fail(FAILED)
        for queue in QUEUES:
            for run in self.accumulator.waiting_for(queue):
                assert run.born_ms + TIMEOUT_MS > self.now_ms

    # --- time, memory, flushes

    @rule(by_ms=st.integers(1, 60))
    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule()
    def wait_for_the_next(self) -> None:
        """Nothing is ready before the instant that was told, if everything is drained and expired now."""
        self.expire()
        self.drain()
        next_ms = self.accumulator.next_ms(self.now_ms)
        if next_ms is not None:
            assert next_ms > self.now_ms
            self.now_ms = next_ms - 1
            assert not self.accumulator.drain(self.now_ms)
            assert not self.accumulator.expired(self.now_ms)

    @rule()
    def run_short(self) -> None:
        self.budget.short = not self.budget.short

    @rule()
    def flush(self) -> None:
        waiting = [future for future in self.futures if not future.done()]
        self.accumulator.flush(lambda: self.flushed.append(waiting))

    @invariant()
    def holds(self) -> None:
        self.accumulator.check()
        for queue in QUEUES:
            runs = self.accumulator.waiting_for(queue)
            assert [m.body for run in runs for m in run.messages] == self.waiting[queue]
        assert all(future.done() for futures in self.flushed for future in futures)


class Told:
    """An outcome that must be settled once."""

    def __init__(self) -> None:
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, _result: Any, /) -> None:
        assert not self._done
        self._done = True

    def set_exception(self, _error: BaseException, /) -> None:
        self.set_result(None)


TestAccumulator = AccumulatorModel.TestCase
TestAccumulator.settings = settings(max_examples=40, stateful_step_count=40)


def accumulator(**options: Any) -> Accumulator:
    return Accumulator(ProducerConfig(**options), Budget(1_000_000, lambda: None))


def add(to: Accumulator, queue: Queue, body: bytes) -> None:
    to.add(queue, JointPart((Message("orders", body),), 100, Told(), single=True), 0, pinned=True)


def test_queues_of_a_busy_broker_take_turns() -> None:
    one = accumulator(max_in_flight=1, batch_messages_max=1)
    for body in (b"1", b"2", b"3"):
        for queue in QUEUES[:3]:
            add(one, queue, body)

    turns = []
    for _ in range(9):
        (run,) = one.drain(0)
        turns.append((run.queue.number, run.messages[0].body))
        one.finished(run)

    assert turns == [(number, body) for body in (b"1", b"2", b"3") for number in range(3)]


def test_brokers_take_turns() -> None:
    one = accumulator(batch_messages_max=1)
    for queue in QUEUES:
        add(one, queue, b"x")

    assert [run.queue.broker for run in one.drain(0)] == ["a", "b"] * 3


def test_an_idle_accumulator_keeps_nothing() -> None:
    one = accumulator()
    add(one, QUEUES[0], b"x")

    (run,) = one.drain(0)
    one.finished(run)
    run.fail(FAILED)

    assert one.next_ms(0) is None
    assert not one._pending
    assert not one._unfinished


async def test_what_comes_after_a_flush_is_not_waited_for() -> None:
    one = accumulator(linger_ms=50)
    flushed = asyncio.Event()
    add(one, QUEUES[0], b"x")
    one.flush(flushed.set)
    add(one, QUEUES[1], b"y")

    (run,) = one.drain(0)
    one.finished(run)
    run.fail(FAILED)

    assert flushed.is_set()
    assert not one.drain(0)
