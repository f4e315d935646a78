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
#: Callbacks in one turn of the loop.
_BATCH: Final = 1_000
#: What the timers wake at while callbacks run: no deadline is before it.
_NEVER_EARLIER: Final = -(1 << 63)


class _Periodic(Timer):
    """A timer that is added again when it has fired; a period of 0: no more."""

    __slots__ = ("period_ms",)

    def __init__(self, deadline_ms: int, callback: Callable[[], None], period_ms: int) -> None:
        super().__init__(deadline_ms, callback)
        self.period_ms = period_ms


class Timers:
    """Timers on CLOCK. `start` on a running loop, `stop` drops what is left. The loop owns it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = TimingWheel(clock.now_ms())
        self._sleeper: asyncio.Task[None] | None = None
        self._wakes_ms: int | None = None
        #: Is a new sleep asked for at the end of this turn of the loop?
        self._resleep: asyncio.Handle | None = None
        #: What is due at this instant and has not run yet.
        self._firing: set[Timer] = set()
        self._running = False

    def __len__(self) -> int:
        return len(self._wheel) + len(self._firing)

    def now_ms(self) -> int:
        """Return the present instant of the clock that turns them."""
        return self._clock.now_ms()

    def unix_ms(self) -> int:
        """Return what the wall clock shows."""
        return self._clock.unix_ms()

    def start(self) -> None:
        """Begin to fire; timers that were added before count as well."""
        self._running = True
        self._sleep()

    async def stop(self) -> None:
        """Fire nothing any more."""
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
        """Have CALLBACK called at DEADLINE_MS, once."""
        timer = self._wheel.add(deadline_ms, callback)
        if self._wakes_ms is None or deadline_ms < self._wakes_ms:
            self._wake_earlier(deadline_ms)
        return timer

    def after(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Have CALLBACK called DELAY_MS from now, once."""
        return self.at(self._clock.now_ms() + delay_ms, callback)

    def every(self, period_ms: int, callback: Callable[[], None]) -> Timer:
        """Have CALLBACK called every PERIOD_MS (at least 1); cancel the timer to end it.

        The instants are start + n · PERIOD_MS, however late a call is and however long it takes. What has passed when
        a call ends is left out: no bursts.
        """
        assert period_ms > 0, "a period takes time"
        timer = _Periodic(0, callback, period_ms)
        self.reschedule(timer, self._clock.now_ms() + period_ms)
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Take TIMER out; return whether it was still to fire. One that is due and has not run yet does not run."""
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
        """Have TIMER fire at DEADLINE_MS instead, or again; a periodic one continues from there."""
        self._firing.discard(timer)
        self._wheel.reschedule(timer, deadline_ms)
        if self._wakes_ms is None or deadline_ms < self._wakes_ms:
            self._wake_earlier(deadline_ms)

    def _wake_earlier(self, deadline_ms: int) -> None:
        """Sleep again at the end of this turn, once for all timers that it adds: DEADLINE_MS is before the waking."""
        if not self._running:
            return
        self._wakes_ms = deadline_ms
        if self._resleep is None:
            self._resleep = asyncio.get_running_loop().call_soon(self._sleep)

    def _sleep(self) -> None:
        self._resleep = None
        if self._wakes_ms == _NEVER_EARLIER:
            return  # Callbacks run: the caller computes the next expiry afterwards.
        if self._sleeper is not None:
            self._sleeper.cancel()
        self._wakes_ms = self._wheel.next_expiry_ms()
        self._sleeper = None
        if self._wakes_ms is not None:
            self._sleeper = asyncio.get_running_loop().create_task(self._turn(self._wakes_ms))

    async def _turn(self, wakes_ms: int) -> None:
        """Sleep, fire, and sleep again until nothing is left to wait for."""
        while True:
            await self._clock.sleep_until(wakes_ms)
            # While callbacks run, new timers need not wake anybody: the next expiry is asked for below.
            self._wakes_ms = _NEVER_EARLIER
            await self._fire()
            next_ms = self._wheel.next_expiry_ms()
            self._wakes_ms = next_ms
            if next_ms is None or not self._running:
                self._sleeper = None
                return
            wakes_ms = next_ms

    async def _fire(self) -> None:
        """Run what is due, instant by instant.

        What is due by the time that this took comes after a turn of the loop: a timer that is always late again must
        not keep the loop from everybody else.
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
                    continue  # One that ran before it cancelled it.
                firing.remove(timer)
                self._run(timer)
                room -= 1
                if not room:
                    room = _BATCH
                    await asyncio.sleep(0)

    def _run(self, timer: Timer) -> None:
        try:
            timer.callback()
        except Exception:  # The edge of the loop: one callback's bug must not stop all timers.
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
        """Return the present instant."""
        return self._clock.now_ms()

    def unix_ms(self) -> int:
        """Return what the wall clock shows."""
        return self._clock.unix_ms()

    async def sleep_until(self, instant_ms: int) -> None:
        """Return once `now_ms()` has reached INSTANT_MS; a sleep that is cancelled leaves no timer."""
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
        """Keep a virtual clock at the present instant until `release`."""
        self._clock.hold()

    def release(self) -> None:
        """Undo one `hold`."""
        self._clock.release()
