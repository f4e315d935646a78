"""`bench wheel`: what a timer costs on the timing wheel of long polls, leases, heartbeats and flushes.

At 10,000, 100,000 and 1,000,000 timers, nanoseconds per operation, on three structures:

    the timing wheel (broker/timing/timing_wheel.py)
    `heapq`, where a cancelled entry stays until it is the first, and re-scheduling cancels and pushes
    asyncio's own `call_at` (what `call_later` calls): `cancel`, and for re-scheduling `cancel` and `call_at`

The operations, one after the other on the same timers, in an order that is not that of insertion: insert (deadlines
spread over a minute), re-schedule each once, cancel every second one (most long polls are answered before their
deadline), and advance: the minute ends and all that is left is due at once and is called. Then once more for the wheel:
"tick by tick" is the same advance in 6,000 steps of 10 ms, as an event loop that is not late makes it.

The garbage collector is off while measuring, as in `timeit`. Smaller sizes are the best of three.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from ...broker.timing.timing_wheel import Timer, TimingWheel
from .measure import BenchConditions, Figure, seconds_of

SIZES: Final = (10_000, 100_000, 1_000_000)
HORIZON_MS: Final = 60_000
OPERATIONS: Final = ("insert", "re-schedule", "cancel", "advance", "tick by tick")
_STEP_MS: Final = 10
#: The size whose rates are in the table of results.
_SHOWN: Final = 100_000

#: Nanoseconds by operation.
Costs = dict[str, float]


class _Structure(Protocol):
    """Timers numbered from 0; deadlines in milliseconds from 0. Each call does one operation on many."""

    def insert(self, deadlines: list[int]) -> None: ...

    def reschedule(self, order: list[int], deadlines: list[int]) -> None: ...

    def cancel(self, numbers: list[int]) -> None: ...

    def advance(self, to_ms: int) -> None:
        """Call all that is due until TO_MS."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Called:
    """What the timers do, so that all structures pay for a call."""

    count: int = 0

    def __call__(self) -> None:
        self.count += 1


class _Wheel:
    """The timing wheel."""

    def __init__(self, called: _Called) -> None:
        self._wheel = TimingWheel(0)
        self._called = called
        self._timers: list[Timer] = []

    def insert(self, deadlines: list[int]) -> None:
        add, called = self._wheel.add, self._called
        self._timers = [add(deadline_ms, called) for deadline_ms in deadlines]

    def reschedule(self, order: list[int], deadlines: list[int]) -> None:
        reschedule, timers = self._wheel.reschedule, self._timers
        for number in order:
            reschedule(timers[number], deadlines[number])

    def cancel(self, numbers: list[int]) -> None:
        cancel, timers = self._wheel.cancel, self._timers
        for number in numbers:
            cancel(timers[number])

    def advance(self, to_ms: int) -> None:
        for timer in self._wheel.advance(to_ms):
            timer.callback()

    def close(self) -> None:
        self._timers.clear()


class _Entry:
    """A timer on the heap; without a callback it is as good as deleted."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback


class _Heap:
    """`heapq` with lazy deletion."""

    def __init__(self, called: _Called) -> None:
        self._called = called
        self._heap: list[tuple[int, int, _Entry]] = []
        self._entries: list[_Entry] = []
        self._order = 0

    def _push(self, deadline_ms: int) -> _Entry:
        self._order = order = self._order + 1
        entry = _Entry(self._called)
        heapq.heappush(self._heap, (deadline_ms, order, entry))
        return entry

    def insert(self, deadlines: list[int]) -> None:
        push = self._push
        self._entries = [push(deadline_ms) for deadline_ms in deadlines]

    def reschedule(self, order: list[int], deadlines: list[int]) -> None:
        push, entries = self._push, self._entries
        for number in order:
            entries[number].callback = None
            entries[number] = push(deadlines[number])

    def cancel(self, numbers: list[int]) -> None:
        entries = self._entries
        for number in numbers:
            entries[number].callback = None

    def advance(self, to_ms: int) -> None:
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= to_ms:
            callback = pop(heap)[2].callback
            if callback is not None:
                callback()

    def close(self) -> None:
        self._heap.clear()


class _MovableLoop(asyncio.SelectorEventLoop):
    """asyncio's loop; its time can be set forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class _Asyncio:
    """`call_at` of a real loop, an hour ahead, so that nothing is due before `advance`."""

    def __init__(self, called: _Called) -> None:
        self._loop = _MovableLoop()
        self._base_s = self._loop.time() + 3600
        self._called = called
        self._handles: list[asyncio.TimerHandle] = []

    def insert(self, deadlines: list[int]) -> None:
        call_at, base_s, called = self._loop.call_at, self._base_s, self._called
        self._handles = [call_at(base_s + deadline_ms / 1000, called) for deadline_ms in deadlines]

    def reschedule(self, order: list[int], deadlines: list[int]) -> None:
        call_at, base_s, called = self._loop.call_at, self._base_s, self._called
        handles = self._handles
        for number in order:
            handles[number].cancel()
            handles[number] = call_at(base_s + deadlines[number] / 1000, called)

    def cancel(self, numbers: list[int]) -> None:
        handles = self._handles
        for number in numbers:
            handles[number].cancel()

    def advance(self, to_ms: int) -> None:
        end_s = self._base_s + to_ms / 1000 + 1
        self._loop.call_at(end_s, self._loop.stop)
        self._loop.ahead_s += end_s - self._loop.time()
        self._loop.run_forever()

    def close(self) -> None:
        self._loop.close()


STRUCTURES: Final[dict[str, Callable[[_Called], _Structure]]] = {
    "wheel": _Wheel,
    "heapq": _Heap,
    "call_later": _Asyncio,
}


def wheel(conditions: BenchConditions) -> Figure:
    """Measure timers; the numbers are fixed, whatever CONDITIONS say."""
    figure = Figure(
        name="wheel",
        what=f"timers over {HORIZON_MS // 1000} s: each set, moved once, every second one cancelled, the rest fired",
    )
    table = {size: _best(size) for size in SIZES}
    figure.facts = {"timers": list(SIZES), "ns_per_operation": _document(table)}
    figure.notes = lines(table)
    rates = {name: 1e9 / _of_a_timer(costs) for name, costs in table[_SHOWN].items()}
    figure.messages_per_second = rates["wheel"]
    for name in ("heapq", "call_later"):
        figure.compare(f"{name}_timers_per_second", rates[name], rates["wheel"])
    return figure


def _best(size: int) -> dict[str, Costs]:
    """Return the costs of SIZE timers by structure: of each operation the best of the rounds."""
    rounds = 1 if size >= SIZES[-1] else 3
    best: dict[str, Costs] = {}
    for name, make in STRUCTURES.items():
        found = [measure(make, size) for _ in range(rounds)]
        best[name] = {operation: min(costs[operation] for costs in found) for operation in found[0]}
    return best


def measure(make: Callable[[_Called], _Structure], size: int) -> Costs:
    """Return what the operations cost on the structure that MAKE makes, with SIZE timers."""
    costs = _measure(make, size, HORIZON_MS)
    if make is _Wheel:
        costs["tick by tick"] = _measure(make, size, _STEP_MS)["advance"]
    return costs


def _measure(make: Callable[[_Called], _Structure], size: int, step_ms: int) -> Costs:
    random = Random(size)
    first, second = ([random.randrange(1, HORIZON_MS) for _ in range(size)] for _ in range(2))
    order = list(range(size))
    random.shuffle(order)
    cancelled = order[::2]
    called = _Called()
    structure = make(called)

    def advance() -> None:
        for to_ms in range(step_ms, HORIZON_MS + step_ms, step_ms):
            structure.advance(to_ms)

    with _without_collection():
        costs = {
            "insert": seconds_of(lambda: structure.insert(first)) / size,
            "re-schedule": seconds_of(lambda: structure.reschedule(order, second)) / size,
            "cancel": seconds_of(lambda: structure.cancel(cancelled)) / len(cancelled),
            "advance": seconds_of(advance) / (size - len(cancelled)),
        }
    structure.close()
    assert called.count == size - len(cancelled), "each timer fires once, cancelled ones never"
    return {operation: 1e9 * seconds for operation, seconds in costs.items()}


@contextmanager
def _without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _of_a_timer(costs: Costs) -> float:
    """Return the nanoseconds of a timer's whole life; half are cancelled, half fire."""
    return costs["insert"] + costs["re-schedule"] + (costs["cancel"] + costs["advance"]) / 2


def _document(table: dict[int, dict[str, Costs]]) -> dict[str, dict[str, dict[str, int]]]:
    return {
        str(size): {
            name: {operation: round(cost) for operation, cost in costs.items()}
            for name, costs in by_structure.items()
        }
        for size, by_structure in table.items()
    }


def lines(table: dict[int, dict[str, Costs]]) -> list[str]:
    """Return TABLE (by size, by structure) for people: nanoseconds, and how often the wheel's go into the others'."""
    titles = [*STRUCTURES, *(f"{name}/wheel" for name in list(STRUCTURES)[1:])]
    found = [f"{'timers':>9}  {'ns each':12}" + "".join(f"{title:>17}" for title in titles)]
    for size, by_structure in table.items():
        ours = by_structure["wheel"]
        for operation in OPERATIONS:
            costs = [by_structure[name].get(operation) for name in STRUCTURES]
            cells = ["-" if cost is None else f"{cost:,.0f}" for cost in costs]
            cells += [
                "-" if cost is None else f"{cost / ours[operation]:.2f}" for cost in costs[1:]
            ]
            row = "".join(f"{cell:>17}" for cell in cells)
            found.append(f"{size:>9,}  {operation:12}{row}")
    return found
