"""A short campaign of failovers; the long one is `make campaign`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..zookeeper.servers import running
from .replicas import ReplicaCampaign

pytestmark = [
    pytest.mark.java,
    pytest.mark.processes,
    pytest.mark.campaign,
    pytest.mark.long,
]

FAILOVERS = 5


@pytest.mark.timeout(600)
async def test_nothing_acknowledged_by_all_in_sync_is_lost_by_failovers(tmp_path: Path) -> None:
    with running(tmp_path / "zookeeper") as zookeeper:
        campaign = ReplicaCampaign(tmp_path, zookeeper, failovers=FAILOVERS, seed=20_261_123)
        outcome = await campaign.run()

    assert outcome.complaints == []
    assert outcome.violations == []
    assert outcome.failovers >= FAILOVERS
    assert outcome.tally["acknowledged_replicas"] > 100
