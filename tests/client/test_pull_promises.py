"""What a pull consumer promises: at most once, bounded polls, a member that is seen to live, an error that is told."""

from __future__ import annotations

import asyncio

import pytest

from pocketmq.proto.errors import ConfigError, ConnectionLost, SubscriptionMismatch

from .pull_world import World, numbers, store


async def test_at_most_once_commits_before_it_hands_out() -> None:
    here = World()
    store(here.broker, 10)

    reading = here.consumer(delivery="at_most_once", fetch_messages_max=4)
    await reading.start()
    assert len(await reading.poll()) == 4
    assert here.committed() == 4

    await reading.close(finished=False)
    assert here.committed() == 4


async def test_at_most_once_gives_back_what_it_did_not_hand_out() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(delivery="at_most_once") as reading:
        await reading.poll(3)
        assert here.committed() == 10

    assert here.committed() == 3


async def test_at_most_once_hands_out_nothing_that_it_cannot_commit() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(delivery="at_most_once") as reading:
        await here.clock.advance(100)
        here.cluster.lost.add(here.broker.address)
        with pytest.raises(ConnectionLost):
            await reading.poll()
        here.cluster.lost.clear()
        assert numbers(await reading.poll()) == list(range(10))


async def test_at_most_once_needs_commits() -> None:
    with pytest.raises(ConfigError, match="auto_commit"):
        World().consumer(delivery="at_most_once", auto_commit=False)


async def test_bodies_become_values() -> None:
    here = World()
    store(here.broker, 3)

    async with here.consumer(value_deserializer="json") as reading:
        assert [message.value for message in await reading.poll()] == [0, 1, 2]


async def test_max_poll_records_bounds_a_poll() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(max_poll_records=4) as reading:
        assert [len(await reading.poll()) for _ in range(3)] == [4, 4, 2]


async def test_who_does_not_come_for_more_leaves_until_it_does() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(max_poll_interval_ms=8_000) as slow:
        assert len(await slow.poll(4)) == 4
        async with here.consumer() as other:
            await here.clock.advance(10_500)
            assert numbers(await other.poll()) == list(range(10))
            assert slow.metrics().repeats == 10
            waiting = asyncio.ensure_future(slow.poll())
            await here.clock.advance(500)
            assert here.broker.sharing.left
            waiting.cancel()
        store(here.broker, 1)
        assert numbers(await slow.poll()) == [10]


async def test_who_goes_through_a_batch_message_by_message_is_there() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(max_poll_interval_ms=8_000) as slow:
        count = 0
        async for _ in slow:
            await here.clock.advance(3_000)
            count += 1
            if count == 10:
                break
        assert here.broker.sharing.left == []


async def test_a_mismatch_is_raised_at_the_next_poll() -> None:
    here = World()
    here.broker.sharing.refusals = [SubscriptionMismatch("b wants something else")]

    async with here.consumer() as reading:
        with pytest.raises(SubscriptionMismatch, match="b wants"):
            await reading.poll()
