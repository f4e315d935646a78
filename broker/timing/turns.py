"""Work in steps: each step runs in a later turn of the event loop, or at a given time.

Sends and fetches run between the steps. While a step is scheduled for the next turn, a virtual clock does not advance.
Work that depends on the wall clock calls `reschedule_on_clock_change`, and gets a step whenever the wall clock is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...proto.clock import Clock
from .timers import Timers
from .timing_wheel import Timer


class StepScheduler:
    """Calls STEP when a step was requested. TIMERS use CLOCK."""

    def __init__(self, timers: Timers, clock: Clock, step: Callable[[], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._step = step
        self._handle: asyncio.Handle | None = None
        self._timer: Timer | None = None

    def reschedule_on_clock_change(self) -> None:
        """Also call a step whenever the wall clock is set."""
        self._clock.on_step.append(self.soon)

    @property
    def comes_next(self) -> bool:
        """Whether a step is requested for the next turn."""
        return self._handle is not None

    def soon(self) -> None:
        """Request a step in the next turn of the event loop, at the present time."""
        if self._handle is None:
            self._clock.hold()
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        try:
            self._step()
        finally:
            self._clock.release()

    def at(self, instant_ms: int) -> None:
        """Request a step at INSTANT_MS, instead of at another time."""
        if self._timer is None:
            self._timer = self._timers.at(instant_ms, self._step)
        elif not self._timer.active or self._timer.deadline_ms != instant_ms:
            self._timers.reschedule(self._timer, instant_ms)

    def by(self, instant_ms: int) -> None:
        """Request a step at INSTANT_MS unless an earlier one is requested."""
        if self._timer is None or not self._timer.active or instant_ms < self._timer.deadline_ms:
            self.at(instant_ms)

    def stop(self) -> None:
        """Call no more steps."""
        if self.soon in self._clock.on_step:
            self._clock.on_step.remove(self.soon)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._clock.release()
        if self._timer is not None:
            self._timers.cancel(self._timer)
