"""How long a call takes, and how much of that its thread works: the rest it waits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple


class Lap(NamedTuple):
    """One call: seconds in all, seconds of CPU time of its thread, and what it raised."""

    wall_s: float
    cpu_s: float
    error: Exception | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


def lap(call: Callable[[], object]) -> Lap:
    """Return how long CALL takes; an error that it raises is part of it."""
    wall, cpu, error = time.perf_counter(), time.thread_time(), None
    try:
        call()
    except Exception as raised:  # Of whatever kind: who measures decides what it means.
        error = raised
    return Lap(time.perf_counter() - wall, time.thread_time() - cpu, error)


async def async_lap(call: Callable[[], Awaitable[object]]) -> Lap:
    """Return how long CALL takes, with nothing else on the loop."""
    wall, cpu, error = time.perf_counter(), time.thread_time(), None
    try:
        await call()
    except Exception as raised:  # As in `lap`.
        error = raised
    return Lap(time.perf_counter() - wall, time.thread_time() - cpu, error)
