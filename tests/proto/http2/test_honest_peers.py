"""Honest peers are never cut off, however long they go on; the long run is `make campaign`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from .honest import HABITS, call_and_ping, cancel_at_once
from .stage import Stage, staged

TIMES = 5_000

#: More than a budget of 1,500 that nothing comes back to would bear.
_CALLS = 3_000


@pytest.mark.campaign
@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS.keys())
async def test_an_honest_peer_is_never_cut_off(
    habit: Callable[[Stage, int], Awaitable[None]],
) -> None:
    async with staged() as stage:
        await habit(stage, TIMES)


async def test_a_client_that_cancels_its_polls_at_once_is_never_cut_off() -> None:
    async with staged() as stage:
        await cancel_at_once(stage, _CALLS)


async def test_a_client_that_opens_both_windows_after_each_answer_is_never_cut_off() -> None:
    async with staged() as stage:
        await call_and_ping(stage, _CALLS, of_streams=True)
