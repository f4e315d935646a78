"""The timing wheel against a sorted list."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pocketmq.broker.timing.timing_wheel import WHEEL_SIZE, Timer, TimingWheel

_START_MS = 1_000_003
_AHEAD_MS = st.integers(-50, 100) | st.integers(0, 10**6) | st.integers(0, 10**11)


def _wheels(tick_ms: int, size: int) -> int:
    """Return how many wheels reach as far as the deadlines of these tests: 10¹¹ ms."""
    wheels, interval_ms = 1, tick_ms * size
    while interval_ms <= 10**11:
        wheels, interval_ms = wheels + 1, interval_ms * size
    return wheels + 1


class WheelModel(RuleBasedStateMachine):
    """Whatever is added, moved and cancelled: each timer fires once, at its deadline, in order."""

    tick_ms = 1
    size = WHEEL_SIZE

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = _START_MS
        self.wheel = TimingWheel(self.now_ms, tick_ms=self.tick_ms, wheel_size=self.size)
        #: In the order of adding; re-scheduling counts as adding.
        self.pending: list[Timer] = []

    @rule(ahead_ms=_AHEAD_MS)
    def add(self, ahead_ms: int) -> None:
        self.pending.append(self.wheel.add(self.now_ms + ahead_ms, lambda: None))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        timer = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))

        assert self.wheel.cancel(timer)
        assert not self.wheel.cancel(timer)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), ahead_ms=_AHEAD_MS)
    def reschedule(self, data: st.DataObject, ahead_ms: int) -> None:
        timer = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.wheel.reschedule(timer, self.now_ms + ahead_ms)
        self.pending.append(timer)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def add_beside(self, data: st.DataObject) -> None:
        """Equal deadlines come together from different wheels."""
        other = data.draw(st.sampled_from(self.pending))
        self.pending.append(self.wheel.add(other.deadline_ms, lambda: None))

    @rule(ahead_ms=_AHEAD_MS)
    def reschedule_one_that_is_out(self, ahead_ms: int) -> None:
        timer = self.wheel.add(self.now_ms + 1, lambda: None)
        self.wheel.cancel(timer)
        self.wheel.reschedule(timer, self.now_ms + ahead_ms)
        self.pending.append(timer)

    @rule(by_ms=_AHEAD_MS)
    def advance(self, by_ms: int) -> None:
        self.now_ms += max(0, by_ms)
        self._fire()

    @precondition(lambda self: self.pending)
    @rule()
    def advance_to_the_next_expiry(self) -> None:
        next_ms = self.wheel.next_expiry_ms()
        assert next_ms is not None
        self.now_ms = max(self.now_ms, next_ms)
        self._fire()

    def _fire(self) -> None:
        due = self.wheel.advance(self.now_ms)

        # The sorted list; `sorted` keeps the order of adding among equals.
        expected = sorted(
            (timer for timer in self.pending if self._instant(timer) <= self.now_ms),
            key=lambda timer: timer.deadline_ms,
        )
        # Where a tick is longer than a millisecond, others of the tick may come with them.
        assert [timer for timer in due if self._instant(timer) <= self.now_ms] == expected
        assert all(timer.deadline_ms <= self.now_ms for timer in due)
        assert set(due) <= set(self.pending)
        assert self.tick_ms > 1 or due == expected
        assert not any(timer.active for timer in due)
        self.pending = [timer for timer in self.pending if timer not in set(due)]

    def _instant(self, timer: Timer) -> int:
        return -(-timer.deadline_ms // self.tick_ms) * self.tick_ms

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.wheel) == len(self.pending)

    @invariant()
    def the_delay_queue_is_bounded(self) -> None:
        assert self.wheel.queue_length <= self.size * _wheels(self.tick_ms, self.size)

    @invariant()
    def the_next_expiry_is_never_late(self) -> None:
        next_ms = self.wheel.next_expiry_ms()
        earliest = min((self._instant(timer) for timer in self.pending), default=None)
        if earliest is None:
            assert next_ms is None
        else:
            assert next_ms is not None
            assert next_ms <= max(earliest, self.now_ms)


class SmallWheelModel(WheelModel):
    tick_ms = 3
    size = 2


TestWheel = WheelModel.TestCase
TestWheel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSmallWheel = SmallWheelModel.TestCase
TestSmallWheel.settings = TestWheel.settings


def test_equal_deadlines_fire_in_the_order_of_adding() -> None:
    wheel = TimingWheel(0)
    timers = [wheel.add(500, lambda: None) for _ in range(5)]

    assert wheel.advance(499) == []
    assert wheel.advance(500) == timers


def test_equal_deadlines_keep_their_order_when_the_older_came_from_a_higher_wheel() -> None:
    wheel = TimingWheel(0)
    older = wheel.add(600, lambda: None)  # Beyond the lowest wheel.
    assert wheel.advance(100) == []
    younger = wheel.add(600, lambda: None)  # Within it.
    moved = wheel.add(590, lambda: None)
    wheel.reschedule(moved, 600)

    assert wheel.advance(550) == []  # Here the older one comes down, behind the younger.
    assert wheel.advance(700) == [older, younger, moved]


@pytest.mark.parametrize("ahead_ms", [1, 30_000, 86_400_000])
def test_adding_and_cancelling_leaves_nothing_behind(ahead_ms: int) -> None:
    wheel = TimingWheel(0)
    longest = 0
    for now_ms in range(100_000):  # A long poll a millisecond, each answered before its deadline.
        wheel.cancel(wheel.add(now_ms + ahead_ms, lambda: None))
        longest = max(longest, wheel.queue_length)
        if now_ms % 7 == 0:
            assert wheel.advance(now_ms) == []

    assert longest <= 5 * WHEEL_SIZE
    assert wheel.next_expiry_ms() is None
    assert (len(wheel), wheel.queue_length) == (0, 0)


def test_a_timer_that_is_moved_again_and_again_leaves_nothing_behind() -> None:
    wheel = TimingWheel(0)
    timer = wheel.add(1, lambda: None)
    for now_ms in range(50_000):
        wheel.reschedule(timer, now_ms + 10_000)
        assert wheel.advance(now_ms) == []

    assert len(wheel) == 1
    assert wheel.queue_length <= 5 * WHEEL_SIZE
    assert wheel.advance(59_999) == [timer]


def test_the_worked_example_of_the_class_comment() -> None:
    wheel = TimingWheel(0, tick_ms=1, wheel_size=4)
    two, seven = wheel.add(2, lambda: None), wheel.add(7, lambda: None)

    assert wheel.next_expiry_ms() == 2
    assert wheel.advance(2) == [two]
    assert wheel.next_expiry_ms() == 4
    assert wheel.advance(4) == []
    assert wheel.next_expiry_ms() == 7
    eight = wheel.add(8, lambda: None)
    assert wheel.advance(7) == [seven]
    assert wheel.advance(8) == [eight]
    assert wheel.next_expiry_ms() is None


@pytest.mark.parametrize("by_ms", [1, 10**12])
def test_a_deadline_that_has_passed_fires_at_the_next_advance(by_ms: int) -> None:
    wheel = TimingWheel(1000)
    late = wheel.add(5, lambda: None)

    assert wheel.advance(1000 + by_ms) == [late]
