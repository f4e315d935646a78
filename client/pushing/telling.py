"""Log lines of failed messages: each kind at once, then at most once a second, with how many there were."""

from __future__ import annotations

import logging
from typing import Final

from ...proto.clock import Clock
from ...proto.facts import Facts
from ..queue import Queue
from ..received_message import ReceivedMessage
from ..tasks import Tasks

logger = logging.getLogger(__name__)

PAUSE_MS: Final = 1_000


class Telling:
    """Tells of failed messages of GROUP. Not thread-safe: the consumer's event loop owns it."""

    def __init__(self, group: str, clock: Clock, tasks: Tasks) -> None:
        self._group = group
        self._clock = clock
        self._tasks = tasks
        #: What was not told yet, by event: how many messages, and what is known of the last.
        self._untold: dict[str, tuple[int, Facts, BaseException | None]] = {}
        self._is_pausing = False

    def tell(
        self,
        event: str,
        queue: Queue,
        message: ReceivedMessage,
        reason: str,
        error: BaseException | None = None,
    ) -> None:
        """Say that EVENT happened to MESSAGE of QUEUE, for REASON, with the traceback of ERROR."""
        count = self._untold[event][0] if event in self._untold else 0
        facts = Facts(
            group=self._group,
            topic=message.topic,
            queue=queue,
            offset=message.queue_offset,
            id=message.message_id,
            reason=reason,
        )
        self._untold[event] = count + 1, facts, error
        if not self._is_pausing:
            self.flush()
            self._is_pausing = True
            self._tasks.spawn(self._pause())

    async def _pause(self) -> None:
        try:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + PAUSE_MS)
                if not self._untold:
                    return
                self.flush()
        finally:
            self._is_pausing = False

    def flush(self) -> None:
        """Say what was not said yet; of several messages the last stands in the line."""
        for event, (count, facts, error) in self._untold.items():
            many = Facts(count=count) if count > 1 else Facts()
            many.update(facts)
            logger.warning("%s %s", event, many, exc_info=error)
        self._untold.clear()
