"""Sending messages back from a pull consumer, and what else it does beside reading."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ...proto.errors import InvalidArgument, PocketMQError
from ...proto.facts import Facts
from ...proto.topics import check_topic, retry_topic
from ..queue import Queue
from ..received_message import ReceivedMessage
from .reading import Reading
from .sending_back import SentBack, send_back
from .whole_topics import WATCH_UNKNOWN_MS

logger = logging.getLogger(__name__)

#: How often a retry queue that a broker has just made is looked for, before it is left to the regular look.
_LOOKS: Final = 60


class Retrying:
    """Sends back for READING, and has it find the retry topic soon. Not thread-safe: the event loop owns it."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._parts = reading.parts
        self._session = reading.parts.session
        self._topic = retry_topic(reading.parts.group)
        #: Brokers of which a retry queue is looked for.
        self._looking: set[str] = set()

    async def send_back(
        self, message: ReceivedMessage, *, delay_level: int, reason: str
    ) -> SentBack:
        """Give MESSAGE back to its broker; see pull_consumer.py."""
        self._reading.check_open()
        config = self._parts.config
        if delay_level >= 0 and (config.broadcasting or not config.retries):
            raise InvalidArgument(
                "this consumer has retries off, as one that reads everything for itself: a retry would come to its"
                " group and not to it; turn retries on, or give the message up with delay_level=-1",
                field="retries",
                value=False,
            )
        sent = await send_back(
            self._session,
            self._parts.group,
            message,
            delay_level=delay_level,
            reason=reason,
            timeout_ms=config.request_timeout_ms,
        )
        broker = message.broker
        if not sent.dead and broker not in self._looking and not self._reads_retries(broker):
            self._looking.add(broker)
            self._session.tasks.spawn(self._look_for_retries(broker))
        return sent

    async def _look_for_retries(self, broker: str) -> None:
        """Have the retry queues of BROKER be read as soon as a name server knows them."""
        clock = self._session.clock
        for _ in range(_LOOKS):
            if self._reads_retries(broker) or self._reading.supply is None:
                break
            self._session.routes.forget(self._topic)
            self._reading.supply.source.look_again()
            await clock.sleep_until(clock.now_ms() + WATCH_UNKNOWN_MS)
        self._looking.discard(broker)

    def _reads_retries(self, broker: str) -> bool:
        return any(
            queue.topic == self._topic and queue.broker == broker for queue in self._reading.active
        )

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read."""
        return (await self._session.routes.find(check_topic(topic))).readable

    async def tell_outcome(
        self, work: Awaitable[None], callback: Callable[[PocketMQError | None], object] | None
    ) -> None:
        """Tell CALLBACK what becomes of WORK, a commit; without one, a failure is logged."""
        outcome: PocketMQError | None = None
        try:
            await work
        except PocketMQError as error:
            outcome = error
        if callback is not None:
            callback(outcome)
        elif outcome is not None:
            logger.warning(
                "offsets not committed %s",
                Facts(group=self._reading.parts.group, reason=outcome.message),
            )
