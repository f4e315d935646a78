"""Replica sets of whole brokers: in trouble they lose nothing, and one that breaks a rule is found out."""

from __future__ import annotations

import pytest

from .broker_campaign import campaign, catch

#: Seeds from 0 on: so many in `make test`, so many in `make test-long`, and 10,000 in `make campaign`.
SEEDS = 8
LONG_SEEDS = 20
#: What the campaign has found, and was mended.
FOUND = (1_788, 21_890, 31_271)


@pytest.mark.parametrize("seed", [*range(SEEDS), *FOUND])
def test_nothing_acknowledged_is_lost_and_nothing_handed_out_is_taken_back(seed: int) -> None:
    found, violations = campaign(seed)

    assert violations == []
    assert found.acknowledged > 20
    assert found.world.reigns, "there was a master"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS, LONG_SEEDS))
def test_nothing_is_lost_in_many_troubles(seed: int) -> None:
    assert campaign(seed)[1] == []


def test_acknowledging_by_a_set_that_shrank_is_found_out() -> None:
    # From the first seed on that does, as of now.
    assert catch("3 acknowledges by the smaller set", "acknowledged", range(5, 80)) is not None


def test_a_seed_replays() -> None:
    first, again = campaign(3)[0], campaign(3)[0]

    assert first.world.notes == again.world.notes
    assert first.history == again.history
