"""The session: what it sets, and that workers run this Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pocketmq.tools.spark import spark_session
from pocketmq.tools.spark.session import LOCAL_SETTINGS, SETTINGS, prepare_environment, settings_of

from ..test_java import a_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_callers_settings_win() -> None:
    chosen = settings_of("local[2]", {"spark.sql.shuffle.partitions": "9"}, {})

    assert chosen == {**SETTINGS, **LOCAL_SETTINGS, "spark.sql.shuffle.partitions": "9"}


def test_a_cluster_keeps_its_own_addresses_and_tasks() -> None:
    assert settings_of("spark://far:7077", {}, {"PYTHONPATH": "here"}) == dict(SETTINGS)


def test_executors_get_the_python_path() -> None:
    chosen = settings_of("local-cluster[2,1,1024]", {}, {"PYTHONPATH": "here"})

    assert chosen["spark.executorEnv.PYTHONPATH"] == "here"


def test_the_environment_is_filled_but_not_overruled(tmp_path: Path) -> None:
    home = a_java(tmp_path / "java")
    environment = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": "mine"}

    prepare_environment(environment, "local[1]")

    assert environment == {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": "mine",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.long
@pytest.mark.spark
def test_workers_run_this_python(spark: SparkSession) -> None:
    import pyarrow

    def executables(batches):  # type: ignore[no-untyped-def]
        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

    found = spark.range(1, numPartitions=1).mapInArrow(executables, "python string").collect()

    assert [row.python for row in found] == [sys.executable]


@pytest.mark.long
@pytest.mark.spark
def test_a_second_call_gives_the_same_session(spark: SparkSession) -> None:
    again = spark_session(master="local[2]")

    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
