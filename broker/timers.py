"""The shell of the timing wheel: it turns the wheel by the broker's clock, and runs what is due on the event loop.

One task sleeps until the wheel's next expiry; a timer that is due before that wakes it. Every wait of a broker
hangs here: long polls, flush deadlines, heartbeats, periodic work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..proto.clock import Clock
from .timing_wheel import Timer, TimingWheel

logger = logging.getLogger(__name__)


class Timers:
    """Timers on CLOCK. `start` on a running loop, `stop` drops what is left. The loop owns it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = TimingWheel(clock.now_ms())
        self._sleeper: asyncio.Task[None] | None = None
        self._wakes_ms: int | None = None
        self._running = False

    def __len__(self) -> int:
        return len(self._wheel)

    def start(self) -> None:
        """Begin to fire; timers that were added before count as well."""
        self._running = True
        self._sleep()

    async def stop(self) -> None:
        """Fire nothing any more."""
        self._running = False
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            sleeper.cancel()
            await asyncio.wait((sleeper,))

    def at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Have CALLBACK called at DEADLINE_MS, once."""
        timer = self._wheel.add(deadline_ms, callback)
        self._earlier(deadline_ms)
        return timer

    def after(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Have CALLBACK called DELAY_MS from now, once."""
        return self.at(self._clock.now_ms() + delay_ms, callback)

    def every(self, period_ms: int, callback: Callable[[], None]) -> Timer:
        """Have CALLBACK called every PERIOD_MS, counted from the end of the last call; cancel the timer to end it."""

        def again() -> None:
            try:
                callback()
            finally:
                self.reschedule(timer, self._clock.now_ms() + period_ms)

        timer = self.after(period_ms, again)
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Take TIMER out; return whether it was still to fire."""
        return self._wheel.cancel(timer)

    def reschedule(self, timer: Timer, deadline_ms: int) -> None:
        """Have TIMER fire at DEADLINE_MS instead, or again."""
        self._wheel.reschedule(timer, deadline_ms)
        self._earlier(deadline_ms)

    def _earlier(self, deadline_ms: int) -> None:
        """Sleep anew if DEADLINE_MS comes before what is slept for."""
        if self._running and (self._wakes_ms is None or deadline_ms < self._wakes_ms):
            self._sleep()

    def _sleep(self) -> None:
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
            self._wakes_ms = -1
            for timer in self._wheel.advance(self._clock.now_ms()):
                _run(timer)
            next_ms = self._wheel.next_expiry_ms()
            self._wakes_ms = next_ms
            if next_ms is None or not self._running:
                self._sleeper = None
                return
            wakes_ms = next_ms


def _run(timer: Timer) -> None:
    try:
        timer.callback()
    except Exception:  # The edge of the loop: one callback's bug must not stop all timers.
        logger.exception("timer callback failed")
