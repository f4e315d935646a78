"""Timers on a clock that is moved by hand, and on a loop that is late."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from pocketmq.broker.timing import timers as timers_module
from pocketmq.broker.timing.timers import TimerClock, Timers
from pocketmq.broker.timing.timing_wheel import Timer
from pocketmq.proto.clock import VirtualClock

START_MS = 1000


class LateClock(VirtualClock):
    """A clock whose sleepers all wake too late: at the end of the move."""

    async def advance(self, by_ms: int) -> None:
        await self._rest()
        self._now_ms += by_ms
        self._wake(self._now_ms)
        await self._rest()


class Notes:
    """Timers that note what fired and when."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.timers = Timers(clock)
        self.fired: list[tuple[str, int]] = []

    def note(self, name: str, then: Callable[[], object] | None = None) -> Callable[[], None]:
        def fire() -> None:
            self.fired.append((name, self.clock.now_ms() - START_MS))
            if then is not None:
                then()

        return fire

    def at(self, in_ms: int, name: str, then: Callable[[], object] | None = None) -> Timer:
        return self.timers.at(START_MS + in_ms, self.note(name, then))

    @property
    def names(self) -> str:
        return "".join(name for name, _ in self.fired)


@pytest.fixture(params=[VirtualClock, LateClock], ids=["in time", "late"])
async def notes(request: pytest.FixtureRequest) -> AsyncIterator[Notes]:
    notes = Notes(request.param(START_MS))
    notes.timers.start()
    yield notes
    await notes.timers.stop()


@pytest.fixture
async def exact() -> AsyncIterator[Notes]:
    notes = Notes(VirtualClock(START_MS))
    notes.timers.start()
    yield notes
    await notes.timers.stop()


async def test_what_a_callback_adds_fires_in_its_place(notes: Notes) -> None:
    notes.at(10, "a", lambda: notes.at(20, "b", lambda: notes.at(25, "c")))
    notes.at(22, "x")
    notes.at(30, "y")

    await notes.clock.advance(100)

    assert notes.names == "abxcy"


async def test_what_a_callback_cancels_does_not_fire(notes: Notes) -> None:
    same, later = notes.at(10, "same"), notes.at(15, "later")
    cancelled: list[bool] = []
    early = notes.timers.at(
        START_MS + 5,
        notes.note(
            "a", lambda: cancelled.extend(notes.timers.cancel(timer) for timer in (later, later))
        ),
    )
    notes.at(10, "b", lambda: cancelled.append(notes.timers.cancel(third)))
    third = notes.at(10, "third")
    notes.timers.cancel(same)

    await notes.clock.advance(100)

    assert notes.names == "ab"
    assert cancelled == [True, False, True]
    assert not notes.timers.cancel(early)
    assert len(notes.timers) == 0


async def test_what_a_callback_moves_fires_where_it_was_moved_to(notes: Notes) -> None:
    notes.at(10, "a", lambda: notes.timers.reschedule(moved, START_MS + 40))
    moved = notes.at(10, "m")
    notes.at(30, "b")

    await notes.clock.advance(100)

    assert notes.names == "abm"


async def test_a_callback_may_arm_its_own_timer_again(notes: Notes) -> None:
    def again() -> None:
        if len(notes.fired) < 3:
            notes.timers.reschedule(timer, timer.deadline_ms + 10)

    timer = notes.at(10, "a", again)

    await notes.clock.advance(100)

    assert notes.names == "aaa"


async def test_a_past_deadline_fires_at_once(exact: Notes) -> None:
    exact.at(-500, "past")

    await exact.clock.advance(0)

    assert exact.fired == [("past", 0)]


async def test_periodic_work_has_all_its_instants(exact: Notes) -> None:
    exact.timers.every(1000, exact.note("p"))

    await exact.clock.advance(5500)
    await exact.clock.advance(500)

    assert exact.fired == [("p", instant) for instant in range(1000, 6001, 1000)]


async def test_periodic_work_that_falls_behind_skips_without_bursts() -> None:
    notes = Notes(LateClock(START_MS))
    notes.timers.start()
    notes.timers.every(100, notes.note("p"))

    for by_ms in (100, 150, 30, 20, 1050, 49, 1):
        await notes.clock.advance(by_ms)

    # 200 was late, at 250; 300 is in time again; of 400 … 1300 one is made up for, at 1350; then comes 1400.
    assert notes.fired == [("p", instant) for instant in (100, 250, 300, 1350, 1400)]
    await notes.timers.stop()


async def test_periodic_work_may_end_itself(exact: Notes) -> None:
    ended: list[bool] = []

    def end() -> None:
        if len(exact.fired) == 3:
            ended.append(exact.timers.cancel(timer))

    timer = exact.timers.every(100, exact.note("p", end))

    await exact.clock.advance(1000)

    assert exact.names == "ppp"
    assert ended == [True]
    assert len(exact.timers) == 0


async def test_many_callbacks_of_one_instant_let_others_have_their_turn(
    exact: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "_BATCH", 10)
    for number in range(95):
        exact.at(10, str(number % 10))
    turns: list[int] = []

    async def other() -> None:
        await exact.clock.sleep_until(START_MS + 10)
        while len(exact.fired) < 95:
            turns.append(len(exact.fired))
            # An earlier deadline in the middle of a batch must not make the rest of it forgotten.
            exact.timers.at(START_MS, lambda: None)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await exact.clock.advance(10)
    await task

    assert len(turns) >= 9
    assert max(b - a for a, b in itertools.pairwise(turns)) == 10
    assert {name: 10 - (int(name) > 4) for name in "0123456789"} == {
        name: exact.names.count(name) for name in "0123456789"
    }


@pytest.mark.long
async def test_adding_earlier_and_earlier_timers_makes_one_sleeper(exact: Notes) -> None:
    tasks = len(asyncio.all_tasks())
    for in_ms in range(50_000, 0, -1):
        exact.at(in_ms, "")

    assert len(asyncio.all_tasks()) == tasks
    await exact.clock.advance(0)
    assert len(asyncio.all_tasks()) <= tasks + 1
    await exact.clock.advance(50_000)
    assert [instant for _, instant in exact.fired] == list(range(1, 50_001))


async def test_what_was_added_before_the_start_counts_and_nothing_fires_after_the_stop() -> None:
    notes = Notes(VirtualClock(START_MS))
    notes.at(10, "a")
    await notes.clock.advance(5)
    notes.timers.start()
    await notes.clock.advance(5)
    notes.at(20, "b")
    await notes.timers.stop()
    await notes.clock.advance(50)

    assert notes.fired == [("a", 10)]


async def test_timers_may_be_stopped_in_the_middle_of_a_batch_and_started_again(
    exact: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "_BATCH", 1)
    exact.at(10, "a", lambda: stopping.append(asyncio.create_task(exact.timers.stop())))
    exact.at(10, "b")
    stopping: list[asyncio.Task[None]] = []
    await exact.clock.advance(10)
    await stopping[0]

    exact.timers.start()
    exact.at(30, "c")
    await exact.clock.advance(20)

    assert exact.names == "ac"


async def test_a_sleep_on_the_timers_ends_at_its_instant_and_leaves_nothing() -> None:
    clock = VirtualClock(1_000)
    timers = Timers(clock)
    timers.start()
    waiting = TimerClock(clock, timers)
    woken: list[int] = []

    async def sleep(until_ms: int) -> None:
        await waiting.sleep_until(until_ms)
        woken.append(waiting.now_ms())

    sleeps = [asyncio.create_task(sleep(until_ms)) for until_ms in (1_300, 900, 1_200, 5_000)]
    await clock.advance(400)
    assert woken == [1_000, 1_200, 1_300]
    sleeps[-1].cancel()
    await asyncio.wait(sleeps)
    assert len(timers) == 0
    await timers.stop()


async def test_a_timer_that_is_always_due_does_not_keep_the_loop_from_others() -> None:
    timers = Timers(clock := _Hurried())
    turns: list[int] = []
    fired = 0

    def again() -> None:
        nonlocal fired
        fired += 1
        if fired < 50:
            timers.after(1, again)

    timers.after(1, again)
    timers.start()
    while fired < 50:
        turns.append(fired)
        await asyncio.sleep(0)
    await timers.stop()
    assert clock.now_ms() > 50
    assert len(set(turns)) > 25, "others had their turn in between"


class _Hurried:
    """A clock on which a millisecond has passed whenever somebody looks: whoever works is always late."""

    def __init__(self) -> None:
        self._now_ms = 0
        self.on_step: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def unix_ms(self) -> int:
        return self._now_ms

    async def sleep_until(self, instant_ms: int) -> None:
        while self.now_ms() < instant_ms:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def hold(self) -> None:
        """Time passes anyway."""

    def release(self) -> None:
        """Time passes anyway."""
