"""The proof that a moved clock is like time: generated schedules give the same order of events under both.

10,000 schedules run at once on one set of timers, first in real time that goes two thousand times faster, then under
the virtual clock. A schedule has single timers, chains (each link armed by the one before), periodic ones, some that
are cancelled and some that are moved by others, and tasks that sleep on the clock itself. What jitter blurs is not
compared: timers fire by deadline, instant by instant, however late the loop is, so their sequence over all schedules
is compared whole; the same for the sleeping tasks, each with an instant of its own, which the event loop wakes by
deadline. Under the virtual clock every event must also come at its own instant, and the two kinds in one order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.timing.timing_wheel import Timer
from pocketmq.proto.clock import Clock, VirtualClock

SCHEDULES = 10_000
SEED = 20_261_121
START_MS = 1_700_000_000_000
#: Messages' time in which schedules begin: 40 minutes, which are 1.2 s at FACTOR; chains may take as long again.
SPAN_MS = 2_400_000
FACTOR = 2_000

#: (schedule, name of the event, instant that it was meant for)
Event = tuple[int, str, int]


class ScaledClock:
    """Real time, FACTOR times faster; it stands at START_MS until it begins."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self.on_step: list[Callable[[], None]] = []

    def begin(self) -> None:
        self._began = self._loop.time()

    def now_ms(self) -> int:
        if self._began is None:
            return START_MS
        return START_MS + int((self._loop.time() - self._began) * 1000 * FACTOR)

    def unix_ms(self) -> int:
        return self.now_ms()

    async def sleep_until(self, instant_ms: int) -> None:
        assert self._began is not None, "begin first"
        woken = self._loop.create_future()
        # A hair later: what `now_ms` rounds down must not be before INSTANT_MS.
        after_s = (instant_ms - START_MS + 0.5) / 1000 / FACTOR
        handle = self._loop.call_at(self._began + after_s, woken.set_result, None)
        try:
            await woken
        finally:
            handle.cancel()

    def hold(self) -> None:
        """Time passes anyway."""

    def release(self) -> None:
        """Time passes anyway."""


@dataclass(frozen=True)
class Schedule:
    """What happens in one schedule; instants in milliseconds from the start."""

    number: int
    singles: list[int]
    #: First instant, and the gaps from link to link.
    chains: list[tuple[int, list[int]]]
    #: Period and number of calls.
    periodic: list[tuple[int, int]]
    #: At the first instant the single of this number is cancelled, or moved to the last one (None: cancelled).
    changes: list[tuple[int, int, int | None]]
    sleepers: list[int]

    @classmethod
    def generate(cls, number: int, random: Random, sleepers: list[int]) -> Schedule:
        def instant() -> int:
            # Many equal ones, so that the order among equals counts; and fine ones.
            coarse = random.random() < 0.5
            return (
                random.randrange(1, SPAN_MS // 60_000) * 60_000
                if coarse
                else random.randrange(SPAN_MS)
            )

        singles = [instant() for _ in range(random.randint(1, 3))]
        return cls(
            number=number,
            singles=singles,
            chains=[
                (
                    instant(),
                    [random.choice((0, 1, 63, 64, 1000, 60_000, 600_000)) for _ in range(3)],
                )
                for _ in range(random.randint(0, 1))
            ],
            periodic=[
                (random.choice((60_000, 90_001, 600_000)), random.randint(1, 3))
                for _ in range(random.randint(0, 1))
            ],
            changes=[
                (
                    instant(),
                    random.randrange(len(singles)),
                    random.choice((None, SPAN_MS - 1, instant())),
                )
                for _ in range(random.randint(0, 2))
            ],
            sleepers=sleepers,
        )


@dataclass
class Run:
    """Schedules on a clock, and what happened in which order."""

    clock: Clock
    timers: Timers
    fired: list[Event] = field(default_factory=list)
    woken: list[Event] = field(default_factory=list)
    #: Both kinds, with the clock's time.
    all: list[tuple[int, Event]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def note(self, events: list[Event], schedule: Schedule, name: str, instant_ms: int) -> None:
        event = (schedule.number, name, instant_ms)
        events.append(event)
        self.all.append((self.clock.now_ms() - START_MS, event))

    def set_up(self, schedule: Schedule) -> None:
        singles = [
            self._single(schedule, f"single {at}", instant_ms)
            for at, instant_ms in enumerate(schedule.singles)
        ]
        for at, (first_ms, gaps) in enumerate(schedule.chains):
            self._link(schedule, f"chain {at}", first_ms, gaps)
        for at, (period_ms, calls) in enumerate(schedule.periodic):
            self._every(schedule, f"every {at}", period_ms, calls)
        for instant_ms, target, new_ms in schedule.changes:
            self._change(schedule, instant_ms, singles[target], new_ms)
        for at, instant_ms in enumerate(schedule.sleepers):
            self.tasks.append(
                asyncio.create_task(self._sleep(schedule, f"sleeper {at}", instant_ms))
            )

    def _single(self, schedule: Schedule, name: str, instant_ms: int) -> Timer:
        def fire() -> None:
            self.note(self.fired, schedule, name, timer.deadline_ms - START_MS)

        timer = self.timers.at(START_MS + instant_ms, fire)
        return timer

    def _link(self, schedule: Schedule, name: str, instant_ms: int, gaps: list[int]) -> None:
        def fire() -> None:
            self.note(self.fired, schedule, name, instant_ms)
            if gaps:
                self._link(schedule, f"{name}.", instant_ms + gaps[0], gaps[1:])

        self.timers.at(START_MS + instant_ms, fire)

    def _every(self, schedule: Schedule, name: str, period_ms: int, calls: int) -> None:
        """Periodic, as `Timers.every` is when it is in time: each call counts from the deadline before."""

        def fire() -> None:
            self.note(self.fired, schedule, name, timer.deadline_ms - START_MS)
            if timer.deadline_ms < START_MS + calls * period_ms:
                self.timers.reschedule(timer, timer.deadline_ms + period_ms)

        timer = self.timers.at(START_MS + period_ms, fire)

    def _change(
        self, schedule: Schedule, instant_ms: int, target: Timer, new_ms: int | None
    ) -> None:
        def fire() -> None:
            if new_ms is None:
                done = self.timers.cancel(target)
            else:
                done = target.active
                if done:
                    self.timers.reschedule(target, START_MS + max(new_ms, instant_ms))
            self.note(self.fired, schedule, f"change {done}", instant_ms)

        self.timers.at(START_MS + instant_ms, fire)

    async def _sleep(self, schedule: Schedule, name: str, instant_ms: int) -> None:
        await self.clock.sleep_until(START_MS + instant_ms)
        self.note(self.woken, schedule, name, instant_ms)


def schedules(count: int) -> list[Schedule]:
    random = Random(SEED)
    sleepers = random.sample(range(1, SPAN_MS), count)
    return [
        Schedule.generate(number, random, [sleepers.pop() for _ in range(number % 3 // 2 * 3)])
        for number in range(count)
    ]


async def under_scaled_time(plans: list[Schedule], count: int) -> Run:
    """Run PLANS until COUNT timers have fired: a busy machine may need longer than the schedules are."""
    clock = ScaledClock()
    run = Run(clock, Timers(clock))
    for plan in plans:
        run.set_up(plan)
    # Setting up took a while in which no time may pass.
    clock.begin()
    run.timers.start()
    await clock.sleep_until(START_MS + 2 * SPAN_MS)
    while len(run.fired) < count:
        await clock.sleep_until(clock.now_ms() + SPAN_MS)
    await asyncio.wait(run.tasks)
    await run.timers.stop()
    return run


async def under_the_virtual_clock(plans: list[Schedule], clock: VirtualClock | None = None) -> Run:
    clock = clock or VirtualClock(START_MS)
    run = Run(clock, Timers(clock))
    for plan in plans:
        run.set_up(plan)
    run.timers.start()
    await clock.advance(SPAN_MS // 3)
    await clock.advance(0)
    await clock.advance(2 * SPAN_MS)
    await asyncio.wait(run.tasks)
    await run.timers.stop()
    return run


def difference(scaled: Run, virtual: Run) -> str:
    """Return what differs, "" if nothing does."""
    for kind, one, other in (
        ("timers", scaled.fired, virtual.fired),
        ("sleepers", scaled.woken, virtual.woken),
    ):
        if one != other:
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)
            return f"{kind} differ at {at}: {one[at : at + 3]} and {other[at : at + 3]}"
    for now_ms, event in virtual.all:
        if now_ms != event[2]:
            return f"{event} came at {now_ms}"
    instants = [now_ms for now_ms, _ in virtual.all]
    return "" if instants == sorted(instants) else "time went back"


@pytest.mark.long
async def test_ten_thousand_schedules_have_one_order_in_scaled_time_and_on_the_virtual_clock() -> (
    None
):
    plans = schedules(SCHEDULES)

    virtual = await under_the_virtual_clock(plans)
    scaled = await under_scaled_time(plans, len(virtual.fired))

    assert difference(scaled, virtual) == ""
    assert len(virtual.all) > 4 * SCHEDULES
    assert all(now_ms >= event[2] for now_ms, event in scaled.all), "nothing may be early"


class JumpingClock(VirtualClock):
    """Broken: it wakes everybody in order, but at the end of the move."""

    async def advance(self, by_ms: int) -> None:
        await self._rest()
        self._now_ms += by_ms
        while (instant_ms := self._next_instant()) is not None and instant_ms <= self._now_ms:
            self._wake(instant_ms)
            await self._settle()


class UnorderedClock(VirtualClock):
    """Broken: it wakes the latest of those first who sleep when a move begins."""

    async def advance(self, by_ms: int) -> None:
        await self._rest()
        target_ms = self._now_ms + by_ms
        due = sorted((entry for entry in self._sleepers if entry[0] <= target_ms), reverse=True)
        for instant_ms, _, woken in due:
            self._now_ms = instant_ms
            if not woken.done():
                woken.set_result(None)
            await self._settle()
        await super().advance(target_ms - self._now_ms)


@pytest.mark.parametrize(
    ("broken", "found"),
    [(JumpingClock, "came at"), (UnorderedClock, "differ at")],
)
async def test_the_proof_finds_a_clock_that_is_wrong(
    broken: type[VirtualClock], found: str
) -> None:
    plans = schedules(200)
    right = await under_the_virtual_clock(plans)

    wrong = await under_the_virtual_clock(plans, broken(START_MS))

    assert difference(right, right) == ""
    assert found in difference(right, wrong)
