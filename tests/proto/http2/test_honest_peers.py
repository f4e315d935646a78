"""Honest peers are never cut off, however long they go on; the long run is `make campaign`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from .honest import HABITS
from .stage import Stage, staged

#: More than a budget that nothing comes back to would bear.
TIMES = 5_000


@pytest.mark.campaign
@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS.keys())
async def test_an_honest_peer_is_never_cut_off(
    habit: Callable[[Stage, int], Awaitable[None]],
) -> None:
    async with staged() as stage:
        await habit(stage, TIMES)
