"""Push consumers read no more than they may hold."""

from __future__ import annotations

import pytest

from .push_seen import Seen
from .push_world import World, store


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.mark.parametrize(
    ("settings", "metric", "reads"),
    [
        ({}, "paused_by_messages", 1_500),
        ({"queue_messages_max": 99}, "paused_by_messages", 500),
        ({"queue_messages_max": 10_000, "queue_max_bytes": 49_000}, "paused_by_bytes", 500),
        ({"queue_messages_max": 10_000}, "paused_by_span", 2_500),
    ],
    ids=["default", "messages", "bytes", "span"],
)
async def test_a_queue_that_holds_much_is_not_read_on(
    world: World, seen: Seen, settings: dict[str, int], metric: str, reads: int
) -> None:
    store(world.broker, 5_000)
    event = seen.gate(*range(5_000))

    async with world.consumer(seen, fetch_messages_max=500, **settings) as consumer:
        await world.pass_ms(1_000)
        fetches = world.broker.fetches
        assert fetches[-1].offset + 500 == reads
        assert getattr(consumer.metrics(), metric) == 1
        assert consumer.metrics().held == reads
        event.set()
        await world.pass_ms(1_000)
        assert sorted(seen.numbers) == list(range(5_000))
        assert consumer.metrics().held_bytes == 0


async def test_one_slow_message_stops_reading_when_the_span_is_too_long(
    world: World, seen: Seen
) -> None:
    store(world.broker, 5_000)
    event = seen.gate(10)

    async with world.consumer(seen, fetch_messages_max=500, close_timeout_ms=1):
        await world.pass_ms(1_000)
        assert sorted(seen.numbers) == list(range(2_500))
        event.set()
        await world.pass_ms(1_000)
        assert len(seen.numbers) == 5_000
