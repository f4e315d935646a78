"""Messages fetched ahead of the application: runs in the order of their arrival, bounded by bytes.

Readers wait while it is full; a run that makes it overflow is still taken in, so one run of each queue may stand above
the bound. Not thread-safe: the consumer's event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ...proto.errors import PocketMQError
from ..queue import Queue
from ..received_message import FetchedRun
from .offsets import Batch


class Prefetch:
    """Holds runs up to LIMIT_BYTES."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._runs: deque[tuple[Queue, FetchedRun, int, int]] = deque()
        self._errors: deque[PocketMQError] = deque()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def room(self) -> None:
        """Return once another run may be put in."""
        await self._room.wait()

    def put(self, queue: Queue, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Take in the messages of RUN from index BEGIN; NEXT_OFFSET is behind them."""
        self._runs.append((queue, run, begin, next_offset))
        self._held_bytes += len(run.data)
        if self._held_bytes >= self._limit_bytes:
            self._room.clear()
        self._ready.set()

    def started(self, queue: Queue, offset: int) -> None:
        """Nothing is here yet."""

    def skip(self, queue: Queue, next_offset: int) -> None:
        """Nothing is filtered."""

    def fail(self, error: PocketMQError) -> None:
        """Have the application meet ERROR, once, after the runs that are here."""
        if not self._errors:
            self._errors.append(error)
        self._ready.set()

    async def take(self, timeout_ms: int | None) -> Batch | None:
        """Return the oldest run's messages, or None if none comes within TIMEOUT_MS (None: wait on)."""
        if not self._ready.is_set():
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self._ready.wait()
            except TimeoutError:
                return None
        try:
            if not self._runs:
                raise self._errors.popleft()
            queue, run, begin, next_offset = self._runs.popleft()
            self._held_bytes -= len(run.data)
            return Batch(queue, run.messages(begin), next_offset)
        finally:
            self._settle()

    def _settle(self) -> None:
        if not self._runs and not self._errors:
            self._ready.clear()
        if self._held_bytes < self._limit_bytes:
            self._room.set()
