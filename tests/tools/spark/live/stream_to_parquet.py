"""A query in a process of its own, to be killed: a topic into Parquet. Says on standard output which batch is done.

stream_to_parquet.py NAMESERVER TOPIC FOLDER            until it is killed: "waiting", "batch 0", "batch 1", …
stream_to_parquet.py NAMESERVER TOPIC FOLDER --finish   what is there, then "read [sorted numbers]"
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pocketmq.tools.spark import spark_session

SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"


def main(nameserver: str, topic: str, folder: str, *finish: str) -> None:
    """Run the query."""
    settings = {"spark.driver.extraJavaOptions": SMALL_JVM, "spark.driver.memory": "600m"}
    spark = spark_session("to-parquet", master="local[2]", settings=settings)
    stream = (
        spark.readStream.format("rocketmq")
        .schema("queue int, queue_offset bigint, body binary")
        .options(nameServer=nameserver, subscribe=topic, consumerGroup="to-parquet")
        .option("maxOffsetsPerTrigger", 1_000_000 if finish else 100)
        .load()
    )
    writer = stream.writeStream.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    writer = writer.format("parquet").option("path", str(Path(folder) / "out"))
    if finish:
        writer.trigger(availableNow=True).start().awaitTermination()
        # By Spark: what a killed batch has left in the folder is not in the sink's own list.
        rows = spark.read.parquet(str(Path(folder) / "out")).select("body").collect()
        say("read " + json.dumps(sorted(int(bytes(row.body)) for row in rows)))
        spark.stop()
        return
    query: Any = writer.start()
    seen, has_waited = -1, False
    while not query.awaitTermination(0.05):
        if not has_waited and query.status["message"] == "Waiting for data to arrive":
            has_waited = True
            say("waiting")
        progress: Any = query.lastProgress
        if progress is not None and progress["batchId"] > seen:
            seen = progress["batchId"]
            say(f"batch {seen}")


def say(line: str) -> None:
    """Say LINE at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
