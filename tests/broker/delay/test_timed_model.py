"""Timed messages against a plain model: any order of sending, recalling, waiting, stopping and being killed."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from pocketmq.proto.clock import VirtualClock

from .test_timed import START_MS, Delays

pytestmark = pytest.mark.long

#: What may be delivered again after a kill, if it is not noted: what was so shortly before it.
AGAIN_MS = 4_000
WINDOW_SLOTS = 12

Step = tuple[str, int, int]

delays_ms = st.one_of(
    st.integers(-3_000, 6_000),
    st.integers(1, 1_500),
    st.integers(8_000, 45_000),
    st.sampled_from([750, 1_750, 1_751, WINDOW_SLOTS * 1_000]),
)
steps = st.one_of(
    st.tuples(st.just("send"), delays_ms, st.integers(1, 12)),
    st.tuples(st.just("send"), delays_ms, st.integers(1, 3)),
    st.tuples(st.just("recall"), st.integers(0, 200), st.just(0)),
    st.tuples(st.just("advance"), st.integers(0, 4_000), st.just(0)),
    st.tuples(st.just("advance"), st.integers(0, 60), st.just(0)),
    st.tuples(st.sampled_from(["stop", "kill"]), st.sampled_from([0, 3, 700, 20_000]), st.just(0)),
)


@dataclass
class Sent:
    """A message; ROLLED: it goes back to the timer topic once, at least.

    LATEST_MS is when it is to be delivered at the latest: it was sent late, or the broker was down.
    """

    body: bytes
    due_ms: int
    latest_ms: int
    rolled: bool = False
    recalled: bool = False
    may_come_again: bool = False


@dataclass
class Model:
    path: Path
    delays: Delays
    with_note: bool
    sent: list[Sent] = field(default_factory=list)

    @property
    def now_ms(self) -> int:
        return self.delays.elapsed_ms

    def send(self, after_ms: int, count: int) -> None:
        due_ms = self.now_ms + after_ms
        made = [
            Sent(
                b"%d" % (len(self.sent) + n),
                due_ms + n % 3,
                max(due_ms + n % 3, self.now_ms),
                rolled=after_ms + n % 3 >= (WINDOW_SLOTS - 1) * 1_000,
            )
            for n in range(count)
        ]
        self.sent += made
        for one in made:
            self.delays.send(one.body, one.due_ms, UNIQ_KEY=f"ID{one.body.decode()}")

    def recall(self, choice: int) -> None:
        ahead = [one for one in self.sent if one.due_ms > self.now_ms and not one.recalled]
        if ahead:
            chosen = ahead[choice % len(ahead)]
            chosen.recalled = True
            self.delays.recall(f"ID{chosen.body.decode()}", chosen.due_ms)

    async def restart(self, down_ms: int, *, kill: bool) -> None:
        if kill:
            await self.delays.kill()
            for one in [] if self.with_note else self.sent:
                one.may_come_again |= self.now_ms - AGAIN_MS <= one.latest_ms <= self.now_ms
                one.may_come_again |= one.rolled  # It may have been sent on shortly before.
        else:
            await self.delays.stop()
        stopped_ms = self.now_ms
        clock = VirtualClock(self.delays.clock.now_ms() + down_ms)
        self.delays = begin(self.path, clock, with_note=self.with_note)
        for one in self.sent:
            if one.latest_ms >= stopped_ms:
                one.latest_ms = max(one.latest_ms, self.now_ms)

    def check(self) -> None:
        """Compare what was delivered with what was to be, by the end of all delays."""
        found: dict[bytes, list[int]] = {}
        for at_ms, body in self.delays.delivered():
            found.setdefault(body, []).append(at_ms)
        for one in self.sent:
            instants = found.pop(one.body, [])
            if one.recalled:
                assert instants == [], f"{one} was recalled"
            elif one.may_come_again:
                assert instants, f"{one} is lost"
                assert instants[0] >= one.due_ms
            else:
                assert len(instants) == 1, f"{one} came at {instants}"
                assert one.due_ms <= instants[0] <= one.latest_ms
        assert not found
        assert self.delays.timed.waiting == 0


def begin(path: Path, clock: VirtualClock, *, with_note: bool) -> Delays:
    delays = Delays(path, clock, with_note=with_note, timer_roll_window_slots=WINDOW_SLOTS)
    delays.timers.every(500, delays.store.tick)
    return delays


async def play(path: Path, plan: list[Step], *, with_note: bool) -> None:
    delays = begin(path, VirtualClock(START_MS), with_note=with_note)
    model = Model(path, delays, with_note)
    for name, number, count in plan:
        if name == "send":
            model.send(number, count)
        elif name == "recall":
            model.recall(number)
        elif name == "advance":
            await model.delays.clock.advance(number)
        else:
            await model.restart(number, kill=name == "kill")
    await model.delays.clock.advance(60_000)
    model.check()
    await model.delays.stop()


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(steps, min_size=1, max_size=25))
@example(plan=[("send", 1_000, 9), ("advance", 1_001, 0), ("stop", 3, 0), ("kill", 0, 0)])
@example(plan=[("send", 14_000, 9), ("advance", 4_000, 0), ("recall", 2, 0), ("kill", 20_000, 0)])
def test_nothing_is_lost_or_early_and_twice_only_after_a_kill(plan: list[Step]) -> None:
    with tempfile.TemporaryDirectory(prefix="pocketmq-timed-") as folder:
        asyncio.run(play(Path(folder) / "store", plan, with_note=False))


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(steps, min_size=1, max_size=25))
@example(plan=[("send", 1_000, 9), ("advance", 1_001, 0), ("kill", 3, 0), ("kill", 700, 0)])
@example(plan=[("send", -500, 9), ("advance", 60, 0), ("kill", 0, 0), ("send", -500, 3)])
@example(plan=[("send", 0, 1), ("advance", 0, 0), ("kill", 0, 0), ("stop", 0, 0)])
@example(plan=[("send", 19_999, 3), ("stop", 20_000, 0), ("advance", 0, 0), ("kill", 0, 0)])
def test_where_each_chunk_is_noted_nothing_comes_twice_even_after_kills(plan: list[Step]) -> None:
    with tempfile.TemporaryDirectory(prefix="pocketmq-timed-") as folder:
        asyncio.run(play(Path(folder) / "store", plan, with_note=True))
