"""The readers, as Spark calls them: plans on the driver, ranges in tasks.

Needs pyspark. A reader is made in Spark's planner, which asks brokers, and pickled for the workers, which fetch.
Objects with a connection are made where they are used, and left out of the pickle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from .columns import Layout
from .offsets import from_checkpoint, to_checkpoint, to_tree
from .place import Place
from .ranges import QueueRange
from .read_options import Pulling, ReadOptions

if TYPE_CHECKING:
    from .cluster import LiveCluster
    from .columns import Layout
    from .plans import StreamPlan

#: What a checkpoint holds is named so in errors.
_CHECKPOINT: Final = "checkpoint"


class RangePartition(InputPartition):
    """One task's share: WANTED."""

    def __init__(self, wanted: QueueRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class LiveReader(DataSourceReader):
    """Reads what OPTIONS say, once, as rows of LAYOUT."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def partitions(self) -> list[InputPartition]:
        from .cluster import LiveCluster
        from .plans import batch_ranges

        cluster = LiveCluster(self._options.place, self._options.pulling)
        try:
            return [RangePartition(one) for one in batch_ranges(self._options, cluster)]
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _rows(self._options, self._layout, partition)


class LiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what OPTIONS say, for ever, as rows of LAYOUT."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._cluster: LiveCluster | None = None
        self._plan: StreamPlan | None = None
        self._initial: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None, "_plan": None}

    @property
    def plan(self) -> StreamPlan:
        """The positions; made when they are first asked for."""
        if self._plan is None:
            from ....proto.clock import SystemClock
            from .cluster import LiveCluster
            from .plans import StreamPlan

            self._cluster = LiveCluster(self._options.place, self._options.pulling)
            self._plan = StreamPlan(self._options, self._cluster, SystemClock())
        return self._plan

    def initialOffset(self) -> dict[str, Any]:
        initial = self.plan.initial()
        if self._initial is None:
            self._initial = {**to_checkpoint(initial, self.plan.marks(initial))}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        return (
            ReadAllAvailable() if options.offsets_min is None else ReadMinRows(options.offsets_min)
        )

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # A limit of all is also Trigger.Once's, which goes before the options.
        is_limited = not isinstance(limit, ReadAllAvailable)
        begin, marks = from_checkpoint(start, _CHECKPOINT)
        end = self.plan.latest(
            begin,
            marks,
            most=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            least=self._options.offsets_min if is_limited else None,
        )
        return {**to_checkpoint(end, self.plan.marks(end, begin, marks))}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self.plan.newest()
        return {**to_tree(newest)} if newest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self.plan.prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, marks = from_checkpoint(start, _CHECKPOINT)
        until, end_marks = from_checkpoint(end, _CHECKPOINT)
        ranges = self.plan.ranges(begin, until, marks, end_marks)
        return [RangePartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _rows(self._options, self._layout, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self.plan.commit(from_checkpoint(end, _CHECKPOINT)[0])

    def stop(self) -> None:
        cluster, self._cluster, self._plan = self._cluster, None, None
        if cluster is not None:
            cluster.close()


def _rows(options: ReadOptions, layout: Layout, partition: InputPartition) -> Iterator[Any]:
    """Yield the rows of PARTITION as pyarrow.RecordBatches; Spark makes one of None of an empty plan."""
    if not isinstance(partition, RangePartition):
        return
    from .losses import Losses
    from .range_reading import fetched

    cluster = _cluster(options.place, options.pulling)
    losses = Losses(options.fail_on_data_loss)
    for part in fetched(cluster, partition.wanted, options.filter, losses):
        batch = layout.batch(part, losses)
        if batch.num_rows:
            yield batch


#: Connections of this process, which Spark gives one task after the other.
_clusters: dict[tuple[int, Place, Pulling], LiveCluster] = {}


def _cluster(place: Place, pulling: Pulling) -> LiveCluster:
    from .cluster import LiveCluster

    key = os.getpid(), place, pulling
    if key not in _clusters:
        _clusters[key] = LiveCluster(place, pulling)
    return _clusters[key]
