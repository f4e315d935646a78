"""Push consumers in order: a queue is handled message by message, and stands still while one of them fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.client import Reject, Retry
from pocketmq.proto.errors import ConnectionLost

from .push_world import DEAD, World, number, store


class Failing:
    """A listener that fails at the numbers in FAILURES, so many times each."""

    def __init__(self, failures: dict[int, int] | None = None) -> None:
        self.failures = failures or {}
        self.calls: list[tuple[int, int, int]] = []

    async def __call__(self, message: Any) -> bool:
        return self.call(message)

    def call(self, message: Any) -> bool:
        at = number(message)
        self.calls.append((message.queue, at, message.reconsume_times))
        self.failures[at] = self.failures.get(at, 0) - 1
        return self.failures[at] < 0

    def numbers(self, queue: int = 0) -> list[int]:
        return [at for where, at, _ in self.calls if where == queue]


async def test_a_failed_message_is_tried_again_in_its_place() -> None:
    world, listener = World(), Failing({2: 2})
    store(world.broker, 5)

    async with world.consumer(listener, ordered=True) as consumer:
        await world.pass_ms(999)
        assert listener.numbers() == [0, 1, 2]
        await world.pass_ms(1)
        assert listener.numbers() == [0, 1, 2, 2]
        await world.pass_ms(1_000)
        assert listener.numbers() == [0, 1, 2, 2, 2, 3, 4]
        assert consumer.metrics().failed == 2
        assert consumer.metrics().handled == 5

    assert [times for _, at, times in listener.calls if at == 2] == [0, 1, 2]
    assert world.broker.committed_of() == 5
    assert world.broker.sent_back == []


async def test_nothing_behind_a_failed_message_is_committed() -> None:
    world, listener = World(), Failing({2: 1_000})
    store(world.broker, 5)

    async with world.consumer(listener, ordered=True, suspend_current_queue_ms=30_000):
        await world.pass_ms(6_000)
        assert world.broker.committed_of() == 2


async def test_other_queues_go_on() -> None:
    world, listener = World(queues=3), Failing({2: 1})
    store(world.broker, 3, queue=0)
    store(world.broker, 2, queue=1)
    store(world.broker, 2, queue=2)

    async with world.consumer(listener, ordered=True):
        await world.pass_ms(10)
        assert [listener.numbers(queue) for queue in range(3)] == [[0, 1, 2], [0, 1], [0, 1]]
        await world.pass_ms(1_000)

    assert listener.numbers() == [0, 1, 2, 2]


async def test_a_message_that_fails_too_often_is_dead_and_the_queue_goes_on() -> None:
    world, listener = World(), Failing({1: 1_000})
    store(world.broker, 4)

    async with world.consumer(listener, ordered=True, max_reconsume_times=3) as consumer:
        await world.pass_ms(2_999)
        assert world.broker.sent_back == []
        await world.pass_ms(1)
        metrics = consumer.metrics()

    assert listener.numbers() == [0, 1, 1, 1, 1, 2, 3]
    (request,) = world.broker.sent_back
    assert (request.queue_offset, request.delay_level) == (1, -1)
    assert (metrics.dead, metrics.handled) == (1, 3)
    assert len(world.broker.queues[DEAD, 0]) == 1
    assert world.broker.committed_of() == 4


async def test_a_rejected_message_is_dead_at_once() -> None:
    world = World()
    store(world.broker, 3)
    numbers: list[int] = []

    async def listener(message: Any) -> None:
        numbers.append(number(message))
        if number(message) == 0:
            raise Reject("nonsense")

    async with world.consumer(listener, ordered=True):
        await world.pass_ms(1)
        assert numbers == [0, 1, 2]

    assert [request.reason for request in world.broker.sent_back] == ["nonsense"]


async def test_a_dead_message_that_cannot_be_sent_back_is_tried_again() -> None:
    world, listener = World(), Failing({0: 2})
    store(world.broker, 2)
    world.broker.refusals.append(ConnectionLost("no"))

    async with world.consumer(listener, ordered=True, max_reconsume_times=1):
        await world.pass_ms(1_000)
        assert listener.numbers() == [0, 0]
        await world.pass_ms(1_000)
        assert listener.numbers() == [0, 0, 0, 1]

    assert world.broker.sent_back == []


async def test_a_batch_is_tried_again_as_a_whole() -> None:
    world = World()
    store(world.broker, 6)
    batches: list[list[int]] = []

    async def listener(messages: list[Any]) -> Any:
        batches.append([number(message) for message in messages])
        return Retry(messages=messages[:1]) if len(batches) == 2 else True

    async with world.consumer(listener, ordered=True, listener_batch_size=2):
        await world.pass_ms(1_000)

    assert batches == [[0, 1], [2, 3], [2, 3], [4, 5]]
    assert world.broker.committed_of() == 6


async def test_a_dead_batch_is_dead_message_by_message() -> None:
    world = World()
    store(world.broker, 6)

    async def listener(messages: list[Any]) -> bool:
        return number(messages[0]) != 2

    async with world.consumer(listener, ordered=True, listener_batch_size=2, max_reconsume_times=1):
        await world.pass_ms(2_000)

    assert [request.queue_offset for request in world.broker.sent_back] == [2, 3]
    assert world.broker.committed_of() == 6


async def test_at_most_once_goes_on_behind_a_failed_message() -> None:
    world, listener = World(), Failing({1: 1})
    store(world.broker, 4)

    async with world.consumer(listener, ordered=True, delivery="at_most_once") as consumer:
        await world.pass_ms(1)
        assert consumer.metrics().dropped == 1

    assert listener.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize("threads", [True, False])
async def test_a_queue_is_with_one_worker_at_a_time(threads: bool) -> None:
    world = World(queues=4)
    listener = Failing({700: 1, 1_300: 2})
    for queue in range(4):
        store(world.broker, 1_500, queue)

    async with world.consumer(
        listener.call if threads else listener, ordered=True, suspend_current_queue_ms=10
    ):
        for _ in range(20):
            await world.pass_ms(10)

    # Whichever queue meets the failure has it; without the repeats each is in its order.
    for queue in range(4):
        numbers = listener.numbers(queue)
        assert sorted(set(numbers)) == list(range(1_500))
        assert numbers == sorted(numbers)
        assert world.broker.committed_of(queue=queue) == 1_500
    assert len(listener.calls) == 6_003


async def test_a_queue_that_waits_holds_no_worker() -> None:
    world = World(queues=2)
    store(world.broker, 2, queue=0)
    store(world.broker, 2, queue=1)
    calls: list[tuple[int, int]] = []

    async def listener(message: Any) -> bool:
        calls.append((message.queue, number(message)))
        return bool(message.queue == 1)

    async with world.consumer(listener, ordered=True, concurrency=1):
        await world.pass_ms(10)

    assert sorted(calls) == [(0, 0), (1, 0), (1, 1)]


async def test_closing_a_queue_that_stands_still_does_not_wait() -> None:
    world, listener = World(), Failing({1: 1_000})
    store(world.broker, 3)
    consumer = world.consumer(listener, ordered=True, suspend_current_queue_ms=30_000)
    await consumer.start()
    await world.pass_ms(10)

    await asyncio.wait_for(consumer.close(), 10)

    assert world.broker.committed_of() == 1
