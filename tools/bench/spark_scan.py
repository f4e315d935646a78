"""`bench spark-scan`: messages and queue entries in Spark, local[2] and warm, with an aggregate over every column.

Beside it: Spark's own Parquet reader on the same rows with the same aggregate, in the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...proto.errors import ConfigError
from .measure import Conditions, Figure, own_cpu_seconds, seconds_of
from .scan import ENTRIES, MESSAGES
from .scan_data import make_log, make_queues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES_AIM: Final = 400_000
ENTRIES_AIM: Final = 1_500_000
_ROUNDS: Final = 4


def spark_scan(conditions: Conditions) -> Figure:
    """Measure both scans; the first round of each warms up, the best of the others counts."""
    figure = Figure(
        name="spark-scan",
        what=f"{MESSAGES:,} messages and {ENTRIES:,} queue entries in Spark local[2], every column touched",
    )
    logs, queues = conditions.folder / "log", conditions.folder / "queues"
    make_log(logs, MESSAGES)
    make_queues(queues, ENTRIES)
    from ..spark import spark_session

    try:
        spark = spark_session("pocketmq-bench", master="local[2]")
    except ConfigError as error:
        figure.notes = [f"not measured: {error.message}"]
        return figure
    try:
        cpu_before = own_cpu_seconds()
        _measure(figure, spark, conditions.folder, {"messages": logs, "consumequeue": queues})
        figure.client_cpu_seconds = own_cpu_seconds() - cpu_before
    finally:
        spark.stop()
    return figure


def _measure(figure: Figure, spark: SparkSession, folder: Path, stores: dict[str, Path]) -> None:
    seconds: dict[str, float] = {}
    for dataset, store in stores.items():
        rows = spark.read.format("rocketmq-store").option("dataset", dataset).load(str(store))
        seconds[dataset] = _best(rows)
        rows.write.parquet(str(folder / f"{dataset}.parquet"))
        copies = spark.read.parquet(str(folder / f"{dataset}.parquet"))
        seconds[f"{dataset} from Parquet"] = _best(copies)
    size = sum(path.stat().st_blocks * 512 for path in (stores["messages"] / "commitlog").iterdir())
    figure.add_rate(MESSAGES, size, seconds["messages"])
    entries_per_second = ENTRIES / seconds["consumequeue"]
    figure.facts = {
        "entries_per_second": entries_per_second,
        "entries_aim": ENTRIES_AIM,
        "messages": MESSAGES,
        "entries": ENTRIES,
    }
    figure.notes = [f"queue entries: {entries_per_second:,.0f} a second (aim: {ENTRIES_AIM:,})"]
    assert figure.messages_per_second is not None
    parquet = MESSAGES / seconds["messages from Parquet"]
    figure.compare("spark_parquet_messages_per_second", parquet, figure.messages_per_second)
    parquet = ENTRIES / seconds["consumequeue from Parquet"]
    figure.compare("spark_parquet_entries_per_second", parquet, entries_per_second)
    figure.aim = (figure.messages_per_second, MESSAGES_AIM, True)


def _best(rows: DataFrame) -> float:
    times = [seconds_of(lambda: _touch_all(rows)) for _ in range(_ROUNDS)]
    return min(times[1:])


def _touch_all(rows: DataFrame) -> Any:
    """Count the rows, and something of every column, so that none can be left out."""
    from pyspark.sql import functions

    touched = []
    for name, kind in rows.dtypes:
        column = functions.col(name)
        if kind in ("string", "binary"):
            column = functions.length(column)
        elif kind.startswith("map"):
            column = functions.size(column)
        touched.append(functions.max(column))
    return rows.agg(functions.count(functions.lit(1)), *touched).collect()
