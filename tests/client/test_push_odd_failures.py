"""Push consumers whose listeners fail oddly: what failed is sent back, and the others are handled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pocketmq.client import Retry

from .push_world import World, number, store
from .test_answers import BareRetry, Unasked, Unspeakable


@pytest.fixture
def world() -> World:
    return World()


class Ended(BaseException):
    """An outcome that is no Exception: as those by which test runners skip."""


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "tasks"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Unspeakable, "Unspeakable"),
        (lambda: Retry(ValueError("no luck")), "no luck"),  # type: ignore[arg-type]
        (BareRetry, ""),
        (lambda: OSError("caf\udce9"), "OSError: caf\\udce9"),
        (SystemExit, "SystemExit: "),
        (Ended, "Ended: "),
        (asyncio.CancelledError, "CancelledError: "),
        (Unasked, "the listener returned Unasked: return None or True"),
    ],
    ids=["unspeakable", "error as reason", "bare", "bytes", "exit", "base", "cancelled", "unasked"],
)
async def test_a_failure_that_is_oddly_said_is_a_failure_all_the_same(
    world: World, kind: Callable[[], Any], reason: str, size: int, threads: bool
) -> None:
    store(world.broker, 3)

    def call(given: Any) -> Any:
        first = given if size == 1 else given[0]
        if first.reconsume_times or number(first) != 0:
            return True
        if kind is Unasked:
            return Unasked()
        raise kind()

    async def listener(given: Any) -> Any:
        return call(given)

    async with world.consumer(call if threads else listener, listener_batch_size=size):
        await world.pass_ms(100)

    assert [request.reason for request in world.broker.sent_back] == [reason] * size
    assert world.broker.committed_of() == 3


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "tasks"])
async def test_a_message_that_came_alone_may_be_named(world: World, threads: bool) -> None:
    store(world.broker, 3)

    def call(message: Any) -> Any:
        again = bool(message.reconsume_times)
        return again or Retry(messages=[message] if number(message) == 1 else [])

    async def listener(message: Any) -> Any:
        return call(message)

    async with world.consumer(call if threads else listener):
        await world.pass_ms(100)

    assert [request.queue_offset for request in world.broker.sent_back] == [1]
    assert world.broker.committed_of() == 3


async def test_a_listener_may_empty_its_list(world: World) -> None:
    store(world.broker, 4)

    def listener(messages: list[Any]) -> Any:
        failed = []
        while messages:
            message = messages.pop()
            if number(message) % 2 and not message.reconsume_times:
                failed.append(message)
        return Retry(messages=failed)

    async with world.consumer(listener, listener_batch_size=4):
        await world.pass_ms(100)

    assert [request.queue_offset for request in world.broker.sent_back] == [1, 3]
    assert world.broker.committed_of() == 4


async def test_in_order_an_odd_failure_is_tried_again_in_its_place(world: World) -> None:
    store(world.broker, 3)
    seen: list[int] = []

    def listener(message: Any) -> None:
        seen.append(number(message))
        if seen == [0, 1]:
            raise Unspeakable

    async with world.consumer(listener, ordered=True):
        await world.pass_ms(5_000)

    assert seen == [0, 1, 1, 2]
    assert world.broker.committed_of() == 3
