"""Values of options that several commands share."""

from __future__ import annotations

import click
import pytest

from pocketmq.tools.options import Seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("1.5", 1.5), ("90", 90), ("90s", 90), ("1m30s", 90), ("500ms", 0.5)]
)
def test_seconds_are_a_number_or_a_duration(text: str, seconds: float) -> None:
    assert Seconds(0, 100).convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [("2 weeks", "2 weeks"), ("5y", "5y"), ("2m", "120"), ("nan", "nan"), ("", "''")],
)
def test_what_is_no_time_or_out_of_range_is_refused(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        Seconds(0, 100).convert(text, None, None)
