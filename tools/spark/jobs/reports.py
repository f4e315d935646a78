"""What is in the messages of a fleet, counted: dead letters, tags, keys, rates. Each is a DataFrame of few rows.

    from pocketmq.tools.spark.jobs.reports import rates
    rates(spark, "/data/broker-*/store").where("topic = 'Orders'").show()

Bodies are not decoded: only the columns that a report needs are decoded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ....proto.properties import (
    DEAD_LETTER_ORIGIN_MESSAGE_ID,
    DEAD_LETTER_ORIGIN_TOPIC,
    RETRY_TOPIC,
)
from ....proto.topics import DEAD_LETTER_PREFIX
from .reading import Reading, topics_with

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DEAD_LETTERS: Final = (
    "broker string, topic string, queue int, queue_offset bigint, store_timestamp timestamp,"
    " born_timestamp timestamp, store_size int, reconsume_times int, message_id string, tags string, keys string,"
    " properties map<string,string>"
)


def dead_letters(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return every dead letter that STORES hold, a row each: whose, where it came from, when it died, how often tried.

    Only the queues of dead letters are read. origin_topic and origin_message_id are null where the letter does not say.
    """
    from pyspark.sql import functions as f

    reading = reading or Reading()
    topics = reading.topics or topics_with(stores, DEAD_LETTER_PREFIX)
    if not topics:
        letters = spark.createDataFrame([], _DEAD_LETTERS)
    else:
        letters = replace(reading, topics=topics).messages(spark, stores, _DEAD_LETTERS)
    properties = f.col("properties")
    return letters.select(
        f.expr(f"substring(topic, {len(DEAD_LETTER_PREFIX) + 1})").alias("group"),
        "broker",
        "queue",
        "queue_offset",
        f.coalesce(properties[DEAD_LETTER_ORIGIN_TOPIC], properties[RETRY_TOPIC]).alias(
            "origin_topic"
        ),
        properties[DEAD_LETTER_ORIGIN_MESSAGE_ID].alias("origin_message_id"),
        "message_id",
        "tags",
        "keys",
        "reconsume_times",
        "born_timestamp",
        f.col("store_timestamp").alias("died_timestamp"),
        "store_size",
    ).orderBy("group", "died_timestamp", "broker", "queue", "queue_offset")


def tags(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return messages and bytes of STORES by topic and tag, the most first; the tag is null where there is none."""
    from pyspark.sql import functions as f

    columns = "topic string, tags string, store_size int, store_timestamp timestamp"
    messages = (reading or Reading()).messages(spark, stores, columns)
    return (
        messages.groupBy("topic", "tags")
        .agg(f.count("*").alias("messages"), f.sum("store_size").alias("size_bytes"))
        .orderBy(f.desc("messages"), "topic", "tags")
    )


def keys(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return how many messages of STORES have each key, by topic, the most first; a message may have several."""
    from pyspark.sql import functions as f

    columns = "topic string, keys string, store_size int, store_timestamp timestamp"
    messages = (reading or Reading()).messages(spark, stores, columns).where("keys is not null")
    words = messages.select(
        "topic", f.explode(f.split("keys", " ")).alias("key"), "store_size"
    ).where("key <> ''")
    return (
        words.groupBy("topic", "key")
        .agg(f.count("*").alias("messages"), f.sum("store_size").alias("size_bytes"))
        .orderBy(f.desc("messages"), "topic", "key")
    )


def rates(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return by topic and minute the messages that STORES received, and their bytes: sum, mean, maximum."""
    from pyspark.sql import functions as f

    columns = "topic string, store_timestamp timestamp, store_size int"
    messages = (reading or Reading()).messages(spark, stores, columns)
    return (
        messages.groupBy("topic", f.date_trunc("minute", "store_timestamp").alias("minute"))
        .agg(
            f.count("*").alias("messages"),
            f.sum("store_size").alias("size_bytes"),
            f.round(f.avg("store_size"), 1).alias("mean_bytes"),
            f.max("store_size").alias("largest_bytes"),
        )
        .orderBy("minute", "topic")
    )
