"""Official clients through failovers of a replica set: the short form of failovers.py, which `make interop` plays."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...served import need_own
from .driver import leave_out, need
from .failovers import failed_over
from .programs import PROGRAMS, BuildFailed

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.mark.parametrize("language", PROGRAMS)
async def test_what_was_acknowledged_is_received_and_nothing_else(
    language: str, tmp_path: Path
) -> None:
    need_own("replicas have no grpcio")
    need(PROGRAMS[language])
    try:
        (traffic,) = await failed_over([language], tmp_path, 2)
    except BuildFailed as error:  # Without a network, as a rule.
        leave_out(f"the official {language} client was not built: {error}")

    assert traffic.missing == set()
    assert traffic.foreign == set()
    assert len(traffic.acknowledged) >= 30
