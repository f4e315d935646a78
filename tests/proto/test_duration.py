"""Lengths of time as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.time_text import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("3d", 259_200_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1m1ms", 60_001),
        ("0s", 0),
    ],
)
def test_units_add_up(text: str, expected_ms: int) -> None:
    assert parse_duration(text) == expected_ms


@pytest.mark.parametrize(
    "text", ["", "5", "h", "-1s", "1.5h", "2 hours", "1x", "s1", "1e3s", "١s", "9" * 16 + "s"]
)
def test_anything_else_is_refused_with_the_field_named(text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_duration(text, field="delay")
    assert raised.value.details["field"] == "delay"
    assert "delay" in raised.value.message


@given(st.integers(0, 10**14))
def test_what_is_formatted_is_read_again(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms
