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
    "brokerName string, topic string, queueId int, queueOffset bigint, storeTimestamp timestamp,"
    " bornTimestamp timestamp, storeSize int, reconsumeTimes int, messageId string, tags string, keys string,"
    " properties map<string,string>"
)


def dead_letters(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return every dead letter that STORES hold, a row each: whose, where it came from, when it died, how often tried.

    Only the queues of dead letters are read. originTopic and originMessageId are null where the letter does not say.
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
        "brokerName",
        "queueId",
        "queueOffset",
        f.coalesce(properties[DEAD_LETTER_ORIGIN_TOPIC], properties[RETRY_TOPIC]).alias(
            "originTopic"
        ),
        properties[DEAD_LETTER_ORIGIN_MESSAGE_ID].alias("originMessageId"),
        "messageId",
        "tags",
        "keys",
        "reconsumeTimes",
        "bornTimestamp",
        f.col("storeTimestamp").alias("diedTimestamp"),
        "storeSize",
    ).orderBy("group", "diedTimestamp", "brokerName", "queueId", "queueOffset")


def tags(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return messages and bytes of STORES by topic and tag, the most first; the tag is null where there is none."""
    from pyspark.sql import functions as f

    columns = "topic string, tags string, storeSize int, storeTimestamp timestamp"
    messages = (reading or Reading()).messages(spark, stores, columns)
    return (
        messages.groupBy("topic", "tags")
        .agg(f.count("*").alias("messages"), f.sum("storeSize").alias("sizeBytes"))
        .orderBy(f.desc("messages"), "topic", "tags")
    )


def keys(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return how many messages of STORES have each key, by topic, the most first; a message may have several."""
    from pyspark.sql import functions as f

    columns = "topic string, keys string, storeSize int, storeTimestamp timestamp"
    messages = (reading or Reading()).messages(spark, stores, columns).where("keys is not null")
    words = messages.select(
        "topic", f.explode(f.split("keys", " ")).alias("key"), "storeSize"
    ).where("key <> ''")
    return (
        words.groupBy("topic", "key")
        .agg(f.count("*").alias("messages"), f.sum("storeSize").alias("sizeBytes"))
        .orderBy(f.desc("messages"), "topic", "key")
    )


def rates(spark: SparkSession, *stores: str, reading: Reading | None = None) -> DataFrame:
    """Return by topic and minute how many messages STORES took, and their bytes: in all, in the mean, at most."""
    from pyspark.sql import functions as f

    columns = "topic string, storeTimestamp timestamp, storeSize int"
    messages = (reading or Reading()).messages(spark, stores, columns)
    return (
        messages.groupBy("topic", f.date_trunc("minute", "storeTimestamp").alias("minute"))
        .agg(
            f.count("*").alias("messages"),
            f.sum("storeSize").alias("sizeBytes"),
            f.round(f.avg("storeSize"), 1).alias("meanBytes"),
            f.max("storeSize").alias("largestBytes"),
        )
        .orderBy("minute", "topic")
    )
