"""A short campaign of kills with messages pending; the long one is `make campaign`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .timer_campaign import TimerCampaign


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.campaign
@pytest.mark.timeout(180)
async def test_no_message_that_waits_is_lost_by_kill_9(tmp_path: Path) -> None:
    campaign = TimerCampaign(tmp_path, kills=4, pending=1_000, seed=20_261_121)

    ledger = await campaign.run()

    assert ledger.complaints == []
    assert len(ledger.due_ms) >= 1_000
