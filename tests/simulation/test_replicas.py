"""Replica sets keep what they acknowledged, on short walks and in the model; and whoever breaks a rule is found out.

`python -m tests.simulation.replica_campaign` takes the long ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ..broker.replication import test_replica as stories
from .replica_campaign import KINDS, catch
from .replica_model import VARIANTS, Lost, roam, search
from .replica_mutants import MUTANTS, RARE, mutant
from .replicas import walk

#: Walks of each kind; the campaign takes thousands.
WALKS = 10
#: The seed whose walk finds a mutant out. Where a change of the product makes it another, the test looks further, and
#: takes longer: set the seed again. The campaign prints them.
SEEDS = {
    "1 elects anybody": 22,
    "1 follows while standing": 1153,
    "2 keeps the entry without a record": 107,
    "3 acknowledges by the smaller set": 403,
    "3 acknowledges by the confirmed set": 868,
    "3 acknowledges what is written": 2,
    "3 acknowledges below the minimum": 27,
    "5 enters behind": 849,
    "6 forgets the highest epoch": 363,
    "7 does not truncate": 3,
    "7 truncates by length": 22,
    "7 guesses at an unknown epoch": 68,
    "8 serves without a lease": 492,
    "9 ignores the mark": 1,
    "9 compares ends only": 12,
    "9 marks what is written": 3,
}
#: So many walks are tried from there.
TRIES = 400


@pytest.mark.slow
@pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda kind: f"kind {kind}")
def test_nothing_acknowledged_is_lost_and_nothing_shown_changes(kind: int) -> None:
    found = [walk(replace(KINDS[kind], seed=seed)) for seed in range(WALKS)]

    assert sum(one.acknowledged for one in found) > 0
    assert sum(one.elections for one in found) > WALKS / 2


def test_a_walk_replays_from_its_plan() -> None:
    plan = replace(KINDS[7], seed=5)

    assert walk(plan).trace == walk(plan).trace


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_replica_that_breaks_a_rule_is_found_out(name: str) -> None:
    assert catch(name, range(SEEDS[name], SEEDS[name] + TRIES)) is not None


@pytest.mark.parametrize(
    ("name", "story"),
    [
        (
            "3 believes acks of any epoch",
            stories.test_acks_of_another_connection_or_epoch_say_nothing,
        ),
        (
            "4 forgets a proposal",
            stories.test_a_proposal_is_given_up_by_taking_its_version,
        ),
        (
            "5 enters below the start",
            lambda: stories.test_a_follower_enters_with_all_from_before_the_epoch_on_its_device(
                8, 8, True
            ),
        ),
        (
            "5 enters unsynced",
            lambda: stories.test_a_follower_enters_with_all_from_before_the_epoch_on_its_device(
                8, 7, False
            ),
        ),
        (
            "6 follows an older epoch",
            stories.test_a_master_of_an_epoch_that_is_over_is_not_followed,
        ),
    ],
)
def test_the_story_of_a_rule_does_not_hold_without_it(name: str, story: Callable[[], None]) -> None:
    assert name in RARE
    story()

    with mutant(name), pytest.raises(AssertionError):
        story()


# ---------------------------------------------------------------- the model


@pytest.mark.long
@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_no_state_of_two_replicas_loses_what_was_acknowledged(min_in_sync: int) -> None:
    count, depth = search(25, min_in_sync)

    assert depth == 25
    assert count > 20_000


@pytest.mark.slow
@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_no_walk_of_three_replicas_loses_what_was_acknowledged(min_in_sync: int) -> None:
    assert sum(roam(seed, 3, 80, min_in_sync) for seed in range(100)) > 300


#: The walks of these that lose something are rare: they are looked for from here on.
RARE_LOSSES = {"enters below the start": 600, "follows an older epoch": 250}
#: What takes a third replica, or a fourth.
THREE = {"follows an older epoch", "enters below the start", "believes acks of any epoch"}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_the_model_finds_out_what_breaks_a_rule(variant: str) -> None:
    least = 2 if "minimum" in variant else 1
    replicas = 4 if "below the start" in variant else 3

    steps = 250 if "any epoch" in variant else 80
    first = RARE_LOSSES.get(variant, 0)

    with pytest.raises(Lost):
        all(roam(seed, replicas, steps, least, variant) >= 0 for seed in range(first, 1_000))


@pytest.mark.parametrize("variant", sorted({*VARIANTS[1:]} - THREE))
def test_two_replicas_are_enough_to_find_most_of_it_out(variant: str) -> None:
    with pytest.raises(Lost):
        search(25, 2 if "minimum" in variant else 1, variant)
