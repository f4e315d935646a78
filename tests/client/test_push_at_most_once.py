"""Push consumers that commit before they call the listener."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.proto.errors import ConnectionLost

from .push_seen import Seen
from .push_world import World, store


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def test_at_most_once_commits_before_the_call_and_retries_nothing(world: World) -> None:
    store(world.broker, 3)
    committed: list[int | None] = []

    async def listener(message: Any) -> bool:
        committed.append(world.broker.committed_of())
        return False

    async with world.consumer(listener, delivery="at_most_once") as consumer:
        await world.pass_ms(20_000)
        assert (consumer.metrics().dropped, consumer.metrics().failed) == (3, 3)

    assert committed == [3, 3, 3]
    assert world.broker.sent_back == []
    assert world.broker.committed_of() == 3


async def test_at_most_once_waits_for_the_commit(world: World, seen: Seen) -> None:
    store(world.broker, 3)
    world.broker.commit_refusals.append(ConnectionLost("no"))

    async with world.consumer(seen, delivery="at_most_once"):
        await world.pass_ms(999)
        assert seen.numbers == []
        await world.pass_ms(1)
        assert seen.numbers == [0, 1, 2]
