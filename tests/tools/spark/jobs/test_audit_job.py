"""The audit finds each kind of damage of the recorded stores, and nothing in sound ones."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools import cli
from pocketmq.tools.spark.jobs.audit import audit

from ....recorded import recorded_store

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

SOUND = ("basic", "rolled", "consumption", "delays", "transactions", "encodings", "cleaned")
#: Store → kinds of fault that tell of its damage.
DAMAGED = {
    "broken-json": {"table"},
    "empty-last-log-file": {"length of a file"},
    "flip-last": {"damaged record"},
    "flip-middle-clean": {"damaged record"},
    "flip-recent": {"damaged record"},
    "flip-recent-clean": {"damaged record"},
    "garbage-index": {"index file"},
    "long-queue": {"entry without record"},
    "missing-last-queue-file": {"record without entry"},
    "missing-middle-log": {"missing file", "entry without record"},
    "missing-queue-file": {"missing file", "record without entry"},
    "no-checkpoint": {"missing file"},
    "no-config": {"missing file"},
    "no-queues": {"record without entry"},
    "no-queues-unclean": {"record without entry"},
    "odd-log-file": {"length of a file"},
    "short-index": {"length of a file"},
    "stale-tail": {"bytes past the end"},
    "torn-tail": {"bytes past the end", "entry without record"},
    "torn-tail-clean": {"bytes past the end", "entry without record"},
    "zeroed-tail": {"entry without record"},
}


def named_store(name: str, target: Path) -> None:
    """Copy the store NAME to TARGET, as one of a broker of TARGET's name."""
    recorded_store(name, target)
    for file in (target / "config").glob("topic*.json*"):
        file.write_text(file.read_text().replace("broker-a", target.name))


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> dict[str, list[Row]]:
    """What one audit of all recorded stores finds, by store."""
    root = tmp_path_factory.mktemp("fleet")
    for name in SOUND:
        named_store(name, root / name)
    for name in DAMAGED:
        named_store(f"damaged-{name}", root / name)
    found = defaultdict(list)
    for row in audit(spark, f"{root}/*").collect():
        found[row.broker].append(row)
    return found


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_wrong_with_a_sound_store(name: str, faults: dict[str, list[Row]]) -> None:
    assert faults.get(name, []) == []


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found(name: str, faults: dict[str, list[Row]]) -> None:
    assert {row.fault for row in faults[name]} >= DAMAGED[name]
    assert all(row["count"] > 0 and row.why for row in faults[name])


def test_faults_say_how_many_and_where(faults: dict[str, list[Row]]) -> None:
    (flipped,) = (row for row in faults["flip-middle-clean"] if row.fault == "damaged record")
    longer = [row for row in faults["long-queue"] if row.fault == "entry without record"]
    lost = [row for row in faults["missing-middle-log"] if row.fault == "entry without record"]

    assert flipped.first_offset == 819308
    assert [(row.topic, row.queue, row["count"]) for row in longer] == [("Fill0", 0, 3)]
    assert sum(row["count"] for row in lost) == 121


def test_two_stores_of_one_broker_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    for name in ("one", "other"):
        recorded_store("basic", tmp_path / name)

    with pytest.raises(ConfigError, match="2 stores are of broker 'broker-a'"):
        audit(spark, f"{tmp_path}/*")


def test_the_command_says_so_by_its_exit_code(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded_store("damaged-flip-middle-clean", tmp_path / "store")

    assert cli.run(["spark", "audit", "--store", str(tmp_path / "store")]) == 1
    assert "damaged record" in capsys.readouterr().out
