"""The end of a push consumer: what is at work may end, what is finished is committed."""

from __future__ import annotations

import asyncio

import pytest

from .push_seen import Seen
from .push_world import World, store


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def test_what_is_finished_is_committed_at_the_end(world: World, seen: Seen) -> None:
    store(world.broker, 5)

    async with world.consumer(seen):
        await world.pass_ms(1)

    assert world.broker.committed_of() == 5


async def test_closing_ends_what_is_at_work_and_starts_nothing_more(
    world: World, seen: Seen
) -> None:
    store(world.broker, 100)
    event = seen.gate(*range(100))
    consumer = world.consumer(seen, concurrency=1)
    await consumer.start()
    await world.pass_ms(1)

    closing = asyncio.ensure_future(consumer.close())
    await world.pass_ms(1_000)
    assert not closing.done()
    event.set()
    await closing

    assert seen.numbers == [0]
    assert world.broker.committed_of() == 1


async def test_a_listener_that_does_not_end_is_left_at_the_deadline(
    world: World, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    store(world.broker, 10)
    seen.gate(4)
    consumer = world.consumer(seen, close_timeout_ms=2_000)
    await consumer.start()
    await world.pass_ms(6_000)

    closing = asyncio.ensure_future(consumer.close())
    await world.pass_ms(2_000)
    await closing

    assert "listeners still running" in caplog.text
    assert world.broker.committed_of() == 4
    assert world.broker.sent_back == []


async def test_run_goes_on_until_it_is_closed(world: World, seen: Seen) -> None:
    store(world.broker, 2)
    consumer = world.consumer(seen)

    running = asyncio.ensure_future(consumer.run())
    await world.pass_ms(1)
    assert not running.done()
    await consumer.close()
    await running
    await consumer.close()

    assert seen.numbers == [0, 1]
