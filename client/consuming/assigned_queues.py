"""Gives a consumer the queues that the application chose, beside whoever else reads them: nothing is shared."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from ...proto.errors import PocketMQError
from ...proto.facts import Facts
from ..queue import Queue
from ..tasks import Alarm
from .held_queue import HeldQueue, QueueUser
from .parts import ConsumerParts
from .whole_topics import WATCH_UNKNOWN_MS, CommittedOf

logger = logging.getLogger(__name__)


class AssignedQueues:
    """Gives USER the queues that `replace` names; COMMITTED_OF says where each goes on."""

    def __init__(self, user: QueueUser, parts: ConsumerParts, committed_of: CommittedOf) -> None:
        self._user = user
        self._group = parts.group
        self._session = parts.session
        self._committed_of = committed_of
        self._chosen: set[Queue] = set()
        self._held: dict[Queue, HeldQueue] = {}
        self._changed = Alarm(parts.session.clock, parts.session.tasks)

    def start(self) -> None:
        """Begin."""
        self._session.tasks.spawn(self._run())

    async def replace(self, queues: Collection[Queue]) -> None:
        """Read QUEUES from now on, and no others."""
        self._chosen = set(queues)
        await self._drop(self._held.keys() - self._chosen)
        self._changed.ring()

    async def _run(self) -> None:
        clock = self._session.clock
        while True:
            missing = self._chosen - self._held.keys()
            try:
                await self._find(missing)
            except PocketMQError as error:
                logger.warning(
                    "queues cannot be read yet %s",
                    Facts(
                        group=self._group,
                        queues=", ".join(map(str, sorted(missing)[:32])),
                        reason=error.message,
                    ),
                )
            if self._chosen <= self._held.keys():
                await self._changed.wait()
            else:
                await self._changed.wait_until(clock.now_ms() + WATCH_UNKNOWN_MS)

    async def _find(self, missing: Collection[Queue]) -> None:
        for topic in sorted({queue.topic for queue in missing}):
            await self._session.routes.find(topic)
        for queue, committed in (await self._committed_of(missing)).items():
            if queue in self._chosen and queue not in self._held:
                held = self._held[queue] = HeldQueue(queue, 0, committed, from_start=True)
                self._user.begin(held)

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return by what right QUEUE is read; None: it is not ours."""
        return self._held.get(queue)

    def lost(self, held: HeldQueue) -> None:
        """Go on: a member of the group holds the queue, which keeps us from committing and from nothing else."""
        logger.warning(
            "offset not committed %s",
            Facts(
                group=self._group,
                queue=held.queue,
                reason="a member of the group holds the queue",
            ),
        )

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        """Nothing is held against anybody: there is no lease."""

    def doubt(self, held: HeldQueue) -> None:
        """Nothing is held against anybody: there is no lease."""

    def look_again(self) -> None:
        """The queues are the application's choice."""

    async def close(self) -> None:
        """Have every queue ended."""
        self._chosen.clear()
        await self._drop(set(self._held))

    async def _drop(self, queues: Collection[Queue]) -> None:
        await asyncio.gather(*(self._user.end(queue, lost=False) for queue in queues))
        for queue in queues:
            del self._held[queue]
