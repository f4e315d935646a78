"""Deadlines of calls, in steps of time.

Thousands of calls wait for an answer, but few reach their deadline. All deadlines of one step share a set, so adding
and cancelling cost one hash each, and only the steps are sorted. A deadline fires at the end of its step: up to one
step late, never early. Pure: the owner passes the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from .memory_quota import STEP_MS, STEPS_MIN


class Deadline:
    """An action that is due at some time, unless it is cancelled before."""

    __slots__ = ("_others", "action")

    def __init__(self, action: Callable[[], None], others: set[Deadline]) -> None:
        self.action = action
        self._others = others
        others.add(self)

    def cancel(self) -> None:
        """Cancel the action. Idempotent."""
        self._others.discard(self)


class Deadlines:
    """All deadlines of one owner. WAKE is called with each new earliest deadline."""

    def __init__(self, wake: Callable[[int], None]) -> None:
        self._wake = wake
        self._by_step: dict[int, set[Deadline]] = {}
        self._steps: list[int] = []
        self._sweep_at = STEPS_MIN

    @property
    def next_ms(self) -> int | None:
        """When to call `take_due`; None: there are no deadlines."""
        return self._steps[0] * STEP_MS if self._steps else None

    def add(self, due_ms: int, action: Callable[[], None]) -> Deadline:
        """Schedule ACTION for DUE_MS."""
        step = -(-due_ms // STEP_MS)
        found = self._by_step.get(step)
        if found is None:
            if len(self._steps) >= self._sweep_at:
                self._sweep()
            found = self._by_step[step] = set()
            heapq.heappush(self._steps, step)
            if self._steps[0] == step:
                self._wake(step * STEP_MS)
        return Deadline(action, found)

    def take_due(self, now_ms: int) -> list[Callable[[], None]]:
        """Return the actions that are due at NOW_MS and forget them."""
        due: list[Callable[[], None]] = []
        while self._steps and self._steps[0] * STEP_MS <= now_ms:
            found = self._by_step.pop(heapq.heappop(self._steps))
            due.extend(deadline.action for deadline in found)
            found.clear()
        return due

    def _sweep(self) -> None:
        """Remove steps in which every deadline was cancelled: callers may choose any time, a new one for each call."""
        self._by_step = {step: found for step, found in self._by_step.items() if found}
        self._steps = sorted(self._by_step)
        self._sweep_at = max(STEPS_MIN, 2 * len(self._steps))
