"""The format `rocketmq-store` in a Spark session: every dataset is what Apache finds, however it is asked for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from pyspark.errors import PySparkException

from ...recorded import expected, recorded_store, settings
from ..stores.dumps import described, of_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

Row = dict[str, Any]
SIZES = ("maxHashSlotNum", "maxIndexNum")


def frame(
    spark: SparkSession, store: Path, dataset: str, schema: str | None = None, **options: Any
) -> DataFrame:
    reader = spark.read.format("rocketmq-store").option("dataset", dataset).options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(str(store))


def rows_of(found: DataFrame) -> list[Row]:
    rows: list[Row] = found.toArrow().to_pylist()
    return rows


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_store("rolled", tmp_path_factory.mktemp("rolled") / "store")


@pytest.mark.parametrize("name", ["encodings", "cleaned", "unclean"])
def test_messages_are_those_of_apache(name: str, spark: SparkSession, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    rows = rows_of(frame(spark, store, "messages", maxSplitBytes=30_000))

    rows.sort(key=lambda row: int(row["log_offset"]))
    assert of_messages(rows) == described(expected(name)["records"])


@pytest.mark.parametrize("name", ["encodings", "cleaned"])
def test_all_other_datasets_are_those_of_apache(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    store = recorded_store(name, tmp_path / "store")
    document = expected(name)
    options = {key: value for key, value in settings(name).items() if key in SIZES}

    queues = rows_of(frame(spark, store, "queues", **options))
    entries = frame(spark, store, "consumequeue", **options).groupBy("topic", "queue").count()
    index = rows_of(frame(spark, store, "index", **options))
    files = rows_of(frame(spark, store, "files", **options))

    with_files = [one for one in document["queues"] if one["topic"] != "SCHEDULE_TOPIC_XXXX"]
    wanted = {
        (one["topic"], one["queueId"], one["minOffset"], one["maxOffset"]) for one in with_files
    }
    found = {(one["topic"], one["queue"], one["min_offset"], one["max_offset"]) for one in queues}
    assert wanted <= found
    assert {(one["topic"], one["queue"]): one["count"] for one in rows_of(entries)} == {
        (one["topic"], one["queueId"]): len(one["entries"])
        for one in document["queues"]
        if one["entries"]
    }
    counts = {one["name"]: one["indexCount"] - 1 for one in document["indexFiles"]}
    assert Counter(one["file"] for one in index) == counts
    sizes = {str(Path(one["path"]).relative_to(store)): one["size_bytes"] for one in files}
    assert sizes == document["filesBefore"]


def test_offsets_and_lag_are_there(spark: SparkSession, tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")
    table = expected("consumption")["config"]["consumerOffsets"]

    offsets = rows_of(frame(spark, store, "offsets"))
    lag = rows_of(frame(spark, store, "lag", schema="topic string, `group` string, lag bigint"))

    found = {
        (f"{one['topic']}@{one['group']}", one["queue"], one["committed_offset"]) for one in offsets
    }
    wanted = {
        (key, int(queue), offset)
        for key, queues in table.items()
        for queue, offset in queues.items()
    }
    assert found == wanted
    assert any(one["lag"] for one in lag)
    assert list(lag[0]) == ["topic", "group", "lag"]


def test_filters_are_taken_over_and_rows_are_the_same(spark: SparkSession, rolled: Path) -> None:
    conditions = [
        "topic = 'Fill0' AND queue = 2 AND queue_offset BETWEEN 10 AND 20",
        "topic IN ('Fill0', 'Fill1') AND queue_offset < 5 AND tags IS NOT NULL",
        "log_offset > 100000 AND log_offset <= 200000",
        "broker = 'broker-a' AND queue IN (0, 1) AND queue_offset = 7",
        "broker = 'another'",
        "topic = 'Fill0' AND keys LIKE 'k1%'",
        "NOT (topic = 'Fill0') AND queue_offset >= 100",
    ]
    all_rows = frame(spark, rolled, "messages", schema=SMALL, pushdown="false").cache()
    for condition in conditions:
        pushed = rows_of(frame(spark, rolled, "messages", schema=SMALL).where(condition))
        wanted = rows_of(all_rows.where(condition))
        assert sorted(pushed, key=str) == sorted(wanted, key=str), condition
    all_rows.unpersist()


SMALL = (
    "broker string, topic string, queue int, queue_offset bigint, log_offset bigint, "
    "store_timestamp timestamp, tags string, keys string"
)


def test_a_filter_on_time_is_taken_over(spark: SparkSession, rolled: Path) -> None:
    from pyspark.sql import functions

    column = functions.col("store_timestamp")
    messages = frame(spark, rolled, "messages", schema=SMALL)
    kept_by_spark = frame(spark, rolled, "messages", schema=SMALL, pushdown="false")
    times = sorted(row["store_timestamp"] for row in rows_of(messages))
    low, high = times[500], times[1_500]

    found = messages.where((column >= low) & (column < high))

    assert len(rows_of(found)) == sum(low <= time < high for time in times)
    assert "Filter (" not in plan_of(found)
    assert "Filter (" in plan_of(kept_by_spark.where(column >= low))


def plan_of(found: DataFrame) -> str:
    """Return the physical plan, in which a filter that Spark applies itself shows."""
    frame: Any = found._jdf
    return str(frame.queryExecution().executedPlan().toString())


def test_a_query_for_few_columns_decodes_them_alone(spark: SparkSession, rolled: Path) -> None:
    found = frame(spark, rolled, "messages", schema="queue int, topic string")

    assert found.columns == ["queue", "topic"]
    assert found.where("topic = 'Fill1'").count() == 982


@pytest.mark.parametrize(
    ("options", "schema", "what"),
    [
        ({"dataset": "message"}, None, "dataset='message': there are messages, consumequeue"),
        ({"badRecord": "skip"}, None, "is not known: did you mean badRecords"),
        ({"badRecords": "drop"}, None, "use fail, skip or rows"),
        ({}, "queue bigint", "column queue of dataset messages is int, not bigint"),
        ({}, "offset bigint", "dataset messages has no column 'offset'"),
        ({"maxSplitBytes": "0"}, None, "write a whole number from 1 on"),
    ],
)
def test_a_wrong_request_is_told_in_a_sentence(
    options: dict[str, str], schema: str | None, what: str, spark: SparkSession, rolled: Path
) -> None:
    chosen = dict(options)
    dataset = chosen.pop("dataset", "messages")

    with pytest.raises(PySparkException, match=re.escape(what)):
        frame(spark, rolled, dataset, schema, **chosen).count()


def test_a_store_that_is_none_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="nothing"):
        frame(spark, tmp_path / "nothing", "messages").count()


def test_many_brokers_are_read_by_one_pattern(spark: SparkSession, tmp_path: Path) -> None:
    for name, folder in [("basic", "broker-a"), ("delays", "broker-b")]:
        recorded_store(name, tmp_path / folder / "store")
        for config in (tmp_path / folder / "store" / "config").glob("topic*.json*"):
            config.unlink()  # Both were recorded as broker-a: now the folders tell.

    found = frame(spark, tmp_path / "broker-*" / "store", "messages", schema="broker string")

    counts = {row["broker"]: row["count"] for row in rows_of(found.groupBy("broker").count())}
    assert counts == {"broker-a": 210, "broker-b": 77}


def test_bad_records_are_rows_when_that_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    store = recorded_store("damaged-flip-middle-clean", tmp_path / "store")

    found = frame(spark, store, "messages", badRecords="rows", checkCrc="true")

    assert found.where("bad_record IS NOT NULL").count() == 1
    assert found.where("topic IS NOT NULL").count() == 2_999
    assert found.where("queue_offset IS NOT NULL").count() == 2_999
    assert found.where("log_offset >= 0").count() == 3_000
    assert frame(spark, store, "messages", badRecords="skip", checkCrc="true").count() == 2_999
    with pytest.raises(PySparkException, match="are not a valid record"):
        frame(spark, store, "messages", checkCrc="true").count()


def test_a_limit_ends_the_reading(spark: SparkSession, rolled: Path) -> None:
    assert len(rows_of(frame(spark, rolled, "messages").limit(5))) == 5
