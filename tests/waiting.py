"""Waits for what other tasks, threads or processes do. A busy machine gets its time: 60 s."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

WAIT_S = 60.0


async def until(condition: Callable[[], object]) -> None:
    """Return once CONDITION holds; raise TimeoutError after WAIT_S."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 (a condition of other tasks, not an event)
            await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], object]) -> None:
    """Block until CONDITION holds; raise TimeoutError after WAIT_S."""
    end, pause = time.monotonic() + WAIT_S, threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the condition did not hold within {WAIT_S:g} s")
        pause.wait(0.05)
