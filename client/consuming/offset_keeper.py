"""Keeps how far a consumer is, and knows what it has kept, so that nothing is kept twice."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

from ...proto.errors import PocketMQError
from ...proto.facts import Facts
from ..queue import Queue
from .held_queue import HeldQueue
from .parts import ConsumerParts

logger = logging.getLogger(__name__)

#: Queues that one log line names.
_QUEUES_NAMED: Final = 8


class OffsetKeeper(ABC):
    """Keeps offsets: the brokers for a group, a file for a consumer that reads everything for itself.

    Not thread-safe: its event loop owns it.
    """

    def __init__(self) -> None:
        self._committed: dict[Queue, int] = {}

    @abstractmethod
    async def commit(self, offsets: Mapping[Queue, int]) -> None:
        """Keep OFFSETS."""

    @abstractmethod
    def doubt(self, broker: str) -> None:
        """Hear that the connection to BROKER broke: it may be another run, and not know what was committed last."""

    def begin(self, held: HeldQueue) -> None:
        """Note what was kept of a queue when it came."""
        if held.committed >= 0:
            self._committed[held.queue] = held.committed

    def committed(self, queue: Queue) -> int | None:
        """Return what was kept last of QUEUE, by us or before it came; None: nothing yet."""
        return self._committed.get(queue)

    def forget(self, queue: Queue) -> None:
        """Forget what was kept of QUEUE: it has gone."""
        self._committed.pop(queue, None)


async def commit_regularly(
    parts: ConsumerParts,
    keeper: OffsetKeeper,
    finished: Callable[[], Mapping[Queue, int]],
) -> None:
    """Commit what FINISHED() says, every auto_commit_interval_ms, until cancelled; what fails is tried again."""
    clock, group = parts.session.clock, parts.group
    while True:
        await clock.sleep_until(clock.now_ms() + parts.config.auto_commit_interval_ms)
        try:
            await keeper.commit(offsets := finished())
        except PocketMQError as error:
            queues = ", ".join(map(str, sorted(offsets)[:_QUEUES_NAMED]))
            logger.warning(
                "offsets not committed, trying again later %s",
                Facts(group=group, queues=queues, reason=error.message),
            )
