"""A sleep by the clock that somebody may end early."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..proto.clock import Clock
from .tasks import Tasks


class Alarm:
    """Rings at an instant, or when it is told to. One waits at a time; its event loop owns it."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._clock = clock
        self._tasks = tasks
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the wait that is under way, or else the next one."""
        self._rung.set()

    async def wait_until(self, instant_ms: int) -> None:
        """Return at INSTANT_MS, or once it is rung."""
        if not self._rung.is_set():
            sleeping = self._tasks.spawn(self._sleep(instant_ms))
            try:
                await self._rung.wait()
            finally:
                sleeping.cancel()
        self._rung.clear()

    async def wait(self) -> None:
        """Return once it is rung."""
        await self._rung.wait()
        self._rung.clear()

    async def _sleep(self, instant_ms: int) -> None:
        await self._clock.sleep_until(instant_ms)
        self._rung.set()


async def finished_within(
    work: Coroutine[Any, Any, object], timeout_ms: int, clock: Clock, tasks: Tasks
) -> bool:
    """Run WORK for TIMEOUT_MS by CLOCK at most; return whether it ended by itself. Raises what it raised."""
    working = tasks.spawn(work)
    sleeping = tasks.spawn(clock.sleep_until(clock.now_ms() + timeout_ms))
    try:
        await asyncio.wait((working, sleeping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        sleeping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
