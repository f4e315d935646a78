"""The verdict on one group in one queue, and its reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from pocketmq.tools.lag.rows import LagFacts, LagVerdict, is_retry_topic, judge

READ = LagFacts(
    topic="T", queue_id=0, group="G", committed_offset=10, min_offset=0, max_offset=10, now_ms=1_000
)


@pytest.mark.parametrize(
    ("facts", "verdict", "reason"),
    [
        (READ, LagVerdict.OK, "all read up to 10"),
        (replace(READ, committed_offset=0, max_offset=0), LagVerdict.OK, "the queue is empty"),
        (replace(READ, committed_offset=7), LagVerdict.LAGGING, "3 messages unread"),
        (replace(READ, committed_offset=9), LagVerdict.LAGGING, "1 message unread"),
        (
            replace(READ, committed_offset=7, stalled_ms=30_000),
            LagVerdict.STALLED,
            "3 messages unread, and no progress for 30 s",
        ),
        (
            replace(READ, committed_offset=7, min_offset=9),
            LagVerdict.EXPIRED_UNREAD,
            "2 messages before 9 went before the group read them",
        ),
        (
            replace(READ, committed_offset=2_011),
            LagVerdict.OFFSET_PAST_END,
            "2,001 messages beyond the end at 10: the store was cut or replaced",
        ),
        (
            replace(READ, min_offset=None, max_offset=None),
            LagVerdict.QUEUE_MISSING,
            "T has no queue 0",
        ),
        (
            replace(READ, committed_offset=None),
            LagVerdict.NEVER_COMMITTED,
            "the group has no offset in this queue; 10 messages in it",
        ),
        (
            replace(READ, committed_offset=None, max_offset=0),
            LagVerdict.NEVER_COMMITTED,
            "the group has no offset in this queue; it is empty",
        ),
        (
            replace(READ, topic="%RETRY%G", committed_offset=8),
            LagVerdict.RETRYING,
            "2 retried messages unread",
        ),
        (
            replace(READ, topic="%RETRY%G", delayed=4),
            LagVerdict.RETRYING,
            "4 messages waiting for the next try",
        ),
        (
            replace(READ, topic="%DLQ%G", committed_offset=None),
            LagVerdict.DEAD_LETTERS,
            "10 dead letters",
        ),
        (
            replace(READ, topic="%DLQ%G", committed_offset=9),
            LagVerdict.DEAD_LETTERS,
            "1 dead letter unread",
        ),
        (
            replace(READ, held=2, held_until_ms=5_000),
            LagVerdict.IN_FLIGHT,
            "2 messages popped and not acknowledged",
        ),
        (
            replace(READ, held=2, held_until_ms=1_000),
            LagVerdict.IN_FLIGHT,
            "2 messages popped and not acknowledged; their invisible time has ended: they will be redelivered",
        ),
        (
            replace(READ, delayed=5),
            LagVerdict.DELAYED,
            "5 messages for this queue waiting for their time",
        ),
    ],
)
def test_each_verdict_has_its_reason(facts: LagFacts, verdict: LagVerdict, reason: str) -> None:
    found, reasons = judge(facts)

    assert found is verdict
    assert reasons == (reason,)


def test_what_else_is_known_stands_behind() -> None:
    facts = replace(
        READ,
        committed_offset=4,
        unread_entries=5,
        held=1,
        held_until_ms=9_999,
        delayed=2,
        retries=3,
        dead_letters=1,
    )

    assert judge(facts) == (
        LagVerdict.LAGGING,
        (
            "6 messages unread",
            "1 unread message cannot be read: the queue has no entries for them",
            "1 message popped and not acknowledged",
            "2 messages for this queue waiting for their time",
            "3 messages of the group in its retry topics",
            "the group has 1 dead letter",
        ),
    )


@pytest.mark.parametrize(
    ("topic", "group", "is_its"),
    [
        ("%RETRY%G", "G", True),
        ("%RETRY%G_T", "G", True),
        ("%RETRY%G+T", "G", True),
        ("%RETRY%Ga", "G", False),
        ("%RETRY%G", "G_T", False),
        ("G", "G", False),
    ],
)
def test_retry_topics_belong_to_their_group(topic: str, group: str, is_its: bool) -> None:
    assert is_retry_topic(topic, group) is is_its


small = st.none() | st.integers(0, 5)


@given(
    st.builds(
        LagFacts,
        topic=st.sampled_from(["T", "%RETRY%G", "%DLQ%G"]),
        queue_id=st.just(0),
        group=st.just("G"),
        committed_offset=small,
        min_offset=small,
        max_offset=small,
        unread_entries=small,
        delayed=small,
        held=small,
        held_until_ms=small,
        retries=small,
        dead_letters=small,
        stalled_ms=small,
    )
)
def test_a_verdict_never_contradicts_the_offsets(facts: LagFacts) -> None:
    verdict, reasons = judge(facts)

    low, high, at = facts.min_offset, facts.max_offset, facts.committed_offset
    assert (verdict is LagVerdict.QUEUE_MISSING) == (high is None)
    if high is not None and at is not None:
        assert (verdict is LagVerdict.OFFSET_PAST_END) == (at > high)
        lost = low is not None and at < low and at <= high
        assert (verdict is LagVerdict.EXPIRED_UNREAD) == lost
        assert (verdict is LagVerdict.OK) <= (at == high)
    assert facts.lag is None or facts.lag >= 0
    assert reasons
    assert all(reasons)


@pytest.mark.parametrize(
    ("committed", "low", "high", "lag"),
    [(4, 0, 10, 6), (4, 6, 10, 4), (None, 6, 10, 4), (None, None, 10, 10), (12, 0, 10, 0)],
)
def test_lag_is_what_is_there_and_not_finished(
    committed: int | None, low: int | None, high: int, lag: int
) -> None:
    facts = replace(READ, committed_offset=committed, min_offset=low, max_offset=high)

    assert facts.lag == lag


def test_a_group_does_not_read_its_dead_letters() -> None:
    facts = replace(READ, topic="%DLQ%G", group="G", committed_offset=None, max_offset=3)

    assert facts.lag is None


def test_what_filters_stepped_over_is_told() -> None:
    assert judge(replace(READ, skipped=23))[1] == (
        "all read up to 10",
        "23 messages skipped by the group's filters",
    )
