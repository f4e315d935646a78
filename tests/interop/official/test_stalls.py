"""A client, or a broker, that is held up for a while: the official Java client's calls time out, and nothing else.

The short form of stalls.py, which `make interop` plays whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .driver import leave_out, need
from .programs import PROGRAMS, BuildFailed
from .stalls import BROKER, CLIENT, Stall, stalled

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "stall",
    [Stall(CLIENT, 1.4, times=3, threads=64), Stall(BROKER, 2.5, times=1, threads=600)],
    ids=str,
)
async def test_calls_that_are_given_up_break_no_connection(stall: Stall, tmp_path: Path) -> None:
    need(PROGRAMS["java"])
    try:
        outcome = await stalled(stall, tmp_path)
    except BuildFailed as error:  # Without a network, as a rule.
        leave_out(f"the official java client was not built: {error}")

    assert outcome.broken == {}
    assert outcome.sent > 0
