"""`bench spark` measures what it says; here small stores, each query once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pocketmq.tools.bench import spark_scans as bench
from pocketmq.tools.bench.generated_traffic import Traffic
from pocketmq.tools.bench.measure import BenchConditions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]


class Kept:
    """A session that is not stopped."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Leave it to the tests."""


@pytest.mark.timeout(300)
def test_every_figure_with_an_aim_is_there_beside_parquet(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Traffic(count=5_000, log_file_bytes=256 << 10)
    for name, value in {
        "QUEUES": small,
        "MESSAGES": small,
        "LAG": Traffic(count=600, topics=2, queues=3),
        "_WARM_UP": 0,
        "_BEST_OF": 1,
        "_session": lambda: Kept(spark),
    }.items():
        monkeypatch.setattr(bench, name, value)

    figure = bench.spark(BenchConditions(folder=tmp_path, seconds=0.1))

    assert set(bench.AIMS) < set(figure.facts)
    assert 0 < figure.facts["filter_bytes_read"] < figure.facts["filter_bytes_of"] / 20
    assert {name for name in figure.beside if not name.startswith("ratio")} == {
        "spark_parquet_queue_rows_per_second",
        "spark_parquet_message_rows_per_second",
    }
    assert len(figure.notes) == len(figure.facts)
