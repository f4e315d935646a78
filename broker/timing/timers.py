"""The broker's timers: one task sleeps until the next deadline and calls what is due.

All waits of a broker use it: long polls, flush deadlines, heartbeats, periodic work. Deadlines are times of
`Clock.now_ms`, a monotonic clock.

Timers fire in order of their deadlines, those with equal deadlines in the order they were added. This holds even if the
loop is late and several deadlines have passed. A callback may cancel later timers or add new ones, which fire in their
place. So a virtual clock and a late loop see the same sequence.

At most `_BATCH` callbacks run per turn of the loop, and none that became due during that turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ...proto.clock import Clock
from .timing_wheel import Timer, TimingWheel

logger = logging.getLogger(__name__)
#: Limit of callbacks per turn of the event loop.
_BATCH: Final = 1_000
#: The wake-up time while callbacks run: no deadline is before it.
_NEVER_EARLIER: Final = -(1 << 63)


class _Periodic(Timer):
    """A timer that is added again after it has fired; period 0: it is cancelled."""

    __slots__ = ("period_ms",)

    def __init__(self, deadline_ms: int, callback: Callable[[], None], period_ms: int) -> None:
        super().__init__(deadline_ms, callback)
        self.period_ms = period_ms


class Timers:
    """Timers on CLOCK. Call `start` on a running loop; `stop` drops all timers. The event loop owns it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = TimingWheel(clock.now_ms())
        self._sleeper: asyncio.Task[None] | None = None
        self._wakes_ms: int | None = None
        #: Set if a new sleep begins at the end of this turn of the event loop.
        self._resleep: asyncio.Handle | None = None
        #: Timers that are due now and have not run yet.
        self._firing: set[Timer] = set()
        self._running = False

    def __len__(self) -> int:
        return len(self._wheel) + len(self._firing)

    def now_ms(self) -> int:
        """Return the present time of the clock, in ms."""
        return self._clock.now_ms()

    def unix_ms(self) -> int:
        """Return the wall-clock time, in Unix ms."""
        return self._clock.unix_ms()

    def start(self) -> None:
        """Start to fire, including timers that were added before."""
        self._running = True
        self._sleep()

    async def stop(self) -> None:
        """Stop firing."""
        self._running = False
        self._wakes_ms = None
        self._firing.clear()
        if self._resleep is not None:
            self._resleep.cancel()
            self._resleep = None
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            sleeper.cancel()
            await asyncio.wait((sleeper,))

    def at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Call CALLBACK once, at DEADLINE_MS."""
        timer = self._wheel.add(deadline_ms, callback)
        if self._wakes_ms is None or deadline_ms < self._wakes_ms:
            self._wake_earlier(deadline_ms)
        return timer

    def after(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call CALLBACK once, DELAY_MS from now."""
        return self.at(self._clock.now_ms() + delay_ms, callback)

    def every(self, period_ms: int, callback: Callable[[], None]) -> Timer:
        """Call CALLBACK every PERIOD_MS (at least 1) until the timer is cancelled.

        The times are start + n · PERIOD_MS, whatever the delay and duration of calls. Times that have passed when a
        call ends are skipped, so there are no bursts.
        """
        assert period_ms > 0, "the period must be positive"
        timer = _Periodic(0, callback, period_ms)
        self.reschedule(timer, self._clock.now_ms() + period_ms)
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Remove TIMER; return whether it was still to fire. A timer that is due and has not run yet does not run."""
        was_periodic = False
        if isinstance(timer, _Periodic):
            was_periodic, timer.period_ms = timer.period_ms > 0, 0
        if self._wheel.cancel(timer):
            return True
        if timer in self._firing:
            self._firing.remove(timer)
            return True
        return was_periodic

    def reschedule(self, timer: Timer, deadline_ms: int) -> None:
        """Let TIMER fire at DEADLINE_MS instead, or again; a periodic one continues from there."""
        self._firing.discard(timer)
        self._wheel.reschedule(timer, deadline_ms)
        if self._wakes_ms is None or deadline_ms < self._wakes_ms:
            self._wake_earlier(deadline_ms)

    def _wake_earlier(self, deadline_ms: int) -> None:
        """Start a new sleep at the end of this turn, once for all new timers: DEADLINE_MS is before the wake-up."""
        if not self._running:
            return
        self._wakes_ms = deadline_ms
        if self._resleep is None:
            self._resleep = asyncio.get_running_loop().call_soon(self._sleep)

    def _sleep(self) -> None:
        self._resleep = None
        if self._wakes_ms == _NEVER_EARLIER:
            return  # Callbacks are running: the caller computes the next wake-up afterwards.
        if self._sleeper is not None:
            self._sleeper.cancel()
        self._wakes_ms = self._wheel.next_expiry_ms()
        self._sleeper = None
        if self._wakes_ms is not None:
            self._sleeper = asyncio.get_running_loop().create_task(self._turn(self._wakes_ms))

    async def _turn(self, wakes_ms: int) -> None:
        """Sleep, fire, and sleep again until there are no timers."""
        while True:
            await self._clock.sleep_until(wakes_ms)
            # New timers need no wake-up while callbacks run: the next expiry is computed below.
            self._wakes_ms = _NEVER_EARLIER
            await self._fire()
            next_ms = self._wheel.next_expiry_ms()
            self._wakes_ms = next_ms
            if next_ms is None or not self._running:
                self._sleeper = None
                return
            wakes_ms = next_ms

    async def _fire(self) -> None:
        """Run due timers, in order of their times.

        Timers that became due meanwhile run after a turn of the event loop: a timer that is always late again must not
        block the loop.
        """
        while (next_ms := self._wheel.next_expiry_ms()) is not None:
            now_ms = self._clock.now_ms()
            if next_ms > now_ms:
                return
            await self._fire_until(now_ms)
            await asyncio.sleep(0)

    async def _fire_until(self, until_ms: int) -> None:
        wheel, firing = self._wheel, self._firing
        room = _BATCH
        while (next_ms := wheel.next_expiry_ms()) is not None and next_ms <= until_ms:
            due = wheel.advance(next_ms)
            firing.update(due)
            for timer in due:
                if timer not in firing:
                    continue  # An earlier callback cancelled it.
                firing.remove(timer)
                self._run(timer)
                room -= 1
                if not room:
                    room = _BATCH
                    await asyncio.sleep(0)

    def _run(self, timer: Timer) -> None:
        try:
            timer.callback()
        except Exception:
            # The outermost call of this work: a bug in one callback must not stop all timers.
            logger.exception("timer callback failed")
        if isinstance(timer, _Periodic) and timer.period_ms and not timer.active:
            behind_ms = self._clock.now_ms() - timer.deadline_ms
            periods = max(0, behind_ms) // timer.period_ms + 1
            self._wheel.reschedule(timer, timer.deadline_ms + periods * timer.period_ms)


class TimerClock:
    """CLOCK with its sleeps on TIMERS, for coroutines. After the timers stop, sleeps do not end."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self.on_step = clock.on_step

    def now_ms(self) -> int:
        """Return the present time of the clock, in ms."""
        return self._clock.now_ms()

    def unix_ms(self) -> int:
        """Return the wall-clock time, in Unix ms."""
        return self._clock.unix_ms()

    async def sleep_until(self, instant_ms: int) -> None:
        """Return once `now_ms()` has reached INSTANT_MS. A cancelled sleep leaves no timer."""
        if instant_ms <= self._clock.now_ms():
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self._timers.at(instant_ms, wake)
        try:
            await woken
        finally:
            self._timers.cancel(timer)

    def hold(self) -> None:
        """Stop a virtual clock at the present time until `release`."""
        self._clock.hold()

    def release(self) -> None:
        """Undo one `hold`."""
        self._clock.release()
