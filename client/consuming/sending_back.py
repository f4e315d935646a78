"""Returns a failed message to its broker, which redelivers it later or moves it to the dead-letter queue.

There is no automatic retry: if only the reply was lost, a second try would store a second copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...proto.errors import GroupNotFound, InvalidArgument
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import retry_topic
from ..received_message import ReceivedMessage
from ..session import Session
from .unshared_queues import WATCH_UNKNOWN_MS

if TYPE_CHECKING:  # Push consumers do not need this module.
    from .reading import PullReading

#: How often a new retry queue is looked for at short intervals, before only the regular look finds it.
_LOOKS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBackResult:
    """The result of returning a message."""

    dead: bool
    """True: the message is in the dead-letter queue of the group, because no retries are left or requested."""
    topic: str
    """Topic of the copy: the group's retry topic, or its dead-letter queue."""
    due_ms: int
    """When it is redelivered, in Unix milliseconds of the broker's clock. Dead letter: when it was stored."""
    reconsume_times: int
    """Number of deliveries that failed."""


async def send_back(
    session: Session,
    group: str,
    message: ReceivedMessage,
    *,
    delay_level: int,
    reason: str,
    timeout_ms: int,
    max_times: int | None = None,
) -> SendBackResult:
    """Return MESSAGE to its broker for GROUP. Raises the errors of `PullConsumer.send_back`.

    MAX_TIMES: maximum number of retries; None: the setting of the group.
    """
    broker = message.broker
    if not session.routes.knows(broker):
        await session.routes.brokers()
    request = pb.SendBackRequest(
        group=group,
        topic=message.stored_topic,
        queue=message.queue,
        queue_offset=message.queue_offset,
        log_offset=message.log_offset,
        delay_level=delay_level,
        reason=encodable(reason),
        retry_max_times=max_times,
    )

    async def ask() -> pb.SendBackReply:
        return await session.ask(
            broker, "SendBack", request, pb.SendBackReply, timeout_ms, repeatable=False
        )

    try:
        reply = await ask()
    except GroupNotFound:
        # The first commit of a consumer creates its group, and this consumer has not committed yet.
        commit = pb.CommitOffsetsRequest(group=group)
        await session.ask(broker, "CommitOffsets", commit, pb.CommitOffsetsReply, timeout_ms)
        reply = await ask()
    return SendBackResult(
        dead=reply.dead,
        topic=reply.topic,
        due_ms=reply.due_ms,
        reconsume_times=reply.reconsume_times,
    )


def encodable(text: str) -> str:
    """Return TEXT with lone surrogates escaped, for example from a file name that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


class Retrying:
    """Returns messages for a pull consumer, and lets the consumer find new retry queues soon.

    Not thread-safe: the event loop owns it.
    """

    def __init__(self, reading: PullReading) -> None:
        self._reading = reading
        self._parts = reading.parts
        self._session = reading.parts.session
        self._topic = retry_topic(reading.parts.group)
        #: Brokers whose retry queue is looked for.
        self._looking: set[str] = set()

    async def send_back(
        self, message: ReceivedMessage, *, delay_level: int, reason: str
    ) -> SendBackResult:
        """Return MESSAGE to its broker. Raises the errors of `PullConsumer.send_back`."""
        self._reading.check_open()
        self._parts.need_group("return a message to its broker")
        config = self._parts.config
        if delay_level >= 0 and (config.broadcasting or not config.enable_retries):
            raise InvalidArgument(
                "cannot retry a message: this consumer is broadcasting or has enable_retries=False, so it would not get"
                " the retry. Set enable_retries=True, or move the message to the dead-letter queue with"
                " delay_level=-1.",
                field="enable_retries",
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
        """Look for the retry queue of BROKER until a name server knows it, so that the consumer reads it soon."""
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
