"""Time as an argument: the one clock that a composition root builds and hands down.

`SystemClock` reads the machine's; `VirtualClock` stands still until it is moved, so that a test, or a broker that was
started with it, drives hours in milliseconds. Instants are Unix milliseconds. No other module may call `time.*` for
the time of day.

What a move of the virtual clock promises: it stops at each instant that somebody sleeps for, in order, and leaves it
only when the work of that instant has ended. Work is whatever the event loop can run without waiting for the world
(callbacks, tasks, what these schedule in turn), and whatever *holds* the clock: who waits for a thread or a socket in
between, and whose end belongs to this instant, calls `hold` before and `release` after. Real time passes meanwhile.

Bounds: a step is `STEP_MAX_MS` at most; the loop gets `TURNS_MAX` turns for the work of one instant that nobody holds,
then the clock says so in the log and moves on. Sleepers cost O(log n), those that were cancelled are dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final, Protocol

from .errors import InvalidArgument

logger = logging.getLogger(__name__)

#: Ten years: the longest step of a virtual clock.
STEP_MAX_MS: Final = 10 * 365 * 86_400_000
#: Turns of the event loop for the work of one instant.
TURNS_MAX: Final = 100_000
#: Turns where the loop does not tell whether it has something to run.
_TURNS_BLIND: Final = 50
#: Turns before and after a move, in which sockets and threads are heard as well.
_TURNS_AT_REST: Final = 20
#: A clock that is held for so long, in real time, says so in the log, again and again.
_HELD_WARNING_S: Final = 10.0
#: Fewer cancelled sleepers than this are not worth a search.
_CANCELLED_MIN: Final = 64


class Clock(Protocol):
    """Tells the time and waits for it."""

    def now_ms(self) -> int:
        """Return the present instant."""
        ...

    async def sleep_until(self, instant_ms: int) -> None:
        """Return once `now_ms()` has reached INSTANT_MS."""
        ...

    def hold(self) -> None:
        """Keep a virtual clock at the present instant until `release`: its work goes on. Holds add up.

        The event loop's thread only. Who holds must not wait for the clock to move. A clock that moves by itself does
        nothing here.
        """
        ...

    def release(self) -> None:
        """Undo one `hold`."""
        ...


@contextmanager
def held(clock: Clock) -> Iterator[None]:
    """Hold CLOCK for the time of the block."""
    clock.hold()
    try:
        yield
    finally:
        clock.release()


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

    def hold(self) -> None:
        """Time passes anyway."""

    def release(self) -> None:
        """Time passes anyway."""


class VirtualClock:
    """A clock that only `advance` moves. Not thread-safe: its event loop owns it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        #: How many of the sleepers were cancelled and are still listed.
        self._cancelled = 0
        self._moving = asyncio.Lock()
        self._holds = 0
        self._released: asyncio.Future[None] | None = None
        #: Told the instant that a move will end at, before it begins.
        self.before_move: list[Callable[[int], None]] = []

    def now_ms(self) -> int:
        return self._now_ms

    async def sleep_until(self, instant_ms: int) -> None:
        if instant_ms <= self._now_ms:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (instant_ms, next(self._order), woken))
        try:
            await woken
        except asyncio.CancelledError:
            self._drop_cancelled()
            raise

    def _drop_cancelled(self) -> None:
        """Count one more cancelled sleeper; forget them once they are half of the list."""
        self._cancelled += 1
        if self._cancelled >= max(_CANCELLED_MIN, len(self._sleepers) // 2):
            self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[2].done()]
            heapq.heapify(self._sleepers)
            self._cancelled = 0

    def hold(self) -> None:
        self._holds += 1

    def release(self) -> None:
        assert self._holds > 0, "a release follows a hold"
        self._holds -= 1
        if not self._holds and self._released is not None and not self._released.done():
            self._released.set_result(None)

    def start_at(self, instant_ms: int) -> None:
        """Begin at INSTANT_MS; nothing changes if that has passed. No move: what lies between does not happen.

        Who sleeps already and should have been woken wakes at once.
        """
        if instant_ms > self._now_ms:
            self._now_ms = instant_ms
            self._wake(instant_ms)

    async def advance(self, by_ms: int) -> None:
        """Move the clock by BY_MS, stopping at each instant that somebody sleeps for, in order.

        Moves that are asked for at once follow each other. Raises InvalidArgument for a negative step, and for one
        longer than STEP_MAX_MS. A caller that is cancelled leaves the clock at the instant where it was.
        """
        _check_step(by_ms)
        async with self._moving:
            await self._rest()
            target_ms = self._now_ms + by_ms
            for hook in self.before_move:
                hook(target_ms)
            while (instant_ms := self._next_instant()) is not None and instant_ms <= target_ms:
                self._now_ms = instant_ms
                self._wake(instant_ms)
                await self._settle()
            self._now_ms = target_ms
            await self._rest()

    def _next_instant(self) -> int | None:
        """Return the earliest instant that somebody sleeps for; None: nobody does."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
            self._cancelled = max(0, self._cancelled - 1)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake(self, instant_ms: int) -> None:
        """Wake all who sleep until INSTANT_MS, in the order in which they fell asleep."""
        sleepers = self._sleepers
        while sleepers and sleepers[0][0] <= instant_ms:
            woken = heapq.heappop(sleepers)[2]
            if not woken.done():
                woken.set_result(None)

    async def _rest(self) -> None:
        """Let the work of the present instant end, and hear what threads and sockets have brought already."""
        for _ in range(_TURNS_AT_REST):
            await asyncio.sleep(0)
        await self._settle()

    async def _settle(self) -> None:
        """Let the work of the present instant end: what the loop can run, and what holds the clock."""
        await _run_dry(self._now_ms)
        while self._holds:
            self._released = asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait((self._released,), timeout=_HELD_WARNING_S)
            if not done:
                logger.warning("the clock is held now_ms=%d holds=%d", self._now_ms, self._holds)
            await _run_dry(self._now_ms)
        self._released = None


def _check_step(by_ms: int) -> None:
    if not 0 <= by_ms <= STEP_MAX_MS:
        rule = "time does not go back" if by_ms < 0 else "move in smaller steps"
        raise InvalidArgument(
            f"by_ms is {by_ms}: the clock moves by 0 to {STEP_MAX_MS} ms (ten years) at a time: {rule}",
            field="by_ms",
            limit=STEP_MAX_MS,
            value=by_ms,
        )


#: How many runs to dryness are under way on a loop: each has one turn scheduled, which is nobody's work.
_running_dry: dict[asyncio.AbstractEventLoop, int] = {}


async def _run_dry(now_ms: int) -> None:
    """Let the loop turn until nothing is left to run but the calls of this function."""
    loop = asyncio.get_running_loop()
    # asyncio does not tell in public; a loop without the list gets a fixed number of turns.
    ready = getattr(loop, "_ready", None)
    turns = _TURNS_BLIND if ready is None else TURNS_MAX
    _running_dry[loop] = _running_dry.get(loop, 0) + 1
    try:
        for _ in range(turns):
            await asyncio.sleep(0)
            if ready is not None and len(ready) < _running_dry[loop]:
                return
    finally:
        _running_dry[loop] -= 1
        if not _running_dry[loop]:
            del _running_dry[loop]
    if ready is not None:
        logger.warning("the work of an instant does not end now_ms=%d turns=%d", now_ms, turns)
