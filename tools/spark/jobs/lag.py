"""The lag of every group in every queue of a fleet, as a DataFrame; the rows of `pocketmq lag`, made by the same code.

    from pocketmq.tools.spark import spark_session
    from pocketmq.tools.spark.jobs.lag import lag

    lag(spark_session(), "/data/broker-*/store").where("verdict <> 'ok'").show()

One task a store: it is opened as its broker would open it, and judged; bodies are not read. Committed offsets are those
of the store, or those of OFFSETS, a DataFrame as `committed_offsets` (offset_files.py) reads it from any
consumerOffset.json: a backup's, another cluster's. Then a store is judged as if its broker had started with that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ....client import Admin
from ....client.config import ReadFrom
from ....proto.errors import ConfigError
from ....store.opened_store import CommittedOffset
from ...hidden_names import HiddenNames
from ...lag.cold import store_rows
from ...lag.live import cluster_rows
from ...lag.rows import lag_batch
from ...stores.locations import StoreLocation, locate
from ...stores.schemas import schema_of
from ..store_options import Opening
from .store_tasks import LeftOut, of_each_store

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def lag(
    spark: SparkSession,
    *stores: str,
    broker_name: str | None = None,
    opening: Opening | None = None,
    offsets: DataFrame | None = None,
    left_out: LeftOut | None = None,
) -> DataFrame:
    """Return the rows of STORES (paths, URLs, patterns over many brokers), opened as OPENING says: as of now.

    LEFT_OUT takes stores on which no broker would start; without it they fail the query, with StoreMismatch. Raises
    ConfigError for a name without a store.
    """
    opening = opening or Opening()
    locations = locate(stores, broker_name=broker_name, settings=opening.settings)
    if offsets is not None:
        return _reconciled(spark, locations, opening, offsets)
    work = partial(_rows_of_store, opening)
    return of_each_store(spark, locations, work, _schema(), left_out=left_out)


def _rows_of_store(opening: Opening, location: StoreLocation) -> Iterator[pyarrow.RecordBatch]:
    yield lag_batch(store_rows(opening.open(location), opening.now_ms))


def _reconciled(
    spark: SparkSession, locations: Sequence[StoreLocation], opening: Opening, offsets: DataFrame
) -> DataFrame:
    """Return the rows of LOCATIONS with the committed offsets of OFFSETS in place of their own."""
    by_broker = {location.broker_name: location for location in locations}
    brokers = spark.createDataFrame([(name,) for name in by_broker], "broker string")
    judge: Any = partial(_rows_with_offsets, by_broker, opening)
    return (
        brokers.groupBy("broker").cogroup(offsets.groupBy("broker")).applyInArrow(judge, _schema())
    )


def _rows_with_offsets(
    by_broker: Mapping[str, StoreLocation], opening: Opening, broker: Any, offsets: Any
) -> Any:
    import pyarrow

    if not broker.num_rows:
        name = offsets.column("broker")[0].as_py()
        raise ConfigError(
            f"there are offsets of broker {name!r}, and no store of it: give its store too"
        )
    location = by_broker[broker.column("broker")[0].as_py()]
    store = opening.open(location)
    store.replace_committed(
        [
            CommittedOffset(row["topic"], row["queue"], row["group"], row["committed_offset"])
            for row in offsets.to_pylist()
        ]
    )
    rows = store_rows(store, opening.now_ms)
    return pyarrow.Table.from_batches([lag_batch(rows)])


def cluster_lag(spark: SparkSession, nameserver: str, read_from: ReadFrom = "master") -> DataFrame:
    """Return the rows of the cluster of NAMESERVER, as its brokers return them; asked now, by this process.

    READ_FROM "any": replicas that follow look at the queues.
    """
    with Admin(nameserver) as admin:
        hidden = HiddenNames()
        rows = cluster_rows(admin, hidden, read_from)
        hidden.warn_once(admin)
    import pyarrow

    table = pyarrow.Table.from_batches([lag_batch(rows)])
    return spark.createDataFrame(table, _schema())


def _schema() -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema_of("lag"))
