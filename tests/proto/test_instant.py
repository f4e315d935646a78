"""Instants for people."""

import pytest

from pocketmq.proto.time_text import format_instant


@pytest.mark.parametrize(
    ("instant_ms", "text"),
    [
        (0, "1970-01-01 00:00:00.000Z"),
        (1_798_131_600_007, "2026-12-24 17:00:00.007Z"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000 ms"),
        (-1, "-1 ms"),
        (10**18, "1000000000000000000 ms"),
    ],
)
def test_an_instant_is_told_in_utc_and_one_that_no_calendar_has_as_it_is(
    instant_ms: int, text: str
) -> None:
    assert format_instant(instant_ms) == text
