"""Reading datasets of many stores for jobs: which topics, which times, and what becomes of damage.

Work on whole stores, one task a store: for jobs that need a broker's tables beside its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from ....proto.errors import StoreMismatch
from ....store.listing import queue_folders
from ...stores.locations import StoreLocation, locate

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What of stores is read.

    topics: these alone; empty for all.  since_ms, until_ms: stored in [since, until); None for no bound.  bad_records:
    fail, skip or rows.  check_crc: is a body that does not fit its CRC a bad record?  fail_on_data_loss: is a missing
    file an error?  settings: the broker's, by Apache's names.
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
                frame = frame.where(getattr(frame["storeTimestamp"], is_inside)(bound))
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


# ---------------------------------------------------------------- work on whole stores, one task a store


class LeftOut:
    """Stores that no broker would open, as tasks tell of them; known when a query has run. Not over Spark Connect."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.accumulators import AccumulatorParam

        class Union(AccumulatorParam[frozenset[str]]):
            def zero(self, value: frozenset[str]) -> frozenset[str]:
                return frozenset()

            def addInPlace(self, value1: frozenset[str], value2: frozenset[str]) -> frozenset[str]:
                return value1 | value2

        self._messages = spark.sparkContext.accumulator(frozenset[str](), Union())

    def add(self, message: str) -> None:
        """Tell of one more, from a task."""
        self._messages.add(frozenset((message,)))

    @property
    def messages(self) -> list[str]:
        """Why each was left out."""
        return sorted(self._messages.value)


#: What a task makes of one store: rows, a batch at a time.
Work = Callable[[StoreLocation], Iterable["pyarrow.RecordBatch"]]


def of_each_store(
    spark: SparkSession,
    locations: Sequence[StoreLocation],
    work: Work,
    schema: StructType | str,
    *,
    left_out: LeftOut | None = None,
) -> DataFrame:
    """Return what WORK makes of each of LOCATIONS, in columns of SCHEMA; one task a store.

    WORK must be a function of a module, or a `functools.partial` of one: it travels to the tasks. A store that no
    broker would open fails the query, unless it can be LEFT_OUT.
    """
    count = len(locations)
    numbers = spark.range(0, count, 1, count)
    run: Any = partial(_of_numbers, tuple(locations), work, left_out)
    return numbers.mapInArrow(run, schema)


def _of_numbers(
    locations: Sequence[StoreLocation],
    work: Work,
    left_out: LeftOut | None,
    batches: Iterator[Any],
) -> Iterator[Any]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            try:
                yield from work(locations[number])
            except StoreMismatch as error:
                if left_out is None:
                    raise
                left_out.add(error.message)
