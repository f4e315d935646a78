"""Gives back to its broker a message that could not be handled, to come again later or to be dead.

Not tried again by itself: where an answer was lost, a second try may store a second copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...proto.errors import GroupNotFound, RouteNotFound
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..connections import BROKER
from ..received_message import ReceivedMessage
from ..session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBack:
    """What became of a message that was sent back."""

    #: It was tried as often as the group allows, or no retry was wanted: it is in the group's dead letters.
    dead: bool
    #: Where the copy goes: the group's retry topic, or its dead letters.
    topic: str
    #: When it comes again, in Unix milliseconds of the broker's clock; of a dead one, when it was stored.
    due_ms: int
    #: How often it was delivered and failed.
    reconsume_times: int


async def send_back(
    session: Session,
    group: str,
    message: ReceivedMessage,
    *,
    delay_level: int,
    reason: str,
    timeout_ms: int,
    max_times: int | None = None,
) -> SentBack:
    """Send MESSAGE back for GROUP; raises what pull_consumer.py says. MAX_TIMES retries; None: as the group is set."""
    connection = session.connections.to(await _address(session, message.broker))
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
        return await connection.call(BROKER + "SendBack", request, pb.SendBackReply, timeout_ms)

    try:
        reply = await ask()
    except GroupNotFound:
        # A consumer makes its group by committing for the first time: this one has not come so far.
        commit = pb.CommitOffsetsRequest(group=group)
        await connection.call(BROKER + "CommitOffsets", commit, pb.CommitOffsetsReply, timeout_ms)
        reply = await ask()
    return SentBack(
        dead=reply.dead,
        topic=reply.topic,
        due_ms=reply.due_ms,
        reconsume_times=reply.reconsume_times,
    )


def encodable(text: str) -> str:
    """Return TEXT as a request can carry it: what is no character (a stray byte of a file's name) is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


async def _address(session: Session, broker: str) -> str:
    try:
        return session.routes.address(broker)
    except RouteNotFound:
        await session.routes.brokers()
        return session.routes.address(broker)
