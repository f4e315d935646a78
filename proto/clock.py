"""Time as an argument: the one clock that a composition root builds and hands down.

`SystemClock` reads the machine's; `VirtualClock` stands still until it is moved, so that a test drives hours in
milliseconds. Instants are Unix milliseconds. No other module may call `time.*` for the time of day.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from itertools import count
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits for it."""

    def now_ms(self) -> int:
        """Return the present instant."""
        ...

    async def sleep_until(self, instant_ms: int) -> None:
        """Return once `now_ms()` has reached INSTANT_MS."""
        ...


class SystemClock:
    """The machine's clock. It never steps back: a corrected wall clock stands still until it has caught up."""

    def __init__(self) -> None:
        self._latest_ms = 0

    def now_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now > self._latest_ms:
            self._latest_ms = now
        return self._latest_ms

    async def sleep_until(self, instant_ms: int) -> None:
        # Again and again: a sleep may end early, and the wall clock may be set back meanwhile.
        while (wait_ms := instant_ms - self.now_ms()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait_ms / 1000)


class VirtualClock:
    """A clock that only `advance` moves. Not thread-safe: its event loop owns it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        return self._now_ms

    async def sleep_until(self, instant_ms: int) -> None:
        if instant_ms <= self._now_ms:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (instant_ms, next(self._order), woken))
        await woken

    async def advance(self, by_ms: int) -> None:
        """Move the clock by BY_MS, stopping at each instant that somebody sleeps for, in order."""
        target = self._now_ms + by_ms
        while True:
            await _settle()
            if not self._sleepers or self._sleepers[0][0] > target:
                break
            instant_ms, _, woken = heapq.heappop(self._sleepers)
            self._now_ms = max(self._now_ms, instant_ms)
            if not woken.done():
                woken.set_result(None)
        self._now_ms = target
        await _settle()


async def _settle() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)
