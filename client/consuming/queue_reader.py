"""Reads one queue ahead into the prefetch: one long-polling fetch after the other, for as long as the consumer lives.

error                                   what happens
offset out of range                     on at the nearest offset that is there, with a warning
retriable; topic or queue not there     a pause that doubles, then again, with the route asked for anew
any other                               the same, and the application meets the error at its next poll
"""

from __future__ import annotations

import logging

from ...proto.clock import Clock
from ...proto.errors import (
    GroupNotFound,
    NotReadable,
    OffsetOutOfRange,
    PocketMQError,
    QueueNotFound,
    TopicNotFound,
)
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..config import ConsumerConfig
from ..connections import BROKER, Connection, Connections
from ..queue import Queue
from ..received_message import FetchedRun
from ..routes import Routes
from .prefetch import Prefetch

logger = logging.getLogger(__name__)

_MAY_COME_BACK = (TopicNotFound, QueueNotFound, NotReadable)


class QueueReader:
    """Reads QUEUE for GROUP into PREFETCH. Not thread-safe: the consumer's event loop owns it."""

    def __init__(
        self,
        queue: Queue,
        group: str,
        config: ConsumerConfig,
        prefetch: Prefetch,
        *,
        routes: Routes,
        connections: Connections,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._group = group
        self._config = config
        self._prefetch = prefetch
        self._routes = routes
        self._connections = connections
        self._clock = clock
        self._offset: int | None = None
        self._failures = 0

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self._prefetch.room()
            try:
                if self._offset is None:
                    self._offset = await self._first_offset()
                self._offset = await self._read(self._offset)
                self._failures = 0
            except OffsetOutOfRange as error:
                self._offset = self._nearest(error)
            except PocketMQError as error:
                await self._pause(error)

    def _connection(self) -> Connection:
        self._routes.known(self._queue.topic)  # Asks for the route anew when it is old.
        return self._connections.to(self._routes.address(self._queue.broker))

    async def _read(self, offset: int) -> int:
        """Fetch once from OFFSET; return where to go on."""
        config, queue = self._config, self._queue
        request = pb.FetchRequest(
            topic=queue.topic,
            queue=queue.number,
            offset=offset,
            max_messages=config.fetch_messages_max,
            max_bytes=config.fetch_bytes_max,
            min_bytes=1,
            max_wait_ms=config.fetch_wait_ms,
            group=self._group,
        )
        timeout_ms = config.fetch_wait_ms + config.request_timeout_ms
        reply = await self._connection().fetch(request, timeout_ms)
        if reply.records:
            run = FetchedRun(queue.broker, reply.records)
            self._prefetch.put(queue, run, run.first_at_or_after(offset), reply.next_offset)
        elif reply.next_offset <= offset and config.fetch_wait_ms == 0:
            await self._clock.sleep_until(self._clock.now_ms() + config.retry_backoff_ms)
        return max(offset, reply.next_offset)

    def _nearest(self, error: OffsetOutOfRange) -> int:
        assert self._offset is not None
        least, end = int(error.details["min_offset"]), int(error.details["max_offset"])
        nearest = least if self._offset < least else end
        logger.warning(
            "offset is not there any more",
            extra={"queue": str(self._queue), "offset": self._offset, "going_on_at": nearest},
        )
        return nearest

    async def _pause(self, error: PocketMQError) -> None:
        self._failures += 1
        self._routes.forget(self._queue.topic)
        passing = error.retriable or isinstance(error, _MAY_COME_BACK)
        if not passing:
            self._prefetch.fail(error)
        if self._failures == 1:
            logger.warning(
                "queue cannot be read, trying again",
                extra={"queue": str(self._queue), "error": str(error)},
            )
        longest = self._config.retry_backoff_max_ms
        pause_ms = min(longest, self._config.retry_backoff_ms << min(self._failures - 1, 20))
        await self._clock.sleep_until(self._clock.now_ms() + pause_ms)

    async def _first_offset(self) -> int:
        start = self._config.start
        if start in ("committed", "committed-or-latest"):
            committed = await self._committed()
            if committed >= 0:
                return committed
        bounds = await self._bounds()
        return bounds.max_offset if "latest" in start else bounds.min_offset

    async def _committed(self) -> int:
        """Return the offset that the group has committed; −1: none."""
        queue = pb.QueueId(topic=self._queue.topic, queue=self._queue.number)
        request = pb.GroupOffsetsRequest(group=self._group, queues=[queue])
        try:
            reply = await self._connection().call(
                BROKER + "GroupOffsets",
                request,
                pb.GroupOffsetsReply,
                self._config.request_timeout_ms,
            )
        except GroupNotFound:
            return -1
        return reply.offsets[0].offset if reply.offsets else -1

    async def _bounds(self) -> pb.QueueOffsets:
        queue = pb.QueueId(topic=self._queue.topic, queue=self._queue.number)
        reply = await self._connection().call(
            BROKER + "QueueOffsets",
            pb.QueueOffsetsRequest(queues=[queue]),
            pb.QueueOffsetsReply,
            self._config.request_timeout_ms,
        )
        if not reply.offsets:
            raise QueueNotFound(f"broker {self._queue.broker} does not know queue {self._queue}")
        return reply.offsets[0]
