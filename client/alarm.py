"""A sleep by the clock that somebody may end early."""

from __future__ import annotations

import asyncio

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
