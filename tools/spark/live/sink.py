"""The sink, as Spark calls it: each task sends its rows and is done when all are acknowledged. At least once.

Needs pyspark; made in Spark's planner, pickled, and run in its Python workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from .row_keys import task_key
from .row_sender import RowSender
from .write_options import WriteOptions

logger = logging.getLogger(__name__)

#: Properties that Spark sets for a task of a stream.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Sent(WriterCommitMessage):
    """What a task has sent: ROWS of PARTITION."""

    partition: int
    rows: int


class BatchSink(DataSourceArrowWriter):
    """Sends a batch, with OPTIONS and COLUMNS; its rows have keys of its own, or of the option jobId."""

    def __init__(self, options: WriteOptions, columns: Mapping[str, int]) -> None:
        self._options = options
        self._columns = dict(columns)
        self._job_id = options.job_id or str(uuid4())

    def write(self, iterator: Iterator[Any]) -> Sent:
        task = TaskContext.get()
        assert task is not None, "Spark writes within a task"
        partition = task.partitionId()
        key = task_key(self._job_id, 0, partition)
        return _write(self._options, self._columns, key, partition, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _note(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _warn(messages)


class StreamSink(DataSourceStreamArrowWriter):
    """Sends the batches of a stream, with OPTIONS and COLUMNS."""

    def __init__(self, options: WriteOptions, columns: Mapping[str, int]) -> None:
        self._options = options
        self._columns = dict(columns)

    def write(self, iterator: Iterator[Any]) -> Sent:
        task = TaskContext.get()
        assert task is not None, "Spark writes within a task"
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        assert query is not None
        assert batch is not None
        partition = task.partitionId()
        key = task_key(query, int(batch), partition)
        return _write(self._options, self._columns, key, partition, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _note(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _warn(messages)


def _write(
    options: WriteOptions,
    columns: Mapping[str, int],
    key: int,
    partition: int,
    batches: Iterator[Any],
) -> Sent:
    """Send the rows of BATCHES; return once all are acknowledged."""
    # Spark's workers are forked: gRPC begins in each of them, not before.
    from .sink_columns import Rows

    rows = Rows(columns, options.topic, key)
    count = 0
    sender: RowSender | None = None
    try:
        for batch in batches:
            sender = sender or RowSender(options, key, partition)
            sender.put(list(rows.messages(batch, count)))
            count += batch.num_rows
        if sender is not None:
            sender.finish()
    finally:
        if sender is not None:
            sender.close()
    return Sent(partition, count)


def _sent(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message.rows for message in messages if isinstance(message, Sent))


def _note(messages: list[WriterCommitMessage | None]) -> None:
    logger.debug("rows sent count=%d", _sent(messages))


def _warn(messages: list[WriterCommitMessage | None]) -> None:
    logger.warning("job failed after rows were sent, which stay count=%d", _sent(messages))
