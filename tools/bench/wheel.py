"""`bench wheel`: timers set and fired on the timing wheel that long polls, leases and heartbeats hang on.

Timers with deadlines spread over a minute are added, half of them are cancelled (most long polls are answered before
their deadline), and the clock moves tick by tick until the rest has fired. The yardstick is a binary heap that does the
same, where a cancelled entry stays until it comes up.
"""

from __future__ import annotations

import heapq
import random
from typing import Final

from ...broker.timing_wheel import TimingWheel
from .measure import Conditions, Figure, seconds_of

TIMERS: Final = 200_000
HORIZON_MS: Final = 60_000
_STEP_MS: Final = 10


def wheel(conditions: Conditions) -> Figure:
    """Measure timers; the number is fixed, whatever CONDITIONS say."""
    figure = Figure(
        name="wheel",
        what=f"{TIMERS:,} timers over {HORIZON_MS // 1000} s added, every second one cancelled, the rest fired",
    )
    chance = random.Random(1)
    deadlines = [chance.randrange(HORIZON_MS) for _ in range(TIMERS)]
    seconds = min(seconds_of(lambda: _turn_wheel(deadlines)) for _ in range(3))
    heap_seconds = min(seconds_of(lambda: _use_heap(deadlines)) for _ in range(3))
    figure.messages_per_second = TIMERS / seconds
    figure.client_cpu_seconds = seconds
    figure.facts = {"timers": TIMERS}
    figure.compare("binary_heap_timers_per_second", TIMERS / heap_seconds, TIMERS / seconds)
    return figure


def _turn_wheel(deadlines: list[int]) -> None:
    timing = TimingWheel(0)
    timers = [timing.add(deadline, _nothing) for deadline in deadlines]
    for timer in timers[::2]:
        timing.cancel(timer)
    fired = sum(len(timing.advance(now)) for now in range(0, HORIZON_MS + _STEP_MS, _STEP_MS))
    assert fired == TIMERS // 2


def _use_heap(deadlines: list[int]) -> None:
    heap: list[tuple[int, int]] = []
    active = set(range(len(deadlines)))
    for number, deadline in enumerate(deadlines):
        heapq.heappush(heap, (deadline, number))
    active.difference_update(range(0, len(deadlines), 2))
    fired = 0
    for now in range(0, HORIZON_MS + _STEP_MS, _STEP_MS):
        while heap and heap[0][0] <= now:
            fired += heapq.heappop(heap)[1] in active
    assert fired == TIMERS // 2


def _nothing() -> None:
    """What a timer of this bench does."""
