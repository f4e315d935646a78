"""Background tasks of a client on its event loop, and waiting by the clock of the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ..proto.clock import Clock
from ..proto.facts import Facts

logger = logging.getLogger(__name__)


class TaskGroup:
    """Owns tasks. Not thread-safe: its event loop owns it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run WORK in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            facts = Facts(task=task.get_name(), reason=repr(error))
            logger.error("background task failed %s", facts, exc_info=error)

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        while running := list(self._running):
            for task in running:
                task.cancel()
            await asyncio.wait(running)


class Alarm:
    """Wakes one waiting task at a time, at a given time or when `ring` is called. Its event loop owns it."""

    def __init__(self, clock: Clock, tasks: TaskGroup) -> None:
        self._clock = clock
        self._tasks = tasks
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the present wait, or else the next one."""
        self._rung.set()

    async def wait_until(self, instant_ms: int) -> None:
        """Return at INSTANT_MS, or when `ring` is called."""
        if not self._rung.is_set():
            sleeping = self._tasks.spawn(self._sleep(instant_ms))
            try:
                await self._rung.wait()
            finally:
                sleeping.cancel()
        self._rung.clear()

    async def wait(self) -> None:
        """Return when `ring` is called."""
        await self._rung.wait()
        self._rung.clear()

    async def _sleep(self, instant_ms: int) -> None:
        await self._clock.sleep_until(instant_ms)
        self._rung.set()


async def finished_within(
    work: Coroutine[Any, Any, object], timeout_ms: int, clock: Clock, tasks: TaskGroup
) -> bool:
    """Run WORK for up to TIMEOUT_MS by CLOCK, then cancel it; return whether it ended by itself. Raises its error."""
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
