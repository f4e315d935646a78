"""Pull consumers: PullMessage, UpdateOffset, GetOffset, QueryOffset.

    PullMessage   status   message …   next_offset

A pull reads one queue from an offset on, and waits if there are no messages; the messages are not leased. The offset
that a group updates is its committed offset: a group that uses pop continues there. Of a refused request, only the
status is sent; if an offset is outside the queue, next_offset follows, the nearest valid one.

Apache RocketMQ 5.5.0 supports none of these (fixture v2/pull-offset); their meaning is from v2-protocol.md §4.8.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import pairwise
from typing import Final

from ...proto.errors import InvalidRecord, OffsetOutOfRange, PocketMQError
from ...proto.errors_wire import from_wire
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.record import log_offset_and_times
from ...proto.record_run import walk
from ...proto.rpc import Call, Later, MethodTable, Stream, server_stream
from ...store.message_store import MessageStore
from ..messages.fetch import Fetches
from ..offset_updates import OffsetUpdates
from ..offsets import Offsets
from ..timing.purgatory import WatchedOperation
from ..topics import Topics
from .messages import delivered
from .receiving import DEADLINE_SPARE_MS, NOTHING_NEW, POLLING_MOST_MS
from .request_checks import checked_group, checked_topic, filter_of, milliseconds
from .service import answered_when, client_id, service, unary
from .statuses import OK, Refused, status_of, status_of_bug

logger = logging.getLogger(__name__)

BATCH_DEFAULT: Final = 32
BATCH_MAX: Final = 1_024


class PullConsumers:
    """Answers pulls, and requests about the offsets of groups."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        updates: OffsetUpdates,
        fetches: Fetches,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._updates = updates
        self._fetches = fetches

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "PullMessage": server_stream(
                    v2.PullMessageRequest, v2.PullMessageResponse, self.pull
                ),
                "UpdateOffset": unary(v2.UpdateOffsetRequest, v2.UpdateOffsetResponse, self.update),
                "GetOffset": unary(v2.GetOffsetRequest, v2.GetOffsetResponse, self.get),
                "QueryOffset": unary(v2.QueryOffsetRequest, v2.QueryOffsetResponse, self.query),
            }
        )

    def pull(self, request: v2.PullMessageRequest, stream: Stream) -> None:
        """Answer the messages of a queue from an offset on, now or later."""
        try:
            client_id(stream)
            fetch = self._fetch_of(request, stream)
            topic = request.message_queue.topic
            waiting = self._fetches.fetch(fetch, partial(_answer, stream, topic, fetch.offset))
            if waiting is not None:
                stream.on_cancel(partial(_let_go, waiting))
        except PocketMQError as error:
            _refuse(stream, status_of(error))
        except Exception as bug:  # A bug fails only this call, not the process.
            _refuse(stream, status_of_bug("PullMessageRequest", bug))

    def _fetch_of(self, request: v2.PullMessageRequest, stream: Stream) -> pb.FetchRequest:
        group = checked_group(request.group.name)
        topic, queue = self._queue(request.message_queue)
        batch = request.batch_size
        if batch < 0:
            raise Refused(
                v2.BAD_REQUEST,
                f"batch_size is {batch}: must be 1 to {BATCH_MAX}",
                field="batch_size",
                limit=BATCH_MAX,
                value=batch,
            )
        if request.offset < 0:
            raise Refused(
                v2.ILLEGAL_OFFSET,
                f"offset is {request.offset}: use QueryOffset to find the first offset of the queue",
                field="offset",
                limit=0,
                value=request.offset,
            )
        wait_ms = min(max(milliseconds(request.long_polling_timeout), 0), POLLING_MOST_MS)
        if stream.deadline_ms is not None:
            wait_ms = max(min(wait_ms, stream.deadline_ms - DEADLINE_SPARE_MS), 0)
        return pb.FetchRequest(
            topic=topic,
            queue=queue,
            group=group,
            offset=request.offset,
            max_messages=min(batch or BATCH_DEFAULT, BATCH_MAX),
            min_bytes=1,
            max_wait_ms=wait_ms,
            filter=filter_of(request.filter_expression),
            check_crcs=True,
        )

    def update(
        self, request: v2.UpdateOffsetRequest, call: Call
    ) -> v2.UpdateOffsetResponse | Later:
        """Set the committed offset of a group; create the group if it does not exist."""
        group = checked_group(request.group.name)
        topic, queue = self._queue(request.message_queue)
        low, high = self._store.queue_bounds(topic, queue)
        offset = request.offset
        if not low <= offset <= high:
            raise OffsetOutOfRange(
                f"offset {offset} of {topic!r}, queue {queue}: valid offsets are {low} to {high}",
                field="offset",
                limit=high,
                value=offset,
            )
        return answered_when(self._updates.update(group, topic, queue, offset), call, _updated)

    def get(self, request: v2.GetOffsetRequest, call: Call) -> v2.GetOffsetResponse:
        """Answer the committed offset of a group."""
        group = checked_group(request.group.name)
        topic, queue = self._queue(request.message_queue)
        offset = self._offsets.committed(topic, group, queue)
        if offset is None:
            raise Refused(
                v2.OFFSET_NOT_FOUND,
                f"group {group!r} has not committed an offset of {topic!r}, queue {queue}",
                group=group,
            )
        return v2.GetOffsetResponse(status=OK, offset=offset)

    def query(self, request: v2.QueryOffsetRequest, call: Call) -> v2.QueryOffsetResponse:
        """Answer the first or the end offset of a queue, or the first message stored at or after a time."""
        topic, queue = self._queue(request.message_queue)
        low, high = self._store.queue_bounds(topic, queue)
        policy = request.query_offset_policy
        if policy == v2.BEGINNING:
            offset = low
        elif policy == v2.END:
            offset = high
        elif policy == v2.TIMESTAMP and request.HasField("timestamp"):
            at_ms = milliseconds(request.timestamp)
            offset = self._store.offset_by_time(topic, queue, at_ms) if low < high else high
        else:
            raise Refused(
                v2.BAD_REQUEST,
                f"query_offset_policy is {policy}, timestamp is not set: use BEGINNING (0), END (1), or TIMESTAMP (2)"
                " with a timestamp",
                field="query_offset_policy",
                value=policy,
            )
        return v2.QueryOffsetResponse(status=OK, offset=offset)

    def _queue(self, queue: v2.MessageQueue) -> tuple[str, int]:
        """Return topic and number of QUEUE; raise Refused, TopicNotFound, NotReadable or QueueNotFound."""
        topic = checked_topic(queue.topic.name)
        self._topics.for_reading(topic, queue.id)
        return topic, queue.id


def _updated(error: PocketMQError | None) -> v2.UpdateOffsetResponse:
    return v2.UpdateOffsetResponse(status=OK if error is None else status_of(error))


def _let_go(waiting: WatchedOperation) -> None:
    waiting.cancel()


def _answer(stream: Stream, topic: v2.Resource, asked: int, reply: pb.FetchReply) -> None:
    """Send REPLY, the reply to a fetch from ASKED on."""
    try:
        _send(stream, topic, asked, reply)
    except Exception as bug:  # Other waiters for the same event must continue.
        _refuse(stream, status_of_bug("PullMessageRequest", bug))


def _send(stream: Stream, topic: v2.Resource, asked: int, reply: pb.FetchReply) -> None:
    next_offset = reply.next_offset
    messages: list[v2.Message] = []
    status = NOTHING_NEW
    if reply.error.name:
        error = from_wire(reply.error)
        status = status_of(error)
        next_offset = min(max(asked, reply.min_offset), reply.max_offset)
    elif reply.records:
        status = OK
        messages = _messages(reply.records, topic)
    stream.send(v2.PullMessageResponse(status=status))
    for message in messages:
        stream.send(v2.PullMessageResponse(message=message))
    stream.send(v2.PullMessageResponse(next_offset=next_offset))
    stream.finish()


def _messages(records: bytes, topic: v2.Resource) -> list[v2.Message]:
    starts, stop = walk(records)
    edges = [*starts.tolist(), stop]
    found = []
    for start, end in pairwise(edges):
        data = records[start:end]
        try:
            found.append(delivered(data, topic, attempt=log_offset_and_times(data)[1] + 1))
        except InvalidRecord as error:
            logger.error(
                "record cannot be delivered topic=%s problem=%s", topic.name, error.message
            )
    return found


def _refuse(stream: Stream, status: v2.Status) -> None:
    stream.send(v2.PullMessageResponse(status=status))
    stream.finish()
