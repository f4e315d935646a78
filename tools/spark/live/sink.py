"""The sink, as Spark calls it: each task sends its rows and is done when all are acknowledged. At least once.

Needs pyspark; made in Spark's planner, pickled, and run in its Python workers, where everything else is imported.

Sends the rows of one task, some lists at a time, and says when all are acknowledged.

With idempotence the producer's id is drawn from the task's key, its numbers count from 0 on, and rows go to a queue by
their number: a task that runs again sends the same numbers to the same queues, and brokers drop what they have. Where a
broker knows of a later epoch of that id (an earlier try had to begin anew, see docs/produce.md), the rest is sent by a
producer of its own: at least once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ....client.connections import Connections, GrpcConnections
from ....client.loop_thread import LoopThread
from ....client.message import Message
from ....client.producer import AsyncProducer
from ....client.producing.receipt import Receipts
from ....client.queue import Queue
from ....proto.errors import ProducerFenced
from .endpoints import EndpointConnections
from .row_keys import SPARK_SEQUENCE, task_key
from .write_options import WriteOptions

logger = logging.getLogger(__name__)

#: What Spark tells a task of a stream.
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
    from .columns import Rows

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


# ---------------------------------------------------------------- sending the rows of one task


#: Lists under way at a time.
_LISTS_MAX: Final = 4
#: A sender that is closed after an error does not wait for what it cannot deliver.
_CLOSE_TIMEOUT_MS: Final = 1_000
#: So many rows of a task that follow each other go to one queue, where the sender chooses it: runs stay long.
ROWS_A_QUEUE: Final = 1_000


class RowSender:
    """Sends for the task with key TASK of partition PARTITION. Close it, or use it in a `with` block."""

    def __init__(self, options: WriteOptions, task: int, partition: int) -> None:
        self._options = options
        self._partition = partition
        self._idempotent = options.idempotence
        self._under_way: deque[tuple[Sequence[Message], Future[Receipts]]] = deque()
        self._portal = LoopThread.acquire()
        #: What a producer draws at its start, its id among it, is the same for the same seed.
        self._producer = self._portal.run(
            self._open(Random(task) if self._idempotent else Random())
        )

    async def _open(self, random: Random) -> AsyncProducer:
        options = self._options
        connections: Connections = GrpcConnections()
        if options.place.are_brokers:
            connections = EndpointConnections(
                connections, options.place.addresses, options.place.timeout_ms
            )
        producer = AsyncProducer(
            options.place.text,
            connections=connections,
            random=random,
            acks=options.acks,
            group=options.group,
            delivery_timeout_ms=options.send_timeout_ms,
            max_block_ms=options.send_timeout_ms,
            compression=options.compression,
            compress_above_bytes=options.compress_above_bytes,
            queue_selector=ByRow(self._partition) if self._idempotent else "round-robin",
        )
        await producer.start()
        return producer

    def put(self, messages: Sequence[Message]) -> None:
        """Send MESSAGES; wait until few enough lists are under way."""
        if messages:
            self._under_way.append((messages, self._start(messages)))
        while len(self._under_way) > _LISTS_MAX:
            self._finish_first()

    def finish(self) -> None:
        """Return once everything is acknowledged; raise the first error."""
        while self._under_way:
            self._finish_first()

    def _start(self, messages: Sequence[Message]) -> Future[Receipts]:
        return self._portal.start(self._producer.send_many(messages))

    def _finish_first(self) -> None:
        try:
            self._under_way[0][1].result()
        except ProducerFenced as error:
            if not self._idempotent:
                raise
            logger.warning(
                "repeats of this task cannot be told any more: its rows may be there twice error=%s",
                error.message,
            )
            self._begin_anew()
        else:
            self._under_way.popleft()

    def _begin_anew(self) -> None:
        """Send what is not acknowledged by another producer."""
        self._portal.run(self._producer.close(_CLOSE_TIMEOUT_MS))
        self._idempotent = False
        self._producer = self._portal.run(self._open(Random()))
        again, self._under_way = self._under_way, deque()
        for messages, _ in again:
            self._under_way.append((messages, self._start(messages)))

    def close(self) -> None:
        """Disconnect; what is not acknowledged by now may still be delivered."""
        try:
            self._portal.run(self._producer.close(_CLOSE_TIMEOUT_MS))
        finally:
            self._portal.release()


class ByRow:
    """Chooses a queue by a row's number: every try of PARTITION's task chooses the same of the same queues."""

    for_a_run = False

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        row = int(message.properties[SPARK_SEQUENCE].rpartition(":")[2])
        return queues[(self._partition + row // ROWS_A_QUEUE) % len(queues)]
