"""What `pocketmq connections` makes of figures for people."""

from __future__ import annotations

import pytest

from pocketmq.tools.connections import age_text, busiest, bytes_text

from ..proto.services.counting import figures


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5_678_901, "5.7 MB"),
        (3 * 10**12, "3.0 TB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_bytes_have_one_decimal_in_the_unit_that_fits(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (0, "0.0s"),
        (440, "0.4s"),
        (10_000, "10s"),
        (59_999, "59s"),
        (60_000, "1m"),
        (3_599_999, "59m"),
        (3_600_000, "1h"),
        (86_400_000, "1d"),
        (40 * 86_400_000, "40d"),
    ],
)
def test_an_age_is_told_in_its_largest_unit(age_ms: int, text: str) -> None:
    assert age_text(age_ms) == text


def test_the_busiest_come_first_and_equal_ones_as_they_were_opened() -> None:
    found = (figures(1, calls_begun=5), figures(2, calls_begun=9), figures(3, calls_begun=5))

    assert [one.id for one in busiest(found)] == [2, 1, 3]
