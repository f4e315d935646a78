"""Keeps how far a consumer is, and knows what it has kept, so that nothing is kept twice."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from ...proto.errors import PocketMQError
from ..queue import Queue
from ..session import Session
from .held_queue import HeldQueue

logger = logging.getLogger(__name__)


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
    session: Session,
    keeper: OffsetKeeper,
    interval_ms: int,
    finished: Callable[[], Mapping[Queue, int]],
) -> None:
    """Commit what FINISHED() says, every INTERVAL_MS, until cancelled; what fails is tried again the next time."""
    clock = session.clock
    while True:
        await clock.sleep_until(clock.now_ms() + interval_ms)
        try:
            await keeper.commit(finished())
        except PocketMQError as error:
            logger.warning("offsets not committed, trying again later", extra={"error": str(error)})
