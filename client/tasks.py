"""The background tasks of one client: each has this owner, which ends them all and lets none fail unheard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ..proto.facts import Facts

logger = logging.getLogger(__name__)


class Tasks:
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
        """Cancel what runs, and wait until it has ended."""
        while running := list(self._running):
            for task in running:
                task.cancel()
            await asyncio.wait(running)
