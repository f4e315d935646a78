"""Keeps how far a consumer is, and knows what it has kept, so that nothing is kept twice."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from ...proto.errors import PocketMQError
from ...proto.facts import Facts
from ..queue import Queue
from .held_queue import HeldQueue
from .parts import ConsumerParts

logger = logging.getLogger(__name__)

#: Queues that one log line names.
_QUEUES_NAMED: Final = 8
#: A broker's clock waits for so long without an outcome (PATIENCE_S of broker/awaited.py).
HURRY_MS: Final = 5_000
_LOOK_MS: Final = 5


class OffsetKeeper(ABC):
    """Keeps offsets: the brokers for a group, a file for a consumer that reads everything for itself.

    Not thread-safe: its event loop owns it.
    """

    #: Can texts go with offsets?
    keeps_metadata: ClassVar[bool] = True

    def __init__(self) -> None:
        self._committed: dict[Queue, int] = {}

    @abstractmethod
    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Keep OFFSETS, and with those of the queues in METADATA these texts ("": none).

        A queue that is not in METADATA keeps its text as long as its offset.
        """

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


class RegularCommits:
    """Has KEEPER commit what FINISHED() says, every auto_commit_interval_ms; what fails is tried again.

    Where a broker's clock waits for what was fetched, at once when it is finished, for HURRY_MS.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        keeper: OffsetKeeper,
        finished: Callable[[], Mapping[Queue, int]],
    ) -> None:
        self._parts = parts
        self._clock = parts.session.clock
        self._keeper = keeper
        self._finished = finished
        self._hurries = False
        self._hurries_until_ms = 0

    def start(self) -> None:
        """Begin, until the session ends."""
        self._parts.session.tasks.spawn(self._run())
        self._parts.on_clock_waits.append(self._hurry)

    def _hurry(self) -> None:
        """Hear that a broker's clock waits until what has just come is committed."""
        self._hurries_until_ms = self._clock.now_ms() + HURRY_MS
        if not self._hurries:
            self._hurries = True
            self._parts.session.tasks.spawn(self._run_hurrying())

    async def _run(self) -> None:
        interval_ms = self._parts.config.auto_commit_interval_ms
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + interval_ms)
            await self._commit()

    async def _run_hurrying(self) -> None:
        try:
            while (now_ms := self._clock.now_ms()) < self._hurries_until_ms:
                await self._clock.sleep_until(now_ms + _LOOK_MS)
                await self._commit()
        finally:
            self._hurries = False

    async def _commit(self) -> None:
        offsets = self._finished()
        try:
            await self._keeper.commit(offsets)
        except PocketMQError as error:
            queues = ", ".join(map(str, sorted(offsets)[:_QUEUES_NAMED]))
            logger.warning(
                "offsets not committed, trying again later %s",
                Facts(group=self._parts.group, queues=queues, reason=error.message),
            )
