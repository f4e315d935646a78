"""Purgatory and timers on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pocketmq.broker.timing.purgatory import Purgatory, WatchedOperation
from pocketmq.broker.timing.timers import Timers
from pocketmq.proto.clock import VirtualClock


class Operation:
    """Completes once `ready` is set; notes how and when it completed."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.ready = False
        self.completed: list[tuple[str, int]] = []

    def try_complete(self) -> bool:
        if self.ready:
            self.completed.append(("event", self.clock.now_ms()))
        return self.ready

    def on_deadline(self) -> None:
        self.completed.append(("deadline", self.clock.now_ms()))


@pytest.fixture
async def clock() -> VirtualClock:
    return VirtualClock(1000)


async def _purgatory(clock: VirtualClock, limit: int = 1000) -> tuple[Purgatory, Timers]:
    timers = Timers(clock)
    timers.start()
    return Purgatory(timers, limit=lambda: limit), timers


async def test_an_operation_that_can_complete_never_waits(clock: VirtualClock) -> None:
    purgatory, _ = await _purgatory(clock)
    operation = Operation(clock)
    operation.ready = True

    assert purgatory.complete_or_watch(operation, "q", 2000) is None
    assert operation.completed == [("event", 1000)]


async def test_an_event_completes_those_of_its_key_that_are_ready(clock: VirtualClock) -> None:
    purgatory, timers = await _purgatory(clock)
    here, there, unready = Operation(clock), Operation(clock), Operation(clock)
    for operation, key in ((here, "q"), (there, "other"), (unready, "q")):
        purgatory.complete_or_watch(operation, key, 9000)
    here.ready = there.ready = True

    assert purgatory.notify("q") == 1

    assert here.completed == [("event", 1000)]
    assert there.completed == unready.completed == []
    assert len(purgatory) == 2
    await clock.advance(10_000)
    assert here.completed == [("event", 1000)]
    assert there.completed == unready.completed == [("deadline", 9000)]
    await timers.stop()


async def test_an_operation_beyond_the_limit_completes_with_what_there_is(
    clock: VirtualClock,
) -> None:
    purgatory, timers = await _purgatory(clock, limit=1)
    first, second = Operation(clock), Operation(clock)
    purgatory.complete_or_watch(first, "q", 9000)

    assert purgatory.complete_or_watch(second, "q", 9000) is None
    assert second.completed == [("deadline", 1000)]
    assert len(purgatory) == 1
    await timers.stop()


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_an_operation_completes_once(clock: VirtualClock, seed: int) -> None:
    random = Random(seed)
    purgatory, timers = await _purgatory(clock)
    deadlines: dict[Operation, int] = {}
    watches: dict[Operation, WatchedOperation] = {}
    cancelled = set()
    for _ in range(200):
        step = random.random()
        if step < 0.5:
            operation = Operation(clock)
            deadlines[operation] = clock.now_ms() + random.randint(0, 500)
            watch = purgatory.complete_or_watch(
                operation, random.choice("ab"), deadlines[operation]
            )
            assert watch is not None
            watches[operation] = watch
        elif step < 0.7 and deadlines:
            random.choice(list(deadlines)).ready = True
            purgatory.notify(random.choice("ab"))
        elif step < 0.8 and deadlines:
            operation = random.choice(list(deadlines))
            if watches[operation].cancel():
                cancelled.add(operation)
        else:
            await clock.advance(random.randint(0, 200))
    await clock.advance(1000)

    assert len(purgatory) == 0
    assert len(timers) == 0
    for operation, deadline_ms in deadlines.items():
        assert len(operation.completed) == (0 if operation in cancelled else 1)
        if operation.completed:
            how, when_ms = operation.completed[0]
            assert when_ms <= deadline_ms
            assert how == "event" or when_ms == deadline_ms
    await timers.stop()


async def test_stopping_completes_what_waits(clock: VirtualClock) -> None:
    purgatory, timers = await _purgatory(clock)
    operation = Operation(clock)
    purgatory.complete_or_watch(operation, "q", 9000)

    purgatory.complete_all()

    assert operation.completed == [("deadline", 1000)]
    await timers.stop()


async def test_a_timer_that_is_due_earlier_wakes_the_sleeper(clock: VirtualClock) -> None:
    timers = Timers(clock)
    timers.start()
    fired: list[tuple[str, int]] = []
    timers.at(5000, lambda: fired.append(("late", clock.now_ms())))
    await asyncio.sleep(0)
    timers.after(10, lambda: fired.append(("early", clock.now_ms())))

    await clock.advance(10_000)

    assert fired == [("early", 1010), ("late", 5000)]
    await timers.stop()


async def test_a_periodic_timer_goes_on_after_an_error(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    timers = Timers(clock)
    timers.start()
    fired: list[int] = []

    def tick() -> None:
        fired.append(clock.now_ms())
        if len(fired) == 2:
            raise RuntimeError("once")

    timer = timers.every(100, tick)
    await clock.advance(350)
    timers.cancel(timer)
    await clock.advance(1000)

    assert fired == [1100, 1200, 1300]
    assert "timer callback failed" in caplog.text
    await timers.stop()


async def test_an_operation_under_several_keys_completes_at_an_event_of_any(
    clock: VirtualClock,
) -> None:
    purgatory, timers = await _purgatory(clock)
    operation, other = Operation(clock), Operation(clock)
    purgatory.complete_or_watch(operation, "q", 9000, also=("r", "s"))
    purgatory.complete_or_watch(other, "s", 9000)
    assert list(purgatory.operations("s")) == [operation, other]
    operation.ready = True

    assert purgatory.notify("r") == 1

    assert operation.completed == [("event", 1000)]
    assert list(purgatory.operations("q")) == []
    assert list(purgatory.operations("s")) == [other]
    assert len(purgatory) == 1
    await timers.stop()
