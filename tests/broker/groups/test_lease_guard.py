"""The fence: who fetches keeps its queue, and an old token is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pocketmq.proto.errors import LeaseLost

from .lease_desk import LEASE_MS, Desk


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
