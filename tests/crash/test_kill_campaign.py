"""A short campaign of kills; the long one is `make campaign`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kill_campaign import Campaign

KILLS = 8


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.campaign
@pytest.mark.timeout(180)
async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, kills=KILLS, seed=20_260_801)

    ledger = await campaign.run()

    assert ledger.complaints == []
    assert len(ledger.acknowledged) > 100
