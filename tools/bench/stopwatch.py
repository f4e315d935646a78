"""How long a call takes, and how much of that its thread works: the rest it waits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple


class Lap(NamedTuple):
    """One call: seconds in all, and seconds of CPU time of its thread."""

    wall_s: float
    cpu_s: float
    failed: bool


def lap(call: Callable[[], object]) -> Lap:
    """Return how long CALL takes; an error that it raises is part of it."""
    wall, cpu, failed = time.perf_counter(), time.thread_time(), False
    try:
        call()
    except (
        Exception
    ):  # What the function does with the message is its own business; how long it takes is ours.
        failed = True
    return Lap(time.perf_counter() - wall, time.thread_time() - cpu, failed)


async def async_lap(call: Callable[[], Awaitable[object]]) -> Lap:
    """Return how long CALL takes, with nothing else on the loop."""
    wall, cpu, failed = time.perf_counter(), time.thread_time(), False
    try:
        await call()
    except Exception:  # As in `lap`.
        failed = True
    return Lap(time.perf_counter() - wall, time.thread_time() - cpu, failed)
