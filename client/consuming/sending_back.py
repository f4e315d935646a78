"""Returns a message that could not be handled to its broker, to be redelivered later or to become a dead letter.

Not tried again by itself: where an answer was lost, a second try may store a second copy.
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

if TYPE_CHECKING:  # A push consumer has no use for it.
    from .reading import PullReading

#: How often a retry queue that a broker has just made is looked for, before it is left to the regular look.
_LOOKS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBackResult:
    """The result of returning a message."""

    dead: bool
    """The message is in the group's dead-letter queue, because it has no retries left or none was
    wanted.
    """
    topic: str
    """Topic of the copy: the group's retry topic, or its dead-letter queue."""
    due_ms: int
    """When it is redelivered, in Unix milliseconds of the broker's clock; of a dead letter, when it
    was stored.
    """
    reconsume_times: int
    """How often it was delivered and failed."""


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
    """Send MESSAGE back for GROUP; raises what pull_consumer.py says. MAX_TIMES retries; None: as the group is set."""
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
        # A consumer makes its group by committing for the first time: this one has not come so far.
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
    """Return TEXT as a request can carry it: what is no character (a stray byte of a file's name) is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


class Retrying:
    """Sends back for a pull consumer, and has its READING find the retry topic soon.

    Not thread-safe: the event loop owns it.
    """

    def __init__(self, reading: PullReading) -> None:
        self._reading = reading
        self._parts = reading.parts
        self._session = reading.parts.session
        self._topic = retry_topic(reading.parts.group)
        #: Brokers of which a retry queue is looked for.
        self._looking: set[str] = set()

    async def send_back(
        self, message: ReceivedMessage, *, delay_level: int, reason: str
    ) -> SendBackResult:
        """Give MESSAGE back to its broker; see pull_consumer.py."""
        self._reading.check_open()
        self._parts.need_group("send a message back")
        config = self._parts.config
        if delay_level >= 0 and (config.broadcasting or not config.enable_retries):
            raise InvalidArgument(
                "this consumer has retries off, as one that reads everything for itself: a retry would come to its"
                " group and not to it; turn retries on, or give the message up with delay_level=-1",
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
