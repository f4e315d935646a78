"""A short campaign of flipped bits and spoilt sectors; the long one is `make campaign`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .damage_campaign import run_rounds

pytestmark = pytest.mark.long

ROUNDS = 30


@pytest.mark.campaign
@pytest.mark.timeout(180)
def test_damage_to_a_verified_store_costs_what_it_hit_and_is_told(tmp_path: Path) -> None:
    complaints, lost = run_rounds(tmp_path, rounds=ROUNDS, seed=20_260_802)

    assert complaints == []
    assert lost > 0
