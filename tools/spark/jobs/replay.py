"""Sending stored messages again, to a topic of a cluster that runs: at least once, each with a key of its own.

    replay(spark, "./backup/store", topic="Orders", nameserver="127.0.0.1:9876", reading=Reading(topics=("Orders",)))

A message goes out with its body, tags, keys, sharding key and the application's properties, and with one more:
REPLAYED_FROM, "broker/topic/queue/offset" of its old place. It is the same, however often and in whatever order tasks
run, so that a reader, or a query, can drop duplicates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .reading import Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLAYED_FROM: Final = "REPLAYED_FROM"
_COLUMNS: Final = (
    "broker string, topic string, queue int, queue_offset bigint, store_timestamp timestamp, tags string,"
    " keys string, sharding_key string, properties map<string,string>, body binary"
)


def replayed(
    spark: SparkSession, *stores: str, reading: Reading | None = None, topic: str | None = None
) -> DataFrame:
    """Return the messages of STORES as `replay` sends them: to TOPIC, or each to its own."""
    from pyspark.sql import functions as f

    messages = (reading or Reading()).messages(spark, stores, _COLUMNS)
    origin = f.concat_ws("/", "broker", "topic", "queue", "queue_offset")
    own = f.map_filter("properties", lambda name, _: name != REPLAYED_FROM)
    return messages.select(
        f.lit(topic).alias("topic") if topic else f.col("topic"),
        "body",
        "tags",
        "keys",
        "sharding_key",
        f.map_concat(own, f.create_map(f.lit(REPLAYED_FROM), origin)).alias("properties"),
    )


def replay(
    spark: SparkSession,
    *stores: str,
    nameserver: str,
    topic: str | None = None,
    reading: Reading | None = None,
) -> int:
    """Send the messages of STORES to the cluster of NAMESERVER; return how many rows were sent once or more."""
    from pyspark.sql import Observation, functions as f

    seen = Observation("replayed")
    frame = replayed(spark, *stores, reading=reading, topic=topic)
    frame = frame.observe(seen, f.count("*").alias("messages"))
    frame.write.format("rocketmq").option("nameServer", nameserver).mode("append").save()
    return int(seen.get["messages"])
