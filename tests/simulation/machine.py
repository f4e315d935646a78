"""A machine of the simulation: one process that can stand still, and die.

While it is stalled nothing reaches it, nothing it says leaves, and nobody on it is woken; what was due happens all at
once when it goes on, as after a long pause of a garbage collector. Once it is dead nothing reaches it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .virtual_loop import LoopClock


class Machine:
    """Process NAME at ADDRESS, "host:port" as its peers see it."""

    def __init__(self, name: str, address: str, clock: LoopClock) -> None:
        self.name = name
        self.address = address
        self.clock = MachineClock(self, clock)
        self.alive = True
        self._stalled: asyncio.Future[None] | None = None
        self._due: list[Callable[[], None]] = []

    @property
    def stalled(self) -> bool:
        return self._stalled is not None

    def stall(self) -> None:
        """Stand still from now on."""
        if self._stalled is None:
            self._stalled = asyncio.get_running_loop().create_future()

    def go_on(self) -> None:
        """Do what was due meanwhile, in order, and go on."""
        stalled, self._stalled = self._stalled, None
        if stalled is None:
            return
        due, self._due = self._due, []
        for work in due:
            self.run(work)
        stalled.set_result(None)

    def run(self, work: Callable[[], None]) -> None:
        """Do WORK as this machine: later if it stands still, never if it is dead."""
        if not self.alive:
            return
        if self._stalled is not None:
            self._due.append(work)
        else:
            work()

    async def awake(self) -> None:
        """Return when the machine runs; a task of a dead one ends here."""
        while self._stalled is not None and self.alive:
            await asyncio.shield(self._stalled)
        if not self.alive:
            raise asyncio.CancelledError

    def die(self) -> None:
        """End without a word."""
        self.alive = False
        self._due.clear()
        if self._stalled is not None and not self._stalled.done():
            self._stalled.set_result(None)


class MachineClock:
    """CLOCK as MACHINE knows it: nobody is woken while it stands still, and its wall clock may be set."""

    def __init__(self, machine: Machine, clock: LoopClock) -> None:
        self._machine = machine
        self._clock = clock
        self._ahead_ms = 0
        self.on_step: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def unix_ms(self) -> int:
        return self._clock.now_ms() + self._ahead_ms

    def step(self, by_ms: int) -> None:
        """Set the wall clock by BY_MS, either way."""
        self._ahead_ms += by_ms
        for told in list(self.on_step):
            told()

    async def sleep_until(self, instant_ms: int) -> None:
        await self._clock.sleep_until(instant_ms)
        if self._machine.stalled or not self._machine.alive:
            await self._machine.awake()

    def hold(self) -> None:
        self._clock.hold()

    def release(self) -> None:
        self._clock.release()
