"""`pull`: one fetch at a place of the caller's choice, beside whatever else a consumer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import check_topic
from ..message_batch import NO_MESSAGES, MessageBatch
from ..queue import Queue, find_queue
from ..received_message import ReceivedMessage
from ..serialization import value_decoder
from .parts import ConsumerParts
from .queue_reader import fetch_run


@dataclass(frozen=True, slots=True)
class Pulled:
    """What `pull` brought: messages, where to go on, and what the queue holds."""

    messages: Sequence[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """What `pull` asks for; sizes of 0 stand for the consumer's settings."""

    topic: str
    queue: Queue | int
    offset: int
    max_messages: int = 0
    max_bytes: int = 0
    wait_ms: int = 0


async def pull_once(pull: Pull, parts: ConsumerParts) -> Pulled:
    """Fetch what PULL asks for. Raises OffsetOutOfRange with min_offset and max_offset."""
    session, config = parts.session, parts.config
    route = await session.routes.find(check_topic(pull.topic))
    place = find_queue(pull.queue, pull.topic, route.readable)
    request = pb.FetchRequest(
        topic=pull.topic,
        queue=place.number,
        offset=pull.offset,
        max_messages=pull.max_messages or config.fetch_messages_max,
        max_bytes=pull.max_bytes or config.fetch_bytes_max,
        min_bytes=1 if pull.wait_ms else 0,
        max_wait_ms=pull.wait_ms,
        group=parts.group,
    )
    connection = session.connections.to(session.routes.address(place.broker))
    reply, run = await fetch_run(
        connection,
        request,
        pull.wait_ms + config.request_timeout_ms,
        broker=place.broker,
        decode=value_decoder(config.value_deserializer),
        check_crcs=config.check_crcs,
        body_bytes_max=config.body_bytes_max,
    )
    parts.counts.lost += reply.lost_count
    messages: MessageBatch = NO_MESSAGES
    if run is not None:
        messages = MessageBatch(run, run.first_at_or_after(pull.offset))
    return Pulled(messages, reply.next_offset, reply.min_offset, reply.max_offset)
