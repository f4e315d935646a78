"""The lag job on Spark has the very rows of `pocketmq lag`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: run `make dev`")

from pocketmq.proto.errors import ConfigError, StoreMismatch
from pocketmq.tools import cli
from pocketmq.tools.lag.cold import store_rows
from pocketmq.tools.spark.jobs.lag import lag
from pocketmq.tools.spark.jobs.lag_command import rows_of
from pocketmq.tools.spark.jobs.offset_files import committed_offsets
from pocketmq.tools.spark.jobs.spark_errors import told_plainly
from pocketmq.tools.spark.jobs.store_tasks import LeftOut
from pocketmq.tools.spark.store_options import Opening
from pocketmq.tools.stores.locations import locate

from ....recorded import expected, recorded_names, recorded_store
from ....runs import make_run, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

NOW_MS = 1_795_300_000_000
SOUND = ("basic", "consumption", "delays", "transactions")
DAMAGED = [
    name for name in recorded_names() if name.startswith("damaged-") and expected(name)["accepted"]
]


def documents(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.to_json() for row in rows_of(frame)]


def plain_rows(root: Path, opening: Opening) -> list[dict[str, Any]]:
    (location,) = locate([str(root)])
    rows = sorted(store_rows(opening.open(location), NOW_MS), key=lambda row: row.key)
    return [row.to_json() for row in rows]


def test_rows_of_sound_and_damaged_stores_are_those_of_the_plain_path(
    tmp_path: Path, spark: SparkSession
) -> None:
    names = [*SOUND, *DAMAGED]
    for name in names:
        recorded_store(name, tmp_path / name)
    opening = Opening(now_ms=NOW_MS)

    found = documents(lag(spark, f"{tmp_path}/*", opening=opening))

    wanted = [row for name in names for row in plain_rows(tmp_path / name, opening)]
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert {"never_committed", "retrying", "dead_letters", "ok"} <= {
        row["verdict"] for row in found
    }


def test_committed_offsets_from_json_come_to_the_same_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    root = recorded_store("consumption", tmp_path / "store")
    opening = Opening(now_ms=NOW_MS)
    offsets = committed_offsets(spark, str(root))

    reconciled = documents(lag(spark, str(root), opening=opening, offsets=offsets))

    assert reconciled == plain_rows(root, opening)


def test_committed_offsets_are_those_that_apache_reads(tmp_path: Path, spark: SparkSession) -> None:
    root = recorded_store("consumption", tmp_path / "store")

    found: dict[str, dict[str, int]] = {}
    for row in committed_offsets(spark, str(root)).collect():
        found.setdefault(f"{row.topic}@{row.group}", {})[str(row.queue)] = row.committed_offset

    assert found == expected("consumption")["config"]["consumerOffsets"]


def offsets_file(tmp_path: Path, text: str, backup: str | None = None) -> str:
    folder = tmp_path / "broker-x" / "store"
    (folder / "commitlog").mkdir(parents=True)
    (folder / "config").mkdir()
    (folder / "config" / "consumerOffset.json").write_text(text)
    if backup is not None:
        (folder / "config" / "consumerOffset.json.bak").write_text(backup)
    return str(folder)


WHOLE = '{"offsetTable":{"T@g":{0:5,1:6},"%RETRY%g@g":{"0":1},"T@g@broadcast":{0:2}}}'


@pytest.mark.parametrize(
    ("text", "backup"),
    [(WHOLE, None), (WHOLE[:40], WHOLE), ("", WHOLE)],
    ids=["file", "cut short", "empty"],
)
def test_a_file_cut_short_gives_way_to_its_backup(
    text: str, backup: str | None, tmp_path: Path, spark: SparkSession
) -> None:
    store = offsets_file(tmp_path, text, backup)

    found = {tuple(row) for row in committed_offsets(spark, store).collect()}

    assert found == {
        ("broker-x", "T", 0, "g", 5),
        ("broker-x", "T", 1, "g", 6),
        ("broker-x", "%RETRY%g", 0, "g", 1),
        ("broker-x", "T", 0, "g@broadcast", 2),
    }


def test_an_entry_that_is_no_object_hides_no_other(tmp_path: Path, spark: SparkSession) -> None:
    store = offsets_file(tmp_path, '{"offsetTable":{"Bad@G":[1],"T@g":{0:5}}}')

    found = [tuple(row) for row in committed_offsets(spark, store).collect()]

    assert found == [("broker-x", "T", 0, "g", 5)]


@pytest.mark.parametrize("text", [WHOLE[:40], "{}", "[1]", '{"offsetTable":{"T@g":{0:"x"}}}'])
def test_offsets_that_cannot_be_read_are_never_no_offsets(
    text: str, tmp_path: Path, spark: SparkSession
) -> None:
    store = offsets_file(tmp_path, text)

    with pytest.raises(Exception, match="hold no offsetTable that can be read"), told_plainly():
        committed_offsets(spark, store).collect()


def test_offsets_of_a_broker_without_a_store_are_refused(
    tmp_path: Path, spark: SparkSession
) -> None:
    root = recorded_store("basic", tmp_path / "store")
    foreign = spark.createDataFrame(
        [("broker-z", "T", 0, "g", 1)],
        "broker string, topic string, queue int, `group` string, committed_offset bigint",
    )

    with pytest.raises(ConfigError, match="broker-z"), told_plainly():
        lag(spark, str(root), offsets=foreign).collect()


def test_a_store_that_no_broker_opens_fails_the_query_or_is_left_out(
    tmp_path: Path, spark: SparkSession
) -> None:
    recorded_store("damaged-no-config", tmp_path / "refused")
    recorded_store("consumption", tmp_path / "sound")
    stores = f"{tmp_path}/*"
    left_out = LeftOut(spark)

    with pytest.raises(StoreMismatch, match="would not start"), told_plainly():
        lag(spark, stores).collect()
    rows = lag(spark, stores, left_out=left_out).collect()

    assert len(rows) > 0
    (message,) = left_out.messages
    assert "refused" in message


def test_random_stores_agree_with_a_brute_force_recount(
    tmp_path: Path, spark: SparkSession
) -> None:
    wanted: dict[tuple[str, str, int, str], tuple[int, int, int, int | None]] = {}
    for number in range(4):
        chance = random.Random(number)
        root = tmp_path / f"broker-{number}"
        wanted |= random_store(root, chance)
    sizes = {"mappedFileSizeCommitLog": "4096", "mappedFileSizeConsumeQueue": "400"}
    opening = Opening(
        now_ms=NOW_MS, settings=sizes | {"maxHashSlotNum": "50", "maxIndexNum": "200"}
    )

    found = rows_of(lag(spark, f"{tmp_path}/broker-*", opening=opening))
    plain = [
        row for number in range(4) for row in plain_rows(tmp_path / f"broker-{number}", opening)
    ]

    assert [row.to_json() for row in found] == plain
    counted = {
        row.key: (row.facts.max_offset, row.lag, row.lag_bytes, row.oldest_unread_age_ms)
        for row in found
        if row.facts.committed_offset is not None
    }
    assert counted == wanted


def random_store(
    root: Path, chance: random.Random
) -> dict[tuple[str, str, int, str], tuple[int, int, int, int | None]]:
    """Write a store at ROOT; return bounds, lag, bytes and age of each group and queue, counted while writing."""
    clock = [NOW_MS - 1_000_000]
    sizes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    store = open_store(root, now_ms=lambda: clock[0])  # type: ignore[arg-type]
    for _ in range(chance.randrange(5, 60)):
        place = chance.choice("AB"), chance.randrange(3)
        bodies = [chance.randbytes(chance.randrange(1, 200)) for _ in range(chance.randrange(1, 4))]
        clock[0] += chance.randrange(5_000)
        run = make_run(*place, bodies, {"TAGS": chance.choice("xy")})
        store.append(run)
        sizes.setdefault(place, []).extend((size, clock[0]) for size in run.columns.sizes.tolist())
    store.close()
    table: dict[str, dict[int, int]] = {}
    wanted = {}
    for (topic, queue), stored in sizes.items():
        for group in ("g1", "g2"):
            at = chance.randrange(len(stored) + 1)
            table.setdefault(f"{topic}@{group}", {})[queue] = at
            unread = stored[at:]
            age = NOW_MS - unread[0][1] if unread else None
            lag_bytes = sum(size for size, _ in unread)
            wanted[root.name, topic, queue, group] = len(stored), len(unread), lag_bytes, age
    (root / "config").mkdir(exist_ok=True)
    text = json.dumps({"offsetTable": table})
    (root / "config" / "consumerOffset.json").write_text(text)
    return wanted


def test_the_command_prints_what_pocketmq_lag_prints(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    root = recorded_store("consumption", tmp_path / "store")

    assert cli.run(["spark", "lag", "--store", str(root), "--json"]) == 0
    on_spark = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert cli.run(["lag", str(root), "--json"]) == 0
    plain = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    ages = "oldest_unread_age_ms"
    assert [row | {ages: None} for row in on_spark] == [row | {ages: None} for row in plain]
    assert [row[ages] is None for row in on_spark] == [row[ages] is None for row in plain]


@pytest.mark.parametrize("form", ["parquet", "json", "folder"])
def test_rows_are_written_where_out_says(form: str, tmp_path: Path, spark: SparkSession) -> None:
    root = recorded_store("consumption", tmp_path / "store")
    arguments = ["spark", "lag", "--store", str(root), "--output", f"{form}:{tmp_path}/out"]
    if form == "folder":
        arguments += ["--watch", "--interval", "1ms", "--iterations", "2"]

    assert cli.run(arguments) == 0

    reader = spark.read.json if form == "json" else spark.read.parquet
    rows = reader(f"{tmp_path}/out").collect()
    once = len(plain_rows(root, Opening(now_ms=NOW_MS)))
    assert len(rows) == once * (2 if form == "folder" else 1)
    if form == "folder":
        assert len({row.snapshot_time for row in rows}) == 2


def test_a_table_grows_by_every_look(spark: SparkSession, tmp_path: Path) -> None:
    root = recorded_store("consumption", tmp_path / "store")
    arguments = ["spark", "lag", "--store", str(root), "--output", "table:lag_looks"]

    assert [cli.run(arguments), cli.run(arguments)] == [0, 0]

    assert spark.table("lag_looks").select("snapshot_time").distinct().count() == 2
    spark.sql("DROP TABLE lag_looks")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--store", "x", "--nameserver", "y"],
        [],
        ["--store", "x", "--output", "lag.parquet"],
        ["--store", "x", "--iterations", "2"],
        ["--store", "x", "--conf", "broken"],
    ],
)
def test_wrong_arguments_are_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["spark", "lag", *arguments]) == 2
    assert capsys.readouterr().err.startswith("pocketmq: ")
