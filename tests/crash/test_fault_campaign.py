"""A few faults of the campaign, drawn from a seed; all of them are tried by `make campaign`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from .failing_disk import Fault
from .fault_script import Outcome, play

pytestmark = pytest.mark.long

SEED: Final = 20_261_122
#: Operations that each fault can befall in the script; some more or fewer do no harm.
OPERATIONS: Final = {
    Fault.EIO: 550,
    Fault.ENOSPC: 270,
    Fault.SHORT: 145,
    Fault.HALF: 145,
    Fault.EMFILE: 420,
    Fault.ENOMEM: 27,
    Fault.FULL: 270,
    Fault.READ_ONLY: 400,
}


def test_the_script_is_told_nothing_where_nothing_fails(tmp_path: Path) -> None:
    outcome = play(tmp_path / "store", Fault.EIO, 0)

    assert outcome.complaints == []
    assert outcome.hit == ""
    assert outcome.count > OPERATIONS[Fault.EIO] // 2, "the script has lost its operations"


def play_until_hit(folder: Path, fault: Fault, number: int, **options: Any) -> Outcome:
    """Play with the operation NUMBER failing. On a slow machine there may be fewer: then an earlier one fails."""
    outcome = play(folder / "store", fault, number, **options)
    if not outcome.hit:
        outcome = play(folder / "again", fault, 1 + number % outcome.count, **options)
    assert outcome.hit, number
    return outcome


@pytest.mark.campaign
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("fault", list(Fault))
def test_a_failed_operation_loses_nothing_and_is_told(
    fault: Fault, flush: Literal["async", "sync"], tmp_path: Path
) -> None:
    number = random.Random(f"{SEED}{fault.name}{flush}").randint(1, OPERATIONS[fault] * 9 // 10)

    outcome = play_until_hit(tmp_path, fault, number, flush=flush)

    assert outcome.complaints == [], outcome.hit


@pytest.mark.campaign
@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC, Fault.EMFILE])
def test_two_failed_operations_lose_nothing_and_are_told(fault: Fault, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED}{fault.name} twice")
    number = rng.randint(1, OPERATIONS[fault] * 9 // 10)

    outcome = play_until_hit(tmp_path, fault, number, also=number + rng.randint(1, 40))

    assert outcome.complaints == [], outcome.hit
