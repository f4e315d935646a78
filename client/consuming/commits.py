"""Has the brokers keep how far the group is, by the right by which each queue is held.

A broker takes all offsets of a request or none. It refuses those of a queue that is not ours any more (LeaseLost): the
source is told, and the others are committed all the same. What is committed again, since its broker may have forgotten
it, goes with the text that it had. Not thread-safe: its event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ...proto.errors import Disconnected, LeaseLost, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..connections import BROKER
from ..queue import Queue, in_parts
from .held_queue import HeldQueue, QueueSource
from .offset_keeper import OffsetKeeper
from .parts import ConsumerParts

#: The right, the offset, and its text; None: as it is.
_Row: TypeAlias = tuple[HeldQueue, int, str | None]


class Commits(OffsetKeeper):
    """Commits for the group what SOURCE says that we hold."""

    def __init__(self, parts: ConsumerParts, source: QueueSource) -> None:
        super().__init__()
        self._session = parts.session
        self._group = parts.group
        self._timeout_ms = parts.config.request_timeout_ms
        self._counts = parts.counts
        self._source = source
        #: What is committed again, since its broker may have forgotten it.
        self._doubtful: set[Queue] = set()
        #: Texts that we committed with what is committed now.
        self._metadata: dict[Queue, str] = {}

    def doubt(self, broker: str) -> None:
        """Commit again to BROKER what it took so far: a broker writes offsets down only now and then."""
        self._doubtful |= {queue for queue in self._committed if queue.broker == broker}

    def forget(self, queue: Queue) -> None:
        """Forget what was committed of QUEUE: somebody else goes on with it."""
        super().forget(queue)
        self._doubtful.discard(queue)
        self._metadata.pop(queue, None)

    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Commit OFFSETS, to all brokers at once; queues that are not held, or committed so far, are left out.

        Those in METADATA are committed once more. Raises the first error that a broker gave, once all have answered.
        A queue that was lost is none.
        """
        texts = metadata or {}
        by_broker: dict[str, list[_Row]] = {}
        for queue, offset in offsets.items():
            held = self._source.held(queue)
            is_known = self._committed.get(queue) == offset
            text = texts.get(queue)
            if is_known and text is None:
                if queue not in self._doubtful:
                    continue
                text = self._metadata.get(queue)
            if held is not None:
                by_broker.setdefault(queue.broker, []).append((held, offset, text))
        results = await asyncio.gather(
            *(
                self._commit_to(broker, part)
                for broker, rows in by_broker.items()
                for part in in_parts(rows)
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _commit_to(self, broker: str, rows: list[_Row]) -> None:
        try:
            await self._ask(broker, rows)
        except LeaseLost:
            if len(rows) == 1:
                self._source.lost(rows[0][0])
                return
            # The answer is about one of them: each for itself.
            for row in rows:
                await self._commit_to(broker, [row])

    async def _ask(self, broker: str, rows: Iterable[_Row]) -> None:
        request = pb.CommitOffsetsRequest(group=self._group)
        for held, offset, text in rows:
            topic, _, number = held.queue
            request.offsets.add(
                topic=topic, queue=number, offset=offset, lease=held.token, metadata=text
            )
        connection = self._session.connections.to(self._session.routes.address(broker))
        try:
            await connection.call(
                BROKER + "CommitOffsets", request, pb.CommitOffsetsReply, self._timeout_ms
            )
        except PocketMQError as error:
            self._counts.commits_failed += 1
            if isinstance(error, Disconnected):
                self.doubt(broker)
            raise
        for held, offset, text in rows:
            if self._source.held(held.queue) == held:
                self._note(held.queue, offset, text)
            self._counts.commits += 1

    def _note(self, queue: Queue, offset: int, text: str | None) -> None:
        if text:
            self._metadata[queue] = text
        elif text is not None or self._committed.get(queue) != offset:
            self._metadata.pop(queue, None)
        self._committed[queue] = offset
        self._doubtful.discard(queue)
