"""The format `rocketmq-store`: stores of brokers, read from their files. Needs pyspark; options: store_options.py.

    spark.read.format("rocketmq-store").option("dataset", "messages").load("/data/broker-*/store")

A plan is made once a query: the files, and where each ends, so that what a live broker appends meanwhile changes
nothing. A task is a range of bytes of one store; it yields Arrow batches. Spark's API gives a source no information
about the columns that a query needs: `.schema("topic string, queue_offset bigint")` does, and only those are decoded.

The small datasets of a store (its queues, its committed offsets, its lag) are read as after the recovery of a broker,
in one task.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...store.opened_store import OpenedStore
from ..lag.cold import store_rows
from ..stores.locations import StoreLocation, locate
from ..stores.scan.bad_records import BadRecords
from ..stores.scan.scan import Scan, ScanTask
from ..stores.schemas import arrow, projected
from .column_types import check_types
from .store_filters import Wanted
from .store_options import StoreOptions, store_options

if TYPE_CHECKING:
    import pyarrow

TABLES: Final = ("queues", "offsets", "lag")


def table_batch(location: StoreLocation, options: StoreOptions) -> pyarrow.RecordBatch:
    """Return the whole dataset of OPTIONS of the store at LOCATION. StoreMismatch: no broker would start on it."""
    store = options.opening.open(location)
    rows = [
        {"broker": location.broker_name, **row}
        for row in _ROWS[options.scan.dataset](store, options.opening.now_ms)
    ]
    return arrow().RecordBatch.from_pylist(rows, schema=options.scan.schema())


def _queues(store: OpenedStore, now_ms: int) -> Iterator[dict[str, Any]]:
    for queue in store.queues():
        yield {
            "topic": queue.topic,
            "queue": queue.queue_id,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
        }


def _offsets(store: OpenedStore, now_ms: int) -> Iterator[dict[str, Any]]:
    for one in store.committed_offsets():
        yield {
            "topic": one.topic,
            "queue": one.queue_id,
            "group": one.group,
            "committed_offset": one.offset,
        }


def _lag(store: OpenedStore, now_ms: int) -> Iterator[dict[str, Any]]:
    for row in store_rows(store, now_ms):
        yield row.to_json()


_ROWS: Final = {"queues": _queues, "offsets": _offsets, "lag": _lag}


class StoreSource(DataSource):
    """Stores on disks."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> StructType:
        return from_arrow_schema(store_options(self.options).scan.schema())

    def reader(self, schema: StructType) -> StoreReader:
        options = store_options(self.options)
        options = options.with_columns(checked_columns(options.scan.dataset, schema))
        return FilteringStoreReader(options) if options.pushdown else StoreReader(options)


def checked_columns(dataset: str, schema: StructType) -> tuple[str, ...]:
    """Return the names of the columns of SCHEMA. Raises ConfigError for one that DATASET has not, or not so."""
    names = tuple(schema.fieldNames())
    check_types(schema, projected(dataset, names), of=f" of dataset {dataset}")
    return names


@dataclass
class StorePartition(InputPartition):
    """One task: a part of a scan, or all of a small dataset of one store."""

    task: ScanTask | StoreLocation


class StoreReader(DataSourceReader):
    """Reads what options ask for; filters stay with Spark."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._wanted = Wanted(options.conditions)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        locations = [
            location
            for location in locate(
                options.paths, broker_name=options.broker_name, settings=options.scan.settings
            )
            if self._wanted.wants_broker(location.broker_name)
        ]
        if options.scan.dataset in TABLES:
            return [StorePartition(location) for location in locations]
        return [StorePartition(task) for task in self._scan().plan(locations)]

    def _scan(self) -> Scan:
        return Scan(self._options.scan, self._wanted.conditions)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, StorePartition):
            return  # Spark makes one empty partition of none.
        if isinstance(partition.task, StoreLocation):
            yield table_batch(partition.task, self._options)
            return
        bad = BadRecords(self._options.scan.bad_records)
        yield from self._scan().read(partition.task, bad)
        if bad.count:
            print(f"{partition.task.location.url}: {bad.sentence()}", file=sys.stderr)


class FilteringStoreReader(StoreReader):
    """Takes over filters on places and times. Spark refuses such a reader unless its setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        scan = self._options.scan
        for filter in filters:
            taken = self._wanted.taking(filter, scan.dataset, bad_rows=scan.bad_records == "rows")
            if taken is None:
                yield filter
            else:
                self._wanted = taken
