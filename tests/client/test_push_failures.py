"""Push consumers whose listeners fail: what failed comes again, until it is dead."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pocketmq.client import Reject, Retry
from pocketmq.proto.errors import ConnectionLost

from .push_seen import Seen
from .push_world import DEAD, RETRIES, World, number, store


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.mark.parametrize(
    ("answer", "level", "reason"),
    [
        (False, 0, "the listener returned False"),
        (Retry("later", delay_level=5), 5, "later"),
        (Reject("nonsense"), -1, "nonsense"),
        (ZeroDivisionError("by zero"), 0, "ZeroDivisionError: by zero"),
        ("yes", 0, "the listener returned 'yes': return None"),
    ],
    ids=["false", "retry", "reject", "exception", "odd"],
)
@pytest.mark.parametrize("raising", [True, False])
async def test_a_failed_message_is_sent_back_as_the_listener_says(
    world: World, answer: Any, level: int, reason: str, raising: bool
) -> None:
    store(world.broker, 3)

    async def listener(message: Any) -> Any:
        if number(message) != 1 or message.reconsume_times:
            return True
        if raising and isinstance(answer, BaseException):
            raise answer
        return answer

    async with world.consumer(listener) as consumer:
        await world.pass_ms(10_000)
        (request,) = world.broker.sent_back
        metrics = consumer.metrics()

    assert (request.queue_offset, request.delay_level) == (1, level)
    assert request.reason.startswith(reason)
    assert not request.HasField("retry_max_times")
    assert world.broker.committed_of() == 3
    assert (metrics.failed, metrics.sent_back + metrics.dead) == (1, 1)


async def test_a_message_comes_again_under_its_own_topic_until_it_is_dead(world: World) -> None:
    store(world.broker, 1)
    seen: list[tuple[str, str, int]] = []

    async def listener(message: Any) -> bool:
        seen.append((message.topic, message.stored_topic, message.reconsume_times))
        return False

    async with world.consumer(listener, max_reconsume_times=2) as consumer:
        await world.pass_ms(30_000)
        metrics = consumer.metrics()

    assert seen == [("orders", "orders", 0), ("orders", RETRIES, 1), ("orders", RETRIES, 2)]
    assert len(world.broker.queues[DEAD, 0]) == 1
    assert (metrics.sent_back, metrics.dead, metrics.handled, metrics.failed) == (2, 1, 0, 3)
    assert world.broker.committed_of(RETRIES) == 2


async def test_a_message_that_cannot_be_sent_back_is_kept_and_tried_here(world: World) -> None:
    store(world.broker, 2)
    world.broker.refusals.extend([ConnectionLost("no"), ConnectionLost("no")])
    times: list[int] = []

    async def listener(message: Any) -> bool:
        if number(message) == 1:
            return True
        times.append(message.reconsume_times)
        return len(times) == 3

    async with world.consumer(listener) as consumer:
        await world.pass_ms(4_999)
        assert times == [0]
        await world.pass_ms(1)
        assert times == [0, 1]
        assert world.broker.committed_of() == 0
        await world.pass_ms(5_000)
        assert times == [0, 1, 2]
        await world.pass_ms(5_000)
        assert world.broker.committed_of() == 2
        assert consumer.metrics().handled == 2
    assert world.broker.sent_back == []


async def test_a_slow_message_is_sent_back_and_its_outcome_not_heard(
    world: World, seen: Seen
) -> None:
    store(world.broker, 3)
    event = seen.gate(1)

    async with world.consumer(seen, consume_timeout_ms=10_000) as consumer:
        await world.pass_ms(9_000)
        assert world.broker.sent_back == []
        await world.pass_ms(3_000)
        (request,) = world.broker.sent_back
        assert (request.queue_offset, request.delay_level) == (1, 3)
        await world.pass_ms(5_000)
        assert world.broker.committed_of() == 3
        assert consumer.metrics().slow == 1
        event.set()
        await world.pass_ms(20_000)
        assert len(world.broker.sent_back) == 1


async def test_a_slow_message_that_cannot_be_sent_back_is_not_handled_twice_here(
    world: World, seen: Seen
) -> None:
    store(world.broker, 1)
    event = seen.gate(0)
    world.broker.refusals.append(ConnectionLost("no"))

    async with world.consumer(seen, consume_timeout_ms=10_000):
        await world.pass_ms(12_000)
        assert world.broker.committed_of() == 0
        await world.pass_ms(10_000)
        assert len(world.broker.sent_back) == 1
        assert world.broker.committed_of() == 1
        event.set()


async def test_only_the_messages_of_a_batch_that_are_named_come_again(world: World) -> None:
    store(world.broker, 10)
    again: list[int] = []

    async def listener(messages: list[Any]) -> Any:
        if messages[0].reconsume_times:
            again.extend(map(number, messages))
            return True
        return Retry(messages=[m for m in messages if number(m) % 3 == 0])

    async with world.consumer(listener, listener_batch_size=10) as consumer:
        await world.pass_ms(10_000)
        assert again == [0, 3, 6, 9]
        assert consumer.metrics().handled == 10


async def test_a_batch_fails_as_a_whole(world: World) -> None:
    store(world.broker, 4)

    async def listener(messages: list[Any]) -> bool:
        return bool(messages[0].reconsume_times)

    async with world.consumer(listener, listener_batch_size=4):
        await world.pass_ms(1)

    assert [request.queue_offset for request in world.broker.sent_back] == [0, 1, 2, 3]


async def test_what_fails_while_closing_is_sent_back_before_the_end(world: World) -> None:
    store(world.broker, 1)
    event = asyncio.Event()

    async def listener(message: Any) -> bool:
        await event.wait()
        return False

    consumer = world.consumer(listener)
    await consumer.start()
    await world.pass_ms(1)
    closing = asyncio.ensure_future(consumer.close())
    await world.pass_ms(1)
    event.set()
    await closing

    assert len(world.broker.sent_back) == 1
    assert world.broker.committed_of() == 1


async def test_a_listener_that_cancels_itself_has_failed(world: World) -> None:
    store(world.broker, 3)
    times: list[int] = []

    async def listener(message: Any) -> None:
        times.append(number(message))
        if len(times) == 1:
            raise asyncio.CancelledError

    async with world.consumer(listener):
        await world.pass_ms(10_000)

    assert sorted(times) == [0, 0, 1, 2]
    assert world.broker.committed_of() == 3


async def test_a_failed_listener_is_logged_with_its_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    store(world.broker, 1)

    async def listener(message: Any) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.WARNING):
        async with world.consumer(listener, max_reconsume_times=0):
            await world.pass_ms(1)

    assert "ZeroDivisionError" in caplog.text
    assert len(world.broker.queues[DEAD, 0]) == 1
