"""The clock that can be moved."""

import asyncio
import logging
import time

import pytest

from pocketmq.proto import clock as clock_module
from pocketmq.proto.clock import (
    STEP_MAX_MS,
    SystemClock,
    VirtualClock,
    ahead_ms,
    held,
    past_instant,
)
from pocketmq.proto.errors import InvalidArgument


async def test_the_virtual_clock_wakes_sleepers_in_order_at_their_instants() -> None:
    clock = VirtualClock(1000)
    woken: list[tuple[str, int]] = []

    async def sleeper(name: str, instant_ms: int) -> None:
        await clock.sleep_until(instant_ms)
        woken.append((name, clock.now_ms()))

    async with asyncio.TaskGroup() as group:
        for name, instant_ms in (("late", 9000), ("early", 2000), ("never", 10_000), ("past", 5)):
            group.create_task(sleeper(name, instant_ms))
        await clock.advance(8500)
        assert woken == [("past", 1000), ("early", 2000), ("late", 9000)]
        await clock.advance(10_000)

    assert woken[-1] == ("never", 10_000)
    assert clock.now_ms() == 19_500


class Machine:
    """A machine whose clocks are moved by hand: `wall_s` set, `slept_s` asleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s = self.slept_s = 0.0
        time_ns, clock_gettime_ns = time.time_ns, time.clock_gettime_ns

        def moved(clock: int) -> int:
            slept_s = self.slept_s if clock == clock_module._STEADY else 0
            return clock_gettime_ns(clock) + int(slept_s * 1e9)

        monkeypatch.setattr(
            time, "time_ns", lambda: time_ns() + int((self.wall_s + self.slept_s) * 1e9)
        )
        monkeypatch.setattr(time, "clock_gettime_ns", moved)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(clock_module, "LOOK_MS", 20)
    return Machine(monkeypatch)


@pytest.mark.parametrize("step_s", [-86_400, -3_600, -1, 1, 3_600, 86_400])
async def test_whoever_sleeps_sleeps_as_long_however_the_wall_clock_is_set(
    machine: Machine, step_s: float
) -> None:
    clock = SystemClock()
    now_ms, unix_ms, began = clock.now_ms(), clock.unix_ms(), time.monotonic()
    sleeper = asyncio.ensure_future(clock.sleep_until(now_ms + 100))
    await asyncio.sleep(0)

    machine.wall_s = step_s
    await sleeper

    assert 0.099 <= time.monotonic() - began < 5
    assert clock.now_ms() - now_ms >= 100
    assert abs(clock.unix_ms() - unix_ms - 1000 * step_s) < 5_000


@pytest.mark.parametrize("step_s", [-3_600, -0.01, 0.01, 86_400])
async def test_a_step_is_reported_once_while_a_caller_sleeps(
    machine: Machine, step_s: float
) -> None:
    clock = SystemClock()
    seen: list[int] = []
    clock.on_step.append(lambda: seen.append(ahead_ms(clock)))
    before_ms = ahead_ms(clock)
    sleeper = asyncio.ensure_future(clock.sleep_until(clock.now_ms() + 300))
    await asyncio.sleep(0)

    machine.wall_s = step_s
    await sleeper

    assert len(seen) == 1
    assert abs(seen[0] - before_ms - 1000 * step_s) <= 2


async def test_short_sleeps_one_after_the_other_see_a_step_as_well(machine: Machine) -> None:
    clock = SystemClock()
    seen: list[bool] = []
    clock.on_step.append(lambda: seen.append(True))

    machine.wall_s = 3_600
    for _ in range(10):
        await clock.sleep_until(clock.now_ms() + 10)

    assert seen == [True]


async def test_time_that_the_machine_sleeps_counts_and_wakes_who_is_due(machine: Machine) -> None:
    clock = SystemClock()
    steps: list[bool] = []
    clock.on_step.append(lambda: steps.append(True))
    due = asyncio.ensure_future(clock.sleep_until(clock.now_ms() + 3_600_000))
    other = asyncio.ensure_future(clock.sleep_until(clock.now_ms() + 100_000_000))
    await asyncio.sleep(0.01)

    # A second and some more: less is taken for a loop that was busy.
    machine.slept_s = 3_601
    await asyncio.wait_for(due, 5)

    assert not other.done()
    assert not steps, "the wall clock went on as well"
    other.cancel()
    await asyncio.wait((other,))
    assert clock._sleepers == {}, "nothing is checked while no caller sleeps"


async def test_a_smear_is_followed_step_by_step(machine: Machine) -> None:
    clock = SystemClock()
    seen: list[int] = []
    clock.on_step.append(lambda: seen.append(ahead_ms(clock)))
    before_ms = ahead_ms(clock)

    for _ in range(50):
        machine.wall_s -= 0.001
        await clock.sleep_until(clock.now_ms() + 5)
    await clock.sleep_until(clock.now_ms() + 50)

    assert len(seen) > 2
    assert abs(seen[-1] - before_ms + 50) <= 2


async def test_the_wall_of_a_virtual_clock_is_set_apart_from_its_instants() -> None:
    clock = VirtualClock(1_000)
    seen: list[int] = []
    clock.on_step.append(lambda: seen.append(clock.unix_ms()))
    sleeper = asyncio.ensure_future(clock.sleep_until(2_000))
    await clock.advance(10)

    clock.step(-3_600_000)

    assert (clock.now_ms(), clock.unix_ms()) == (1_010, 1_010 - 3_600_000)
    assert seen == [1_010 - 3_600_000]
    await clock.advance(989)
    assert not sleeper.done()
    await clock.advance(1)
    assert sleeper.done()


async def test_who_sleeps_on_a_machine_that_sleeps_wakes_at_its_end() -> None:
    clock = VirtualClock(0)
    woken: list[int] = []

    async def sleep_until(instant_ms: int) -> None:
        await clock.sleep_until(instant_ms)
        woken.append(clock.now_ms())

    async with asyncio.TaskGroup() as group:
        group.create_task(sleep_until(5_000))
        group.create_task(sleep_until(9_000))
        await clock.suspend(6_000)
        assert woken == [6_000]
        await clock.advance(3_000)

    assert woken == [6_000, 9_000]
    assert clock.unix_ms() == 9_000


def test_what_was_noted_before_a_clock_was_set_back_counts_as_the_present() -> None:
    clock = VirtualClock(10_000)
    clock.step(-3_000)

    assert past_instant(clock, 6_000) == 9_000
    assert past_instant(clock, 7_001) == 10_000


async def test_sleepers_of_one_instant_wake_together_in_the_order_of_falling_asleep() -> None:
    clock = VirtualClock(0)
    woken: list[int] = []

    async def sleeper(number: int) -> None:
        await clock.sleep_until(10)
        woken.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(sleeper(number))
        await clock.advance(10)

    assert woken == list(range(100))


@pytest.mark.parametrize("length", [1, 25, 3000])
async def test_all_that_the_loop_can_do_at_an_instant_is_done_before_the_next(length: int) -> None:
    clock = VirtualClock(0)
    seen: list[int] = []

    def link(left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(link, left - 1)
        else:
            seen.append(clock.now_ms())

    async def sleeper(instant_ms: int) -> None:
        await clock.sleep_until(instant_ms)
        link(length)
        for _ in range(length):
            await asyncio.sleep(0)
        seen.append(clock.now_ms())

    async with asyncio.TaskGroup() as group:
        for instant_ms in (5, 6, 7):
            group.create_task(sleeper(instant_ms))
        await clock.advance(7)

    assert seen == [5, 5, 6, 6, 7, 7]


async def test_held_work_keeps_its_instant(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock(0)
    seen: list[tuple[str, int]] = []

    async def sleeper(name: str, instant_ms: int) -> None:
        await clock.sleep_until(instant_ms)
        with held(clock):
            await asyncio.to_thread(lambda: None)  # Real time passes.
            seen.append((name, clock.now_ms()))
        with held(clock), held(clock):
            await asyncio.to_thread(lambda: None)
        seen.append((name, clock.now_ms()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("a", 5))
        group.create_task(sleeper("b", 6))
        await clock.advance(100)

    assert seen == [("a", 5), ("a", 5), ("b", 6), ("b", 6)]
    assert clock.now_ms() == 100


async def test_a_clock_that_is_held_for_long_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "_HELD_WARNING_S", 0.01)
    clock = VirtualClock(7)
    warned = asyncio.Semaphore(0)

    def note(record: logging.LogRecord) -> bool:
        warned.release()
        return True

    caplog.handler.addFilter(note)
    clock.hold()
    moving = asyncio.create_task(clock.advance(1))
    await warned.acquire()
    await warned.acquire()
    clock.release()
    await moving

    assert caplog.text.count("clock is held now_ms=7 holds=1") >= 2
    assert clock.now_ms() == 8


async def test_moves_that_are_asked_for_at_once_follow_each_other() -> None:
    clock = VirtualClock(0)
    seen: list[int] = []

    async def sleeper(instant_ms: int) -> None:
        await clock.sleep_until(instant_ms)
        seen.append(clock.now_ms())

    async with asyncio.TaskGroup() as group:
        for instant_ms in (30, 10, 20):
            group.create_task(sleeper(instant_ms))
        for _ in range(3):
            group.create_task(clock.advance(10))

    assert seen == [10, 20, 30]
    assert clock.now_ms() == 30


async def test_two_clocks_of_one_loop_move_without_waiting_for_each_other() -> None:
    clocks = [VirtualClock(0), VirtualClock(0)]
    sleepers = [asyncio.create_task(clock.sleep_until(10)) for clock in clocks]

    started = asyncio.get_running_loop().time()
    await asyncio.gather(*(clock.advance(10) for clock in clocks))

    await asyncio.gather(*sleepers)
    assert asyncio.get_running_loop().time() - started < 20


@pytest.mark.parametrize("by_ms", [-1, STEP_MAX_MS + 1])
async def test_a_step_out_of_bounds_is_refused(by_ms: int) -> None:
    clock = VirtualClock(5)

    with pytest.raises(InvalidArgument, match=f"by_ms is {by_ms}"):
        await clock.advance(by_ms)

    assert clock.now_ms() == 5


async def test_work_that_does_not_end_is_logged_and_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "TURNS_MAX", 100)
    clock = VirtualClock(0)

    async def spin() -> None:
        while clock.now_ms() < 10:  # noqa: ASYNC110
            await asyncio.sleep(0)

    spinning = asyncio.create_task(spin())
    await clock.advance(10)

    await spinning
    assert "work of an instant does not end now_ms=0 turns=100" in caplog.text


async def test_a_move_that_is_cancelled_stays_where_it_was_and_the_next_goes_on() -> None:
    clock = VirtualClock(0)
    woken: list[int] = []
    first = asyncio.Event()

    async def sleeper(instant_ms: int) -> None:
        await clock.sleep_until(instant_ms)
        woken.append(clock.now_ms())
        if instant_ms == 10:
            clock.hold()
            first.set()

    async with asyncio.TaskGroup() as group:
        for instant_ms in (10, 20):
            group.create_task(sleeper(instant_ms))
        moving = asyncio.create_task(clock.advance(100))
        await first.wait()
        moving.cancel()
        await asyncio.wait((moving,))
        assert clock.now_ms() == 10
        clock.release()
        await clock.advance(10)

    assert woken == [10, 20]


async def test_time_may_begin_later_but_not_earlier() -> None:
    clock = VirtualClock(100)
    clock.start_at(50)
    assert clock.now_ms() == 100
    early, late = (asyncio.create_task(clock.sleep_until(instant)) for instant in (150, 300))
    await asyncio.sleep(0)

    clock.start_at(200)

    await early
    assert clock.now_ms() == 200
    assert not late.done()
    await clock.advance(100)
    await late


async def test_listeners_get_the_end_of_a_move_before_it_begins() -> None:
    clock = VirtualClock(100)
    seen: list[tuple[int, int]] = []
    clock.before_move.append(lambda target_ms: seen.append((clock.now_ms(), target_ms)))

    await clock.advance(50)
    await clock.advance(0)

    assert seen == [(100, 150), (150, 150)]


async def test_sleepers_that_were_cancelled_leave_nothing_behind() -> None:
    clock = VirtualClock(0)
    for _ in range(2000):
        sleeper = asyncio.create_task(clock.sleep_until(1_000_000))
        await asyncio.sleep(0)
        sleeper.cancel()
        await asyncio.wait((sleeper,))

    assert len(clock._sleepers) <= 64


@pytest.mark.slow
async def test_many_sleepers_do_not_make_a_move_slow() -> None:
    """As many instants as sleepers; a quadratic clock would take minutes."""
    clock = VirtualClock(0)
    count = 50_000
    woken: list[int] = []

    async def sleeper(instant_ms: int) -> None:
        await clock.sleep_until(instant_ms)
        woken.append(instant_ms)

    tasks = [asyncio.create_task(sleeper(instant_ms)) for instant_ms in range(count, 0, -1)]
    started = asyncio.get_running_loop().time()
    await clock.advance(count)

    assert woken == list(range(1, count + 1))
    assert asyncio.get_running_loop().time() - started < 20
    await asyncio.wait(tasks)


async def test_hours_with_a_handful_of_sleepers_take_milliseconds() -> None:
    clock = VirtualClock(0)
    hours = 5 * 3_600_000
    sleepers = [asyncio.create_task(clock.sleep_until(hours // n)) for n in range(1, 17)]
    started = asyncio.get_running_loop().time()

    await clock.advance(hours)

    assert asyncio.get_running_loop().time() - started < 20  # Measured: 0.3 ms.
    await asyncio.wait(sleepers)


async def test_a_clock_that_moves_by_itself_is_not_held() -> None:
    clock = SystemClock()
    with held(clock):
        await clock.sleep_until(clock.now_ms() + 2)
