"""Messages as Parquet, in folders by topic and day: what warehouses read.

    export(spark, "/data/broker-*/store", to="s3a://lake/messages", reading=Reading(since_ms=…, until_ms=…))

`to/topic=Orders/day=2026-11-21/part-….parquet`; days are those of the store time, in UTC. A topic with characters that
a path cannot have is escaped as Spark does, and reads back as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .reading import Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Mode = Literal["new", "add", "replace"]
_MODES = {"new": "errorifexists", "add": "append", "replace": "overwrite"}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: messages, and their bytes in the log."""

    messages: int
    size_bytes: int


def messages_by_day(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return all columns of the messages of STORES, and `day`."""
    from pyspark.sql import functions as f

    messages = (reading or Reading()).messages(spark, stores)
    return messages.withColumn("day", f.to_date("store_timestamp"))


def export(
    spark: SparkSession,
    *stores: str,
    to: str,
    reading: Reading | None = None,
    mode: Mode = "new",
) -> Exported:
    """Write the messages of STORES to the folder TO; return how many.

    MODE "new": TO must not be there;  "add": files are added;  "replace": the days and topics that are written replace
    those that are there, and all others stay. So the same range, exported again with "replace", is there once.
    """
    from pyspark.sql import Observation, functions as f

    seen = Observation("exported")
    frame = messages_by_day(spark, *stores, reading=reading).observe(
        seen,
        f.count("*").alias("messages"),
        f.coalesce(f.sum("store_size"), f.lit(0)).alias("bytes"),
    )
    writer = frame.write.mode(_MODES[mode]).partitionBy("topic", "day")
    writer.option("partitionOverwriteMode", "dynamic").parquet(to)
    return Exported(seen.get["messages"], seen.get["bytes"])
