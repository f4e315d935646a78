"""The plan of what goes wrong: it replays from its seed, and leaves nothing out."""

from __future__ import annotations

from itertools import islice

from .nemesis import FAILOVERS, OTHERS, Trouble, plan


def test_a_plan_replays_from_its_seed() -> None:
    assert list(islice(plan(5), 50)) == list(islice(plan(5), 50))
    assert list(islice(plan(5), 50)) != list(islice(plan(6), 50))


def test_two_hundred_steps_have_every_trouble() -> None:
    steps = list(islice(plan(1), 200))

    assert {strike.trouble for step in steps for strike in step.strikes} == set(Trouble)
    assert {*FAILOVERS, *OTHERS} == set(Trouble)


def test_each_step_strikes_the_master_first_and_lasts_as_long_as_it_is_said_to() -> None:
    for step in islice(plan(2), 200):
        first, *others = step.strikes
        assert first.who == "master"
        for strike, among in ((first, FAILOVERS), *((one, OTHERS) for one in others)):
            _, least_s, most_s = among[strike.trouble]
            assert least_s <= strike.lasts_s <= most_s
        assert "{" not in str(step)
