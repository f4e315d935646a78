"""Which of Spark's filters a scan takes over, and what they mean to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pocketmq.tools.spark.store_filters import Wanted
from pocketmq.tools.stores.scan.conditions import Conditions, Span

MOMENT = datetime(2026, 11, 21, 12, tzinfo=UTC)
MOMENT_MS = round(MOMENT.timestamp() * 1000)


def taken(filter: Filter, dataset: str = "messages", **options: bool) -> Wanted:
    found = Wanted().taking(filter, dataset, **options)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("filter", "span"),
    [
        (EqualTo(("queue_offset",), 5), Span(5, 5)),
        (EqualNullSafe(("queue_offset",), 5), Span(5, 5)),
        (GreaterThan(("queue_offset",), 5), Span(low=6)),
        (GreaterThanOrEqual(("queue_offset",), 5), Span(low=5)),
        (LessThan(("queue_offset",), 5), Span(high=4)),
        (LessThanOrEqual(("queue_offset",), 5), Span(high=5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_comparisons_of_numbers_are_spans(filter: Filter, span: Span) -> None:
    assert taken(filter).conditions.queue_offsets == span


@pytest.mark.parametrize("micros", [0, 1, 999])
@pytest.mark.parametrize("stored_ms", [MOMENT_MS - 1, MOMENT_MS, MOMENT_MS + 1])
@pytest.mark.parametrize(
    ("kind", "compare"),
    [
        (GreaterThan, lambda a, b: a > b),
        (GreaterThanOrEqual, lambda a, b: a >= b),
        (LessThan, lambda a, b: a < b),
        (LessThanOrEqual, lambda a, b: a <= b),
        (EqualTo, lambda a, b: a == b),
    ],
    ids=["above", "from", "below", "to", "equal"],
)
def test_times_are_compared_to_the_microsecond(
    kind: type, compare: Any, stored_ms: int, micros: int
) -> None:
    value = MOMENT + timedelta(microseconds=micros)

    span = taken(kind(("store_timestamp",), value)).conditions.store_ms

    assert span.meets(stored_ms, stored_ms) == compare(stored_ms * 1000, MOMENT_MS * 1000 + micros)


def test_several_filters_hold_together() -> None:
    wanted = taken(In(("topic",), ("A", "B")))
    for filter in (
        EqualTo(("topic",), "B"),
        EqualTo(("queue",), 3),
        EqualTo(("broker",), "b"),
    ):
        after = wanted.taking(filter, "messages")
        assert after is not None
        wanted = after

    assert wanted.conditions == Conditions(topics=frozenset({"B"}), queue_ids=frozenset({3}))
    assert wanted.wants_broker("b")
    assert not wanted.wants_broker("c")


@pytest.mark.parametrize(
    ("filter", "dataset"),
    [
        (EqualTo(("tags",), "a"), "messages"),
        (EqualTo(("topic",), 5), "messages"),
        (EqualTo(("queue_offset",), None), "messages"),
        (EqualTo(("properties", "a"), "b"), "messages"),
        (Not(EqualTo(("topic",), "a")), "messages"),
        (StringStartsWith(("topic",), "a"), "messages"),
        (GreaterThan(("store_timestamp",), MOMENT.replace(tzinfo=None)), "messages"),
        (EqualTo(("store_timestamp",), MOMENT), "consumequeue"),
        (EqualTo(("topic",), "a"), "lag"),
        (EqualTo(("queue_offset",), 1), "files"),
    ],
    ids=str,
)
def test_all_other_filters_stay_with_spark(filter: Filter, dataset: str) -> None:
    assert Wanted().taking(filter, dataset) is None


def test_nulls_are_told_from_rows_of_bad_records() -> None:
    assert taken(IsNotNull(("topic",))) == Wanted()
    assert taken(IsNotNull(("log_offset",)), bad_rows=True) == Wanted()
    assert Wanted().taking(IsNotNull(("topic",)), "messages", bad_rows=True) is None
    assert Wanted().taking(IsNotNull(("tags",)), "messages") is None
