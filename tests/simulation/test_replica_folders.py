"""Replica sets whose folders go back lose nothing acknowledged in the model, and each part of the rule is needed.

`python -m tests.simulation.replica_campaign` takes thousands of walks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from .replica_folder_model import VARIANTS, Setup, count_losses, first_loss, roam, search
from .replica_model import Lost

TWO = Setup(replicas=2, min_in_sync=1)
THREE = Setup(replicas=3, min_in_sync=2)
LONE = Setup(replicas=3, min_in_sync=1)
#: Walks of each setup.
WALKS = range(50)
#: For each variant its setups, the walk that finds it out, and what that finds.
CAUGHT = {
    "has no mark and cuts": [(TWO, 0, "P1"), (THREE, 33, "P1")],
    "has no mark": [(TWO, 0, "P1"), (THREE, 33, "P1")],
    "compares ends only": [(TWO, 1277, "P1"), (LONE, 54, "P1")],
    "marks what is written": [(replace(TWO, kind="none"), 0, "F")],
    "looks only at the election": [(TWO, 6091, "P1")],
    "follows a deposed master": [(LONE, 896, "P1")],
    "believes the old connection": [(LONE, 2632, "P3")],
    "keeps the mark that a person gave up": [(replace(TWO, persons=1), 395, "F")],
}
#: Not found by a single walk: it changes how many lose something.
COUNTED = {"cuts what is acknowledged"}


@pytest.mark.slow
@pytest.mark.parametrize("persons", [0, 1])
@pytest.mark.parametrize("setup", [TWO, THREE, LONE], ids=["two", "three", "lone"])
def test_no_folder_that_goes_back_loses_what_the_mark_has(setup: Setup, persons: int) -> None:
    found = [roam(seed, replace(setup, persons=persons)) for seed in WALKS]

    assert sum(one.found_out for one in found) > 0
    assert sum(one.acknowledgements for one in found) > 50


@pytest.mark.slow
@pytest.mark.parametrize("setup", [TWO, THREE, LONE], ids=["two", "three", "lone"])
def test_no_replica_is_kept_out_without_a_disaster(setup: Setup) -> None:
    assert first_loss(replace(setup, kind="none"), WALKS) is None


@pytest.mark.slow
@pytest.mark.parametrize("setup", [TWO, THREE], ids=["two", "three"])
def test_a_mark_before_each_answer_loses_nothing_at_all(setup: Setup) -> None:
    assert first_loss(replace(setup, kind="any", each=True), WALKS) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps", "least"),
    [
        ("none", 9, 15_000),
        ("old", 8, 30_000),
        pytest.param("old", 9, 75_000, marks=pytest.mark.long),
    ],
)
def test_no_state_of_two_replicas_whose_folders_go_back_loses_anything(
    kind: str, steps: int, least: int
) -> None:
    count, depth = search(Setup(kind=kind, records=2, epochs=3), steps)

    assert depth == steps
    assert count > least


def test_each_variant_is_found_out() -> None:
    assert {*CAUGHT, *COUNTED} == {*VARIANTS[1:]}


@pytest.mark.slow
@pytest.mark.parametrize("variant", CAUGHT)
def test_a_rule_that_lacks_a_part_is_found_out(variant: str) -> None:
    for setup, walk, code in CAUGHT[variant]:
        with pytest.raises(Lost, match=f"^{code} "):
            roam(walk, replace(setup, variant=variant))
        roam(walk, setup)


@pytest.mark.slow
def test_without_the_rule_two_replicas_lose_an_acknowledged_record_in_nine_steps() -> None:
    with pytest.raises(Lost, match=r"^P1 "):
        search(Setup(records=2, epochs=3, variant="has no mark and cuts"), 9)


@pytest.mark.slow
@pytest.mark.parametrize("walks", [200, pytest.param(600, marks=pytest.mark.long)])
def test_followers_that_refuse_cut_less_of_what_came_after_the_mark(walks: int) -> None:
    setup = Setup(replicas=2, min_in_sync=2, kind="any")

    refusing = count_losses(setup, range(walks))
    cutting = count_losses(replace(setup, variant="cuts what is acknowledged"), range(walks))

    assert 0 < 2 * refusing["P3"] < cutting["P3"]
    assert refusing["P1"] == cutting["P1"]
