"""Sends the rows of one task, some lists at a time, and reports when all are acknowledged.

With idempotence the producer's id is drawn from the task's key, its numbers count from 0 on, and rows go to a queue by
their number: a task that runs again sends the same numbers to the same queues, and brokers drop what they have. Where a
broker knows of a later epoch of that id (an earlier try had to begin a new one, see docs/produce.md), the rest is sent
by a producer of its own: at least once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from random import Random
from typing import Final

from ....client.connections import Connections, GrpcConnections
from ....client.loop_thread import LoopThread
from ....client.message import Message
from ....client.producer import AsyncProducer
from ....client.producing.receipt import Receipts
from ....client.queue import Queue
from ....proto.errors import ProducerFenced
from .endpoints import EndpointConnections
from .row_keys import SPARK_SEQUENCE
from .write_options import WriteOptions

logger = logging.getLogger(__name__)

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
                "producer numbering lost, rows of this task may be duplicated error=%s",
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
