"""An event loop whose time is virtual: where nothing is left to run, it leaps to the next instant that anybody awaits.

Everything on it shares that one time: clocks handed in, `asyncio.timeout`, `loop.call_later`. Five minutes take as long
as the work in them. Instants of clocks are Unix milliseconds from `EPOCH_MS` on.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

Value = TypeVar("Value")

EPOCH_MS: Final = 1_700_000_000_000
#: Real seconds in which a loop without timers must hear of a thread; then nothing will ever happen again.
_STUCK_S: Final = 20.0
#: Virtual seconds, 115 days, after which whoever still waits does so for ever. From twice as many on, the steps of a
#: float are larger than the loop's resolution, and timers that are due do not run.
_LATEST_S: Final = 10_000_000.0


class Stuck(Exception):
    """Nobody waits for an instant and nobody runs: what is waited for never comes."""


class _Selector(selectors.BaseSelector):
    """Takes the loop's waits as leaps of its time."""

    def __init__(self) -> None:
        self._inner = selectors.DefaultSelector()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if found := self._inner.select(0):
            return found
        if timeout is not None and timeout <= 0:
            return []
        if timeout is None:
            if found := self._inner.select(_STUCK_S):
                return found
            raise Stuck("nothing runs, and nobody waits for an instant")
        self.now_s += timeout
        if self.now_s > _LATEST_S:
            raise Stuck(f"after {_LATEST_S:.0f} virtual seconds, something is still waited for")
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.get_key(fileobj)

    def close(self) -> None:
        self._inner.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `clock()` is a clock on it."""

    def __init__(self) -> None:
        self._leaps = _Selector()
        super().__init__(self._leaps)

    def time(self) -> float:
        return self._leaps.now_s

    def clock(self) -> LoopClock:
        return LoopClock(self)


class LoopClock:
    """The loop's time as a Clock; its wall clock is never set."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.on_step: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        # A microsecond of grace: sums of floats may lie just below the instant that was slept for.
        return EPOCH_MS + int(self._loop.time() * 1000 + 0.001)

    def unix_ms(self) -> int:
        return self.now_ms()

    async def sleep_until(self, instant_ms: int) -> None:
        if instant_ms <= self.now_ms():
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_at((instant_ms - EPOCH_MS) / 1000, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()

    async def sleep(self, pause_ms: float) -> None:
        """Return PAUSE_MS from now."""
        await self.sleep_until(self.now_ms() + round(pause_ms))

    def hold(self) -> None:
        """Nothing here waits for the world: what would hold time takes some of it."""

    def release(self) -> None:
        """See `hold`."""


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def run(work: Coroutine[Any, Any, Value]) -> Value:
    """Run WORK on a virtual loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def loop_clock() -> LoopClock:
    """Return a clock on the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "run the simulation by `run`"
    return loop.clock()
