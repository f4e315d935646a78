"""Reading datasets of many stores for jobs: which topics, which times, and how damage is treated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ....store.listing import queue_folders
from ...stores.locations import locate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What of stores is read.

    topics: these alone; empty for all.  since_ms, until_ms: stored in [since, until); None for no limit.  bad_records:
    fail, skip or rows.  check_crc: is a body that does not fit its CRC a bad record?  fail_on_data_loss: is a missing
    file an error?  settings: the broker's, by RocketMQ's names.
    """

    topics: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    bad_records: str = "fail"
    check_crc: bool = False
    fail_on_data_loss: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)

    def messages(
        self, spark: SparkSession, stores: Sequence[str], columns: str | None = None
    ) -> DataFrame:
        """Return the messages of STORES; COLUMNS, as Spark's DDL has them, are all that is decoded."""
        frame = self.dataset(spark, stores, "messages", columns)
        for bound_ms, is_inside in ((self.since_ms, "__ge__"), (self.until_ms, "__lt__")):
            if bound_ms is not None:
                bound = datetime.fromtimestamp(bound_ms / 1000, UTC)
                frame = frame.where(getattr(frame["store_timestamp"], is_inside)(bound))
        return frame

    def dataset(
        self, spark: SparkSession, stores: Sequence[str], name: str, columns: str | None = None
    ) -> DataFrame:
        """Return the dataset NAME of STORES."""
        options: dict[str, Any] = {
            "dataset": name,
            "badRecords": self.bad_records,
            "checkCrc": str(self.check_crc).lower(),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            **self.settings,
        }
        if self.topics:
            options["topic"] = ",".join(self.topics)
        reader = spark.read.format("rocketmq-store").options(**options)
        if columns is not None:
            reader = reader.schema(columns)
        return reader.load(list(stores))


def topics_with(stores: Sequence[str], prefix: str) -> tuple[str, ...]:
    """Return the topics of STORES whose names begin with PREFIX, by their queues' folders."""
    found = set()
    for location in locate(stores):
        disk = location.open_disk()
        for topic, _, _ in queue_folders(disk, f"{location.root}/consumequeue"):
            if topic.startswith(prefix):
                found.add(topic)
    return tuple(sorted(found))
