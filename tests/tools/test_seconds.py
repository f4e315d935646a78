"""Options that take seconds refuse what is no time."""

from __future__ import annotations

import pytest

from pocketmq.tools.cli import run


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "-1", "soon"])
@pytest.mark.parametrize("verb", ["consume T --timeout", "bench wheel --seconds"])
def test_seconds_that_are_no_time_are_refused(
    verb: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*verb.split(), seconds]) == 2

    error = capsys.readouterr().err
    assert f"Invalid value for '{verb.split()[-1]}'" in error
