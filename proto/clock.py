"""The clock: built once by the program, and passed to everything that needs the time.

A clock has two readings, in milliseconds. `now_ms` is for waits: it never goes back and continues while the machine
sleeps. `unix_ms` is the wall clock, for times in messages and files; it may be set at any moment. A wait until a Unix
time ends at `now_ms() + (due − unix_ms())`, and is checked again when `on_step` reports a step between the two.

`SystemClock` reads the clocks of the machine. `VirtualClock` moves only on request. It stops at each instant until
which a caller sleeps, in order. It leaves the instant when its work has ended: everything that the event loop can run,
and callers that wait for a thread or a socket between `hold` and `release`. Hooks in `before_leaving` wait for work
whose end the clock cannot see.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final, Protocol

from .errors import InvalidArgument

logger = logging.getLogger(__name__)

#: How often a clock with sleepers checks whether the wall clock was set or the machine slept.
LOOK_MS: Final = 1_000
#: Smaller steps of the wall clock are ignored: work that is due by it is at most this late.
STEP_MIN_MS: Final = 2
#: Steps of the wall clock from this size on are logged.
_LOGGED_STEP_MS: Final = 1_000
#: Ten years: the longest step of a virtual clock.
STEP_MAX_MS: Final = 10 * 365 * 86_400_000
#: Turns of the event loop for the work of one instant.
TURNS_MAX: Final = 100_000
#: Turns if the loop does not show whether it has something to run.
_TURNS_BLIND: Final = 50
#: Turns before and after a move, in which sockets and threads are served as well.
_TURNS_AT_REST: Final = 20
#: A clock that is held this long, in real time, is logged, again after each further interval.
_HELD_WARNING_S: Final = 10.0
#: Fewer cancelled sleepers than this are not worth a search.
_CANCELLED_MIN: Final = 64


class Readings(Protocol):
    """The two readings of a clock."""

    def now_ms(self) -> int:
        """Return the present instant, for waits. It never goes back, and includes time in which the machine slept."""
        ...

    def unix_ms(self) -> int:
        """Return the wall clock's Unix milliseconds, for times in messages and files: it may go back."""
        ...


class Clock(Readings, Protocol):
    """Reads the time and waits for it."""

    #: Called after `unix_ms` has moved against `now_ms`, on the event loop's thread.
    on_step: list[Callable[[], None]]

    async def sleep_until(self, instant_ms: int) -> None:
        """Return once `now_ms()` has reached INSTANT_MS."""
        ...

    def hold(self) -> None:
        """Keep a virtual clock at the present instant until `release`: its work continues. Holds add up.

        Call it on the event loop's thread. While it holds the clock, the caller must not wait for the clock to move.
        The system clock ignores holds.
        """
        ...

    def release(self) -> None:
        """Undo one `hold`."""
        ...


@contextmanager
def held(clock: Clock) -> Iterator[None]:
    """Hold CLOCK for the duration of the block."""
    clock.hold()
    try:
        yield
    finally:
        clock.release()


def ahead_ms(clock: Readings) -> int:
    """Return how far the wall clock is ahead of instants for waits: an instant plus this is Unix time."""
    return clock.unix_ms() - clock.now_ms()


def past_instant(clock: Readings, unix_ms: int) -> int:
    """Return the instant, for waits, that corresponds to the past time UNIX_MS.

    A time in the future was noted before the wall clock was set back: it is treated as the present.
    """
    return clock.now_ms() - max(0, clock.unix_ms() - unix_ms)


#: Includes time in which the machine sleeps. Outside Linux the monotonic clock does so itself.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: Makes instants start as Unix milliseconds, equal for all clocks of the process.
_ORIGIN_NS: Final = time.time_ns() - time.clock_gettime_ns(_STEADY)


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self.on_step: list[Callable[[], None]] = []
        self._ahead_ms = ahead_ms(self)
        self._looked_ms = self.now_ms()
        #: Long sleepers, by their loop.
        self._sleepers: dict[asyncio.AbstractEventLoop, _Sleepers] = {}

    def now_ms(self) -> int:
        return (time.clock_gettime_ns(_STEADY) + _ORIGIN_NS) // 1_000_000

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, instant_ms: int) -> None:
        # In a loop: a sleep may end early, and one that started before the machine slept ends too late.
        while (wait_ms := instant_ms - self.now_ms()) > 0:
            if wait_ms <= LOOK_MS:
                await asyncio.sleep(wait_ms / 1000)
            else:
                await self._sleep_long(wait_ms)
            if self.now_ms() - self._looked_ms >= LOOK_MS:
                self._look()

    async def _sleep_long(self, wait_ms: int) -> None:
        """Sleep for WAIT_MS, or until the machine has slept meanwhile."""
        loop = asyncio.get_running_loop()
        sleepers = self._sleepers.get(loop)
        if sleepers is None:
            sleepers = self._sleepers[loop] = _Sleepers(loop, self._look, self.now_ms)
        woken: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(wait_ms / 1000, _wake, woken)
        sleepers.add(woken)
        try:
            await woken
        finally:
            timer.cancel()
            if not sleepers.discard(woken):
                del self._sleepers[loop]

    def _look(self) -> None:
        """Call `on_step` if the wall clock was set since the last check."""
        now_ms, unix_ms = self.now_ms(), self.unix_ms()
        if self.now_ms() - now_ms >= STEP_MIN_MS:
            return  # The process was interrupted between the readings, so they cannot be compared.
        self._looked_ms = now_ms
        by_ms = unix_ms - now_ms - self._ahead_ms
        if abs(by_ms) < STEP_MIN_MS:
            return
        self._ahead_ms += by_ms
        if abs(by_ms) >= _LOGGED_STEP_MS:
            logger.warning("wall clock was set by_ms=%+d", by_ms)
        for told in list(self.on_step):
            told()

    def hold(self) -> None:
        """Time passes anyway."""

    def release(self) -> None:
        """Time passes anyway."""


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class _Sleepers:
    """Callers that sleep on LOOP for longer than `LOOK_MS`. Checks that often whether the machine has slept."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, look: Callable[[], None], now_ms: Callable[[], int]
    ) -> None:
        self._loop = loop
        self._look_at_wall = look
        self._now_ms = now_ms
        self._all: set[asyncio.Future[None]] = set()
        self._behind_ms = self._behind()
        self._next = loop.call_later(LOOK_MS / 1000, self._look)

    def add(self, woken: asyncio.Future[None]) -> None:
        self._all.add(woken)

    def discard(self, woken: asyncio.Future[None]) -> bool:
        """Remove WOKEN; return whether other sleepers are left. Without any, this object is of no use any more."""
        self._all.discard(woken)
        if not self._all:
            self._next.cancel()
        return bool(self._all)

    def _behind(self) -> float:
        """Return by how many ms the loop's clock, which stops while the machine sleeps, is late."""
        return self._now_ms() - self._loop.time() * 1000

    def _look(self) -> None:
        self._next = self._loop.call_later(LOOK_MS / 1000, self._look)
        behind_ms = self._behind()
        if behind_ms - self._behind_ms >= LOOK_MS:
            self._behind_ms = behind_ms
            for woken in self._all:
                _wake(woken)
        self._look_at_wall()


class VirtualClock:
    """A clock that moves only by `advance`; `step` sets its wall clock alone. Not thread-safe: its loop owns it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._ahead_ms = 0
        self.on_step: list[Callable[[], None]] = []
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        #: Number of cancelled sleepers that are still listed.
        self._cancelled = 0
        self._moving = asyncio.Lock()
        self._holds = 0
        self._released: asyncio.Future[None] | None = None
        #: Called before a move with the reading of the wall clock after it.
        self.before_move: list[Callable[[int], None]] = []
        #: Called after a move.
        self.after_move: list[Callable[[], None]] = []
        #: Awaited once the work of an instant has ended. They return when nothing keeps the clock at the instant, and
        #: whether that took time, in which more work may have come.
        self.before_leaving: list[Callable[[], Awaitable[bool]]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def unix_ms(self) -> int:
        return self._now_ms + self._ahead_ms

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
        """Count one more cancelled sleeper; remove them all once they are half of the list."""
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

    def step(self, by_ms: int) -> None:
        """Set the wall clock forward by BY_MS, or back if negative. No time passes: no sleeper wakes up."""
        self._ahead_ms += by_ms
        for told in list(self.on_step):
            told()

    async def suspend(self, for_ms: int) -> None:
        """Let the machine sleep for FOR_MS: everything that falls due meanwhile happens at the end."""
        _check_step(for_ms)
        async with self._moving:
            await self._rest()
            self._now_ms += for_ms
            self._wake(self._now_ms)
            await self._rest()

    def start_at(self, instant_ms: int) -> None:
        """Start at INSTANT_MS; do nothing if that has passed. This is no move: nothing happens in between.

        Sleepers that should have woken up by then wake at once.
        """
        if instant_ms > self._now_ms:
            self._now_ms = instant_ms
            self._wake(instant_ms)

    async def advance(self, by_ms: int) -> None:
        """Move the clock by BY_MS, and stop at each instant until which a caller sleeps, in order.

        Concurrent moves follow each other. Raises InvalidArgument for a negative step, and for one longer than
        STEP_MAX_MS. If the caller is cancelled, the clock stays at its current instant.
        """
        _check_step(by_ms)
        async with self._moving:
            await self._rest()
            target_ms = self._now_ms + by_ms
            for hook in self.before_move:
                hook(target_ms + self._ahead_ms)
            try:
                await self._move_to(target_ms)
            finally:
                for over in self.after_move:
                    over()

    async def _move_to(self, target_ms: int) -> None:
        while True:
            if self._now_ms < target_ms:
                await self._look()
            instant_ms = self._next_instant()
            if instant_ms is None or instant_ms > target_ms:
                break
            self._now_ms = instant_ms
            self._wake(instant_ms)
            await self._settle()
        self._now_ms = target_ms
        await self._rest()

    async def _look(self) -> None:
        """Wait for the hooks of `before_leaving`, and for the work that they bring."""
        while self.before_leaving and any([await hook() for hook in self.before_leaving]):
            await self._settle()

    def _next_instant(self) -> int | None:
        """Return the earliest instant until which a caller sleeps; None: there is no sleeper."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
            self._cancelled = max(0, self._cancelled - 1)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake(self, instant_ms: int) -> None:
        """Wake all that sleep until INSTANT_MS, in the order in which they fell asleep."""
        sleepers = self._sleepers
        while sleepers and sleepers[0][0] <= instant_ms:
            _wake(heapq.heappop(sleepers)[2])

    async def _rest(self) -> None:
        """Let the work of the present instant end, including what threads and sockets have already brought."""
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
                logger.warning("clock is held now_ms=%d holds=%d", self._now_ms, self._holds)
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


#: How many calls of `_run_dry` are active per loop: each has one turn scheduled, which is no work of its own.
_running_dry: dict[asyncio.AbstractEventLoop, int] = {}


async def _run_dry(now_ms: int) -> None:
    """Let the loop turn until nothing is left to run except calls of this function."""
    loop = asyncio.get_running_loop()
    # asyncio has no public API for this. A loop without the list gets a fixed number of turns.
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
        logger.warning("work of an instant does not end now_ms=%d turns=%d", now_ms, turns)
