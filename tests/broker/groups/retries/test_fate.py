"""What becomes of a failed message: when it comes again, or that it is dead."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.delay_rules import DelayLimits
from pocketmq.broker.groups.retries import REASON_BYTES_MAX, Fate, fate_of
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.format.state_tables import GroupConfig

from .retrying import CLASSIC, HOUR, RULES, SECOND


class TestFate:
    """What becomes of a failed message, without a broker."""

    @pytest.mark.parametrize(("times", "wait_ms"), list(enumerate(CLASSIC)))
    def test_the_nth_retry_waits_as_long_as_apaches(self, times: int, wait_ms: int) -> None:
        fate = fate_of(times, pb.SendBackRequest(), GroupConfig(name="g"), RULES)

        assert fate == Fate(level=times + 3)
        assert RULES.levels_ms[fate.level - 1] == wait_ms

    def test_after_sixteen_retries_it_is_dead_or_comes_every_two_hours(self) -> None:
        request = pb.SendBackRequest()

        assert fate_of(16, request, GroupConfig(name="g"), RULES).reason == "failed 17 times"
        patient = GroupConfig(name="g", retry_times_max=100)
        assert {fate_of(times, request, patient, RULES).level for times in range(15, 100)} == {18}
        assert fate_of(100, request, patient, RULES).reason == "failed 101 times"
        impatient = GroupConfig(name="g", retry_times_max=0)
        assert fate_of(0, request, impatient, RULES).reason == "failed once"

    def test_the_consumers_own_number_of_retries_counts_before_the_groups(self) -> None:
        group = GroupConfig(name="g", retry_times_max=1)

        assert fate_of(3, pb.SendBackRequest(retry_max_times=4), group, RULES).level == 6
        assert fate_of(0, pb.SendBackRequest(retry_max_times=0), group, RULES).reason

    def test_a_negative_level_is_dead_at_once(self) -> None:
        fate = fate_of(0, pb.SendBackRequest(delay_level=-1), GroupConfig(name="g"), RULES)

        assert fate.reason == "sent to the dead letters by the consumer"

    @pytest.mark.parametrize(("asked", "level"), [(1, 1), (18, 18), (19, 18), (1 << 30, 18)])
    def test_a_level_that_is_asked_for_counts_and_is_at_most_the_highest(
        self, asked: int, level: int
    ) -> None:
        request = pb.SendBackRequest(delay_level=asked)

        assert fate_of(7, request, with_intervals([123_000]), RULES) == Fate(level=level)

    def test_own_intervals_take_the_level_of_their_length_or_the_timer(self) -> None:
        group = with_intervals([15 * SECOND, 10 * SECOND, 2 * HOUR])

        fates = [fate_of(times, pb.SendBackRequest(), group, RULES) for times in range(5)]

        assert fates == [Fate(wait_ms=15_000), *map(of_level, (3, 18, 18, 18))]

    def test_an_interval_beyond_what_the_broker_allows_is_shortened(self) -> None:
        rules = DelayLimits(RULES.levels_ms, 1_000, HOUR + 1)

        assert fate_of(0, pb.SendBackRequest(), with_intervals([9 * HOUR]), rules).wait_ms == (
            HOUR + 1
        )

    @given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 31), (1 << 31) - 1))
    def test_whatever_a_record_and_a_consumer_say_it_is_dead_or_has_a_level(
        self, times: int, asked: int
    ) -> None:
        fate = fate_of(times, pb.SendBackRequest(delay_level=asked), GroupConfig(name="g"), RULES)

        assert bool(fate.reason) == (asked < 0 or times >= 16)
        assert fate.reason or 1 <= fate.level <= 18

    @given(st.text(st.characters(codec="utf-8"), max_size=3_000))
    def test_a_reason_is_one_line_that_a_property_can_hold(self, text: str) -> None:
        request = pb.SendBackRequest(delay_level=-1, reason=text)

        reason = fate_of(0, request, GroupConfig(name="g"), RULES).reason

        assert reason
        assert reason.isprintable()
        assert len(reason.encode()) <= REASON_BYTES_MAX
        if text.isprintable() and text.strip() and len(text.encode()) <= REASON_BYTES_MAX:
            assert reason == text.strip()


def of_level(level: int) -> Fate:
    return Fate(level=level)


def with_intervals(intervals: list[int]) -> GroupConfig:
    return GroupConfig(
        name="g",
        retry_policy={
            "type": "CUSTOMIZED",
            "customizedRetryPolicy": {"next": [*[intervals[0]] * 2, *intervals]},
        },
    )
