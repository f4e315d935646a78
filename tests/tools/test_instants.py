"""Instants that lie behind, as they are written on a command line."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pocketmq.proto.errors import InvalidArgument
from pocketmq.tools.instants import past_instant_of


def as_utc(named: datetime) -> datetime:
    return named.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant_ms"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20.5Z", 1_700_000_000_500),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
    ],
)
def test_times_and_milliseconds_are_read(text: str, instant_ms: int) -> None:
    assert past_instant_of(text, as_utc) == instant_ms


@pytest.mark.parametrize("text", ["1764331200", "100000000", "99999999999"])
def test_unix_seconds_are_refused_with_the_milliseconds(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Unix seconds: write milliseconds, {text}000"):
        past_instant_of(text, as_utc)


@pytest.mark.parametrize("text", ["", "yesterday", "18:00", "-5", "9" * 17])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a time"):
        past_instant_of(text, as_utc)
