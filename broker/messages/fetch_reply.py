"""Replies to fetches: one read from a queue, with its limits and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...proto import errors
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...store.message_store import MessageStore
from ...store.slices import Slices
from ..config import BrokerConfig

Done = Callable[[pb.FetchReply], None]
#: Returns why a group gets no messages; None: it may consume.
Refusal = Callable[[str], errors.PocketMQError | None]


class FetchLimits(NamedTuple):
    """Limits of one reply."""

    messages: int
    size_bytes: int


def limits_of(request: pb.FetchRequest, config: BrokerConfig) -> FetchLimits:
    """Return the limits of messages and bytes of the reply to REQUEST."""
    messages = min(request.max_messages or config.fetch_messages_max, config.fetch_messages_max)
    size = min(request.max_bytes or config.fetch_default_bytes, config.fetch_max_bytes)
    return FetchLimits(messages, size)


def read_once(
    store: MessageStore, request: pb.FetchRequest, limits: FetchLimits
) -> tuple[pb.FetchReply, Slices | None]:
    """Return the reply of STORE to REQUEST, which has no filter, and the records read; None for these on an error."""
    try:
        found = store.read_queue(
            request.topic,
            request.queue,
            request.offset,
            limits.messages,
            limits.size_bytes,
            check_crcs=request.check_crcs,
        )
    except errors.QueueNotFound:
        return never_written_reply(request), None
    except errors.PocketMQError as error:
        return failed_reply(request, store, error), None
    reply = pb.FetchReply(
        fetch_id=request.fetch_id,
        records=found.records,
        next_offset=found.next_offset,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        lost_count=found.lost,
    )
    return reply, found


def failed_reply(
    request: pb.FetchRequest, store: MessageStore, error: errors.PocketMQError
) -> pb.FetchReply:
    """Return the reply that the queue cannot be read because of ERROR."""
    low, high = store.queue_bounds(request.topic, request.queue)
    return pb.FetchReply(
        fetch_id=request.fetch_id, min_offset=low, max_offset=high, error=to_wire(error)
    )


def never_written_reply(request: pb.FetchRequest) -> pb.FetchReply:
    """Return the reply for a queue that exists in the topic and has no file in the store: it is empty."""
    reply = pb.FetchReply(fetch_id=request.fetch_id)
    if request.offset != 0:
        error = errors.OffsetOutOfRange(
            f"offset {request.offset} of {request.topic}/{request.queue} is outside the valid range, 0 to 0",
            offset=request.offset,
            min_offset=0,
            max_offset=0,
        )
        reply.error.CopyFrom(to_wire(error))
    return reply
