"""Work on whole stores, one task per store: for jobs that need a broker's tables next to its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ....proto.errors import StoreMismatch
from ...stores.locations import StoreLocation

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
