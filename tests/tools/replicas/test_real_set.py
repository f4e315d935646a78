"""A real replica set, and what a person does to it: move, elect, replicas, and init after ZooKeeper lost its data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...integration.command import Shell
from .stage import IDS, SET, Stage, led

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.long]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with led(tmp_path) as stage:
        yield stage


def test_a_master_hands_over_and_nothing_is_lost(stage: Stage) -> None:
    before = stage.until(*IDS)
    after = next(one for one in IDS if one != before)

    done = stage.cluster("transfer", SET, str(after), "--json")

    assert done.code == 0, done
    (told,) = done.documents
    assert (told["before"], told["master"]) == (before, after)
    stage.send(10)
    assert stage.until(*IDS, master=after) == after
    assert stage.read() == stage.sent
    shown = Shell(stage.nameserver)("brokers").out
    assert f"3 in sync, epoch {stage.epoch()}" in shown


def test_a_replica_that_lacks_something_is_master_once_the_loss_was_accepted(stage: Stage) -> None:
    master = stage.until(*IDS)
    behind = next(one for one in IDS if one != master)
    others = [one for one in IDS if one != behind]
    stage.kill(behind)
    stage.until(*others)
    kept = list(stage.sent)
    stage.send(10)
    stage.kill(*others)
    stage.begin(behind)
    stage.until_gone(*others)

    done = stage.cluster("force-elect", SET, "--accept-loss", str(behind), "--yes")

    assert done.code == 0, done
    assert f"Replica {behind} is not in sync: acknowledged messages may be lost" in done.err
    stage.until(behind, master=behind)
    stage.begin(*others)
    stage.until(*IDS, master=behind)
    stage.sent = kept
    stage.send(10)
    assert stage.read() == stage.sent


def test_replicas_come_and_go_while_the_set_is_led(stage: Stage) -> None:
    assert stage.cluster("change", SET, *stage.words(4)).code == 0
    stage.begin(4)
    stage.until(1, 2, 3, 4)
    gone = stage.until(1, 2, 3, 4)
    refused = stage.cluster("change", SET, "--remove", str(gone))
    assert refused.code == 2
    left = [one for one in (1, 2, 3, 4) if one != gone]

    stage.stop(gone)
    stage.until(*left)
    done = stage.cluster("change", SET, "--remove", str(gone))

    assert done.code == 0, done
    assert done.out.splitlines() == stage.words(*left)
    stage.send(10)
    assert stage.read() == stage.sent


def test_replicas_that_run_go_on_with_the_record_that_is_made_for_them(stage: Stage) -> None:
    epoch = stage.epoch()
    stage.lose_data()
    refused = stage.cluster("init", SET, *stage.words(*IDS))
    assert refused.code == 2
    assert "replicas have logs already" in refused.err

    done = stage.cluster("init", SET, *stage.words(*IDS), "--seed-from", "2", "--yes")

    assert done.code == 0, done
    stage.until(*IDS)
    assert stage.epoch() > epoch
    stage.send(10)
    assert stage.read() == stage.sent


def test_replicas_that_had_stopped_wait_until_they_are_told_whose_log_goes_on(stage: Stage) -> None:
    stage.stop(*IDS)
    stage.lose_data()
    # Nobody answers: it looks like a new set.
    assert stage.cluster("init", SET, *stage.words(*IDS)).code == 0
    stage.begin(*IDS)

    told = stage.cluster("status", SET)
    assert "no master yet" in told.out
    assert told.out.count("ZooKeeper, which lost data") == len(IDS)
    done = stage.cluster("init", SET, *stage.words(*IDS), "--seed-from", "1", "--yes")

    assert done.code == 0, done
    stage.send(10)
    assert stage.read() == stage.sent
