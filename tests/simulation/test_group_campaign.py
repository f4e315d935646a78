"""A short campaign of each kind of trouble; `make campaign` runs the long ones."""

from __future__ import annotations

import gc
from dataclasses import asdict
from pathlib import Path

import pytest

from pocketmq.client import Queue

from .group_campaign import TROUBLES, Campaign, Plan, carry_out
from .ledger import Ledger

#: Kind of member, and trouble. All kinds meet all troubles in the long ones.
SHORT = [
    *((kind, trouble) for kind in ("pull", "ordered") for trouble in TROUBLES),
    ("push", "members"),
    ("push", "all"),
    ("core", "all"),
]
QUEUE = Queue("orders", "broker-a", 0)


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "trouble"), SHORT)
def test_nothing_is_lost_and_repeats_have_an_excuse(
    kind: str, trouble: str, tmp_path: Path
) -> None:
    plan = Plan(seed=11, minutes=1, messages=4_000, trouble=trouble, kind=kind)

    report = carry_out(plan, tmp_path)

    assert report.faults == [], asdict(report)
    assert report.acknowledged == plan.messages
    assert report.handled == report.stored + sum(report.repeats.values())


@pytest.mark.long
@pytest.mark.campaign
def test_the_dead_are_not_woken_by_the_collector_of_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settle = Campaign._settle

    async def settle_and_collect(campaign: Campaign) -> int:
        settled_ms = await settle(campaign)
        gc.collect()
        return settled_ms

    monkeypatch.setattr(Campaign, "_settle", settle_and_collect)

    report = carry_out(Plan(seed=7, minutes=1, messages=1_000, kind="pull"), tmp_path)

    assert report.events.keys() & {"kill", "vanish"}
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []


def test_a_gap_is_a_fault() -> None:
    ledger = Ledger()
    ledger.handle(1, QUEUE, 0, 10)

    ledger.handle(1, QUEUE, 11, 5)

    assert ledger.faults == [f"{QUEUE}: member 1 goes on at 11, but only 10 are handled"]
    assert ledger.missing({QUEUE: 16}) == {QUEUE: 1}


def test_a_repeat_without_an_excuse_is_a_fault() -> None:
    ledger = Ledger()
    ledger.handle(1, QUEUE, 0, 10)

    ledger.handle(2, QUEUE, 8, 4)

    assert ledger.repeats == {"unexplained": 2}
    assert "member 2 handles 8 to 9 again, which 1 has handled" in ledger.faults[0]


def test_the_dead_are_excused_for_what_they_had_not_committed_and_no_more() -> None:
    ledger = Ledger()
    ledger.handle(1, QUEUE, 0, 10)
    ledger.excuse(1, "killed", {QUEUE: 6})

    ledger.handle(2, QUEUE, 6, 4)
    assert (dict(ledger.repeats), ledger.faults) == ({"killed": 4}, [])
    ledger.excuse(2, "killed", {QUEUE: 10})
    ledger.handle(3, QUEUE, 9, 1)

    assert ledger.repeats["unexplained"] == 1


def test_what_was_never_handled_is_counted() -> None:
    assert Ledger().missing({QUEUE: 7}) == {QUEUE: 7}
