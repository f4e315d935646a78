"""Creating and deleting while a replica set gets another master: what an earlier try did is no error of a later one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pocketmq.client import AsyncAdmin
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ConnectionLost,
    GroupExists,
    GroupNotFound,
    MasterFenced,
    PocketMQError,
    TopicExists,
    TopicNotFound,
)

from .fake_broker import add_topic
from .fake_connections import FakeConnections
from .fake_replica_set import FakeReplicaSet

Change = Callable[[AsyncAdmin], Awaitable[Any]]

CHANGES: dict[str, tuple[str, Change, Change]] = {
    "create_topic": (
        "create_topic",
        lambda admin: admin.create_topic("orders", queues=3, type="FIFO"),
        lambda admin: admin.delete_topic("orders"),
    ),
    "delete_topic": (
        "delete_topic",
        lambda admin: admin.delete_topic("orders"),
        lambda admin: admin.create_topic("orders", queues=3),
    ),
    "create_group": (
        "create_group",
        lambda admin: admin.create_group("billing", order=True),
        lambda admin: admin.delete_group("billing"),
    ),
    "delete_group": (
        "delete_group",
        lambda admin: admin.delete_group("billing"),
        lambda admin: admin.create_group("billing"),
    ),
}
MISSING = {"delete_topic": TopicNotFound, "delete_group": GroupNotFound}
EXISTING = {"create_topic": TopicExists, "create_group": GroupExists}


def administer(replicas: FakeReplicaSet, clock: VirtualClock) -> AsyncAdmin:
    return AsyncAdmin("n1:1", clock=clock, connections=FakeConnections(replicas))


async def over(clock: VirtualClock, change: Awaitable[Any]) -> Any:
    """Return what CHANGE brings, while the clock goes on."""
    asked = asyncio.ensure_future(change)
    for _ in range(60):
        if asked.done():
            break
        await clock.advance(100)
    return await asked


def lose_answer(
    replicas: FakeReplicaSet, handler: str, error: PocketMQError, *, does: bool = True
) -> None:
    """Have the first call of HANDLER end with ERROR and an election, after it was done if it DOES that."""
    real = getattr(replicas.data, handler)

    def once(request: Any, call: Any) -> Any:
        setattr(replicas.data, handler, real)
        if does:
            real(request, call)
        replicas.elect(2)
        raise error

    setattr(replicas.data, handler, once)


@pytest.mark.parametrize("error", [MasterFenced("the lease is over"), ConnectionLost("killed")])
@pytest.mark.parametrize("does", [True, False])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_whose_answer_an_election_took_succeeds(
    change: str, does: bool, error: PocketMQError
) -> None:
    replicas, clock = FakeReplicaSet(), VirtualClock()
    handler, begin, undo = CHANGES[change]
    async with administer(replicas, clock) as admin:
        if change in MISSING:
            await over(clock, undo(admin))
        lose_answer(replicas, handler, error, does=does)

        await over(clock, begin(admin))

    is_there = change in EXISTING
    assert bool(replicas.data.topics or replicas.data.groups) == is_there


@pytest.mark.parametrize("change", EXISTING)
async def test_what_existed_before_is_refused_over_an_election(change: str) -> None:
    replicas, clock = FakeReplicaSet(), VirtualClock()
    handler, begin, _ = CHANGES[change]
    async with administer(replicas, clock) as admin:
        await over(clock, begin(admin))
        lose_answer(replicas, handler, MasterFenced("the lease is over"), does=False)

        with pytest.raises(EXISTING[change]):
            await over(clock, begin(admin))


@pytest.mark.parametrize("change", MISSING)
async def test_what_never_was_is_not_found_over_an_election(change: str) -> None:
    replicas, clock = FakeReplicaSet(), VirtualClock()
    handler, begin, _ = CHANGES[change]
    async with administer(replicas, clock) as admin:
        lose_answer(replicas, handler, MasterFenced("the lease is over"), does=False)

        with pytest.raises(MISSING[change]):
            await over(clock, begin(admin))


async def test_what_somebody_else_created_meanwhile_with_other_settings_is_refused() -> None:
    replicas, clock = FakeReplicaSet(), VirtualClock()
    real = replicas.data.create_topic

    def once(request: Any, call: Any) -> Any:
        replicas.data.create_topic = real  # type: ignore[method-assign]
        add_topic(replicas.data, "orders", 9)
        replicas.elect(2)
        raise MasterFenced("the lease is over")

    replicas.data.create_topic = once  # type: ignore[assignment, method-assign]
    async with administer(replicas, clock) as admin:
        with pytest.raises(TopicExists):
            await over(clock, admin.create_topic("orders", queues=3))
