"""A short campaign of lost acknowledgements and kills; the long one is `make campaign`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .idempotence_campaign import IdempotenceCampaign


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.campaign
@pytest.mark.timeout(240)
async def test_each_message_is_stored_once_and_in_order(tmp_path: Path) -> None:
    campaign = IdempotenceCampaign(tmp_path, kills=4, seed=20_261_122)

    outcome = await campaign.run()

    assert outcome.complaints == []
    assert outcome.broken > 0
    assert outcome.acknowledged == len(outcome.later) + sum(map(len, outcome.sent.values()))
