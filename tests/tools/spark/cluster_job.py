"""A job on executors in JVMs of their own: store and live topic read, joined, and written to another topic.

cluster_job.py JAVA_OPTIONS NAMESERVER STORE RECORDED TOPIC COPY    says "found " and a JSON object

The store RECORDED is read too, every dataset of it, in small pieces.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession, functions as F

from pocketmq.tools.spark import spark_session

DATASETS = ("messages", "consumequeue", "index", "queues", "offsets", "files")


def main(
    java_options: str, nameserver: str, store: str, recorded: str, topic: str, copy: str
) -> None:
    """Run the job."""
    spark = spark_session(
        "cluster-job",
        master="local-cluster[2,1,1024]",
        settings={
            "spark.driver.extraJavaOptions": java_options,
            "spark.executor.extraJavaOptions": java_options,
            "spark.driver.memory": "600m",
            "spark.executor.memory": "500m",
        },
    )
    place = "queue int, queue_offset bigint"
    stored = (
        spark.read.format("rocketmq-store")
        .schema(f"topic string, {place}, log_offset bigint")
        .load(store)
        .where(F.col("topic") == topic)
    )
    live = (
        spark.read.format("rocketmq")
        .schema(f"{place}, log_offset bigint, body binary")
        .options(nameServer=nameserver, subscribe=topic, minPartitions=4)
        .load()
    )
    both = live.join(F.broadcast(stored), ["queue", "queue_offset", "log_offset"])
    writer = both.select("body").write.format("rocketmq").mode("append")
    writer.options(nameServer=nameserver, topic=copy).save()
    java_context: Any = spark.sparkContext._jsc
    executors = java_context.sc().statusTracker().getExecutorInfos()
    found = {
        "both": both.count(),
        "executors": len(executors) - 1,
        "recorded": {name: count(spark, recorded, name) for name in DATASETS},
    }
    sys.stdout.write("found " + json.dumps(found) + "\n")
    spark.stop()


def count(spark: SparkSession, store: str, dataset: str) -> int:
    """Return how many rows DATASET of STORE has, read in pieces of 300 kB."""
    reader = spark.read.format("rocketmq-store").option("dataset", dataset)
    reader = reader.options(maxHashSlotNum=500, maxIndexNum=2000, maxSplitBytes=300_000)
    return int(reader.load(store).count())


if __name__ == "__main__":
    main(*sys.argv[1:])
