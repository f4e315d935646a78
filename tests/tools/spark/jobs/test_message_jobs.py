"""Reports, export and replay agree with a recount of the recorded messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pocketmq.client import Admin
from pocketmq.proto.errors import CorruptRecord
from pocketmq.tools import cli
from pocketmq.tools.spark.jobs import reports
from pocketmq.tools.spark.jobs.export import export
from pocketmq.tools.spark.jobs.reading import Reading
from pocketmq.tools.spark.jobs.replay import REPLAYED_FROM, replay
from pocketmq.tools.spark.jobs.spark_errors import plain_error, told_plainly

from ....recorded import expected, recorded_store
from ....served import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]


@pytest.fixture(scope="module")
def consumption(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(recorded_store("consumption", tmp_path_factory.mktemp("consumption") / "store"))


def recorded_messages() -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = expected("consumption")["records"]
    return records


def test_tags_are_counted_by_topic(consumption: str, spark: SparkSession) -> None:
    found = {(row.topic, row.tags): row for row in reports.tags(spark, consumption).collect()}

    wanted = Counter((one["topic"], one["properties"].get("TAGS")) for one in recorded_messages())
    assert {place: row.messages for place, row in found.items()} == wanted
    total = sum(one["storeSize"] for one in recorded_messages())
    assert sum(row.size_bytes for row in found.values()) == total


def test_keys_are_single_words(consumption: str, spark: SparkSession) -> None:
    found = {
        (row.topic, row.key): row.messages for row in reports.keys(spark, consumption).collect()
    }

    assert found == Counter(
        (one["topic"], word)
        for one in recorded_messages()
        for word in one["properties"].get("KEYS", "").split(" ")
        if word
    )


def test_rates_are_by_minute(consumption: str, spark: SparkSession) -> None:
    rows = reports.rates(spark, consumption).collect()

    found = {(row.topic, round(row.minute.timestamp() * 1000)): row.messages for row in rows}
    wanted = Counter(
        (one["topic"], one["storeTimestamp"] // 60_000 * 60_000) for one in recorded_messages()
    )
    assert sorted(found.values()) == sorted(wanted.values())
    assert {topic for topic, _ in found} == {topic for topic, _ in wanted}
    assert all(row.mean_bytes <= row.largest_bytes <= row.size_bytes for row in rows)


def test_dead_letters_say_where_they_came_from(consumption: str, spark: SparkSession) -> None:
    found = reports.dead_letters(spark, consumption).collect()

    dead = [one for one in recorded_messages() if one["topic"].startswith("%DLQ%")]
    assert len(found) == len(dead) == 4
    assert {row.group for row in found} == {"G_failing"}
    assert all(row.origin_topic for row in found)
    assert {row.queue_offset for row in found} == {one["queueOffset"] for one in dead}


def test_a_store_without_dead_letters_has_none(tmp_path: Path, spark: SparkSession) -> None:
    root = recorded_store("basic", tmp_path / "store")

    assert reports.dead_letters(spark, str(root)).collect() == []


def test_the_commands_print_objects(
    consumption: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["spark", "rates", "--store", consumption, "--json"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(row["messages"] for row in rows) == len(recorded_messages())
    assert rows[0]["minute"].endswith("Z")


def test_an_export_has_every_message_of_its_range_once(
    consumption: str, tmp_path: Path, spark: SparkSession
) -> None:
    times = sorted(one["storeTimestamp"] for one in recorded_messages())
    since_ms, until_ms = times[40], times[-40]
    reading = Reading(since_ms=since_ms, until_ms=until_ms)
    wanted = {
        one["physicalOffset"]
        for one in recorded_messages()
        if since_ms <= one["storeTimestamp"] < until_ms
    }

    for mode in ("new", "replace"):
        done = export(spark, consumption, to=f"{tmp_path}/out", reading=reading, mode=mode)
        assert done.messages == len(wanted)

    rows = spark.read.parquet(f"{tmp_path}/out").select("log_offset", "topic", "day").collect()
    assert len(rows) == len(wanted)
    assert {row.log_offset for row in rows} == wanted
    assert {row.topic for row in rows} <= {one["topic"] for one in recorded_messages()}
    assert any((tmp_path / "out").glob("topic=*/day=*/*.parquet"))


def test_a_damaged_store_stops_a_job_or_is_read_around(tmp_path: Path, spark: SparkSession) -> None:
    root = str(recorded_store("damaged-flip-middle-clean", tmp_path / "store"))
    skipping = Reading(bad_records="skip", check_crc=True)

    with pytest.raises(CorruptRecord, match="819,308"), told_plainly():
        reports.tags(spark, root, reading=Reading(check_crc=True)).collect()
    rows = reports.tags(spark, root, reading=skipping).collect()

    assert sum(row.messages for row in rows) == 2_999


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("replay") / "store") as started:
        yield started


@pytest.mark.timeout(240)
def test_a_replay_sends_every_message_with_its_origin(
    consumption: str, server: ServerProcess, spark: SparkSession
) -> None:
    records = [one for one in recorded_messages() if one["topic"].startswith("%RETRY%G_failing")]
    topic = records[0]["topic"]
    with Admin(server.nameserver) as admin:
        admin.create_topic("replayed", queues=2)

    counts = [
        replay(
            spark,
            consumption,
            nameserver=server.nameserver,
            topic="replayed",
            reading=Reading(topics=(topic,)),
        )
        for _ in range(2)
    ]

    live = spark.read.format("rocketmq").option("nameServer", server.nameserver)
    rows = live.option("subscribe", "replayed").load().collect()
    origins = Counter(row.properties[REPLAYED_FROM] for row in rows)
    assert counts == [len(records)] * 2
    assert set(origins) == {
        f"broker-a/{topic}/{one['queueId']}/{one['queueOffset']}" for one in records
    }
    assert set(origins.values()) == {2}


def test_what_spark_says_of_other_errors_is_one_sentence() -> None:
    error = plain_error("[TABLE_OR_VIEW_NOT_FOUND] no table\n\tat org.apache.spark…")

    assert error.message == "Spark: [TABLE_OR_VIEW_NOT_FOUND] no table"
