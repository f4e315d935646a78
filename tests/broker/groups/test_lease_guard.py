"""The fence: who fetches keeps its queue, and who does not own it cannot commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pocketmq.proto.errors import LeaseLost
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .lease_desk import LEASE_MS, TOPIC, Desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    await desk.timers.stop()


async def test_who_waits_gets_a_queue_that_is_fetched_no_more_and_the_old_token_is_refused(
    desk: Desk,
) -> None:
    (token,) = desk.ask("a", 0).tokens or [0]
    b = desk.ask("b", 0, wait_ms=60_000)
    await desk.clock.advance(LEASE_MS - 1)
    desk.fetch(0, token)

    await desk.clock.advance(LEASE_MS - 1)
    assert b.tokens is None
    await desk.clock.advance(1)

    assert b.tokens is not None
    with pytest.raises(LeaseLost):
        desk.fetch(0, token)
    assert desk.holders() == {0: "b"}


async def test_only_the_owner_commits_and_anybody_if_there_is_none(desk: Desk) -> None:
    (token,) = desk.ask("a", 0).tokens or [0]
    for wrong in (0, token + 1):
        with pytest.raises(LeaseLost):
            desk.lease_guard.check_commit("g", [commit_of(0, wrong)])
    desk.lease_guard.check_commit("g", [commit_of(0, token)])
    desk.lease_guard.check_commit("g", [commit_of(1, 0)])


def commit_of(queue: int, token: int) -> pb.GroupOffset:
    return pb.GroupOffset(topic=TOPIC, queue=queue, offset=1, lease=token)
