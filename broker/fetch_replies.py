"""Answers to fetches that bring nothing, and what all fetches have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..proto.errors import OffsetOutOfRange, PocketMQError
from ..proto.errors_wire import to_wire
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..store.message_store import MessageStore

#: Told of the answer to one fetch, exactly once.
Done = Callable[[pb.FetchReply], None]


class FetchLimits(NamedTuple):
    """How much an answer may have at most."""

    messages: int
    size_bytes: int


def failed(request: pb.FetchRequest, store: MessageStore, error: PocketMQError) -> pb.FetchReply:
    """Return the answer that the queue cannot be read because of ERROR."""
    low, high = store.queue_bounds(request.topic, request.queue)
    return pb.FetchReply(
        fetch_id=request.fetch_id, min_offset=low, max_offset=high, error=to_wire(error)
    )


def never_written(request: pb.FetchRequest) -> pb.FetchReply:
    """Return the answer for a queue that the topic has and the store has nothing of: it is empty."""
    reply = pb.FetchReply(fetch_id=request.fetch_id)
    if request.offset != 0:
        error = OffsetOutOfRange(
            f"offset {request.offset} of {request.topic}/{request.queue} lies outside 0 to 0",
            offset=request.offset,
            min_offset=0,
            max_offset=0,
        )
        reply.error.CopyFrom(to_wire(error))
    return reply
