"""Pulls and offsets: PULL_MESSAGE, LITE_PULL_MESSAGE, offsets of groups, and first and last offsets of queues.

A pull is a fetch: its body has records as they are in the log. With the flag SUSPEND it waits for messages. The filter
is the subscription in the request (flag SUBSCRIPTION), or else that of the group's heartbeats. Codes of an answer:

    0   FOUND                  messages, and where to continue
    19  PULL_NOT_FOUND         none until the end of the wait
    20  PULL_RETRY_IMMEDIATELY  the filter skipped what was there: continue at nextBeginOffset
    21  PULL_OFFSET_MOVED      the offset is outside the queue; nextBeginOffset is the nearest valid one

A pull may commit an offset of the group (flag COMMIT). Source: remoting.md §3.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from ...proto.errors import InvalidArgument, OffsetOutOfRange, PocketMQError
from ...proto.errors_wire import from_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.remoting.codes import SUCCESS, RequestCode, ResponseCode
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ...proto.topics import check_group
from ...store.message_store import MessageStore
from ..callbacks import Step
from ..consumer_groups import check_own_choice
from ..messages.fetch import Fetches
from ..offset_updates import OffsetUpdates, check_committable
from ..offsets import Offsets
from ..timing.purgatory import WatchedOperation
from ..topics import Topics
from .filters import filter_of
from .members import Members, Subscription

_COMMIT, _SUSPEND, _SUBSCRIPTION = 1, 2, 4
_BATCH_DEFAULT: Final = 32
#: Queues that never deleted anything and begin this close to the end of the log: new groups start at 0, as in Apache
#: RocketMQ, where the limit is a share of the memory.
_RECENT_BYTES: Final = 4 << 30
_NO_OFFSET: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class RemotingPulls:
    """Answers pulls, and requests about offsets."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        updates: OffsetUpdates,
        fetches: Fetches,
        members: Members,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._updates = updates
        self._fetches = fetches
        self._members = members

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def pull(self, request: RemotingRequest) -> None:
        """Answer the messages of a queue from an offset on, now or later."""
        group = check_group(request.text("consumerGroup"))
        topic, queue = self._queue(request)
        self._members.check_allowed(group)
        flags = request.number("sysFlag")
        chosen = self._filter(request, group, topic, has_own=bool(flags & _SUBSCRIPTION))
        if chosen is None:
            return
        offset = max(request.long("queueOffset", least=-1), 0)
        if flags & _COMMIT and flags & _SUSPEND:
            # After a loss of messages, a wrong one must not keep the consumer from its next messages.
            with suppress(InvalidArgument):
                self._commit(group, topic, queue, request.long("commitOffset", 0, least=-1))
        fetch = pb.FetchRequest(
            topic=topic,
            queue=queue,
            group=group,
            offset=offset,
            max_messages=request.number("maxMsgNums", _BATCH_DEFAULT) or _BATCH_DEFAULT,
            max_bytes=request.number("maxMsgBytes", 0),
            min_bytes=1,
            max_wait_ms=request.number("suspendTimeoutMillis", 0) if flags & _SUSPEND else 0,
            filter=chosen,
        )
        waiting = self._fetches.fetch(fetch, partial(_answer, request, offset))
        if waiting is not None:
            request.on_cancel(partial(_cancel, waiting))

    def _filter(
        self, request: RemotingRequest, group: str, topic: str, *, has_own: bool
    ) -> pb.Filter | None:
        """Return the filter of a pull; None if it was answered, because the group has no subscription."""
        if has_own:
            kind = request.text("expressionType", "TAG") or "TAG"
            return filter_of(Subscription(topic, request.text("subscription", "*"), kind))
        found = self._members.subscription(group, topic)
        if found is None:
            request.answer(
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark="the consumer's subscription not exist",
            )
            return None
        if found.version < request.long("subVersion", 0):
            request.answer(
                code=ResponseCode.SUBSCRIPTION_NOT_LATEST,
                remark="the consumer's subscription not latest",
            )
            return None
        return filter_of(found)

    def query(self, request: RemotingRequest) -> None:
        """Answer the committed offset of a group."""
        group = check_group(request.text("consumerGroup"))
        topic, queue = self._queue(request)
        offset = self._offsets.committed(topic, group, queue)
        if offset is None and request.flag("setZeroIfNotFound", default=True):
            offset = 0 if self._begins_recently(topic, queue) else None
        if offset is None:
            request.answer(code=ResponseCode.QUERY_NOT_FOUND, remark=_NO_OFFSET)
            return
        request.answer(fields={"offset": str(offset)})

    def _begins_recently(self, topic: str, queue: int) -> bool:
        """Return whether nothing of QUEUE was deleted, and its first message is not far from the end of the log."""
        low, high = self._store.queue_bounds(topic, queue)
        if low or not high:
            return not low
        first = self._store.read_queue(topic, queue, 0, 1, 1)
        if not len(first):
            return True
        at = int.from_bytes(first.records[28:36])
        return self._store.max_log_offset - at < _RECENT_BYTES

    def update(self, request: RemotingRequest) -> None:
        """Commit an offset of a group."""
        group = check_group(request.text("consumerGroup"))
        topic, queue = self._queue(request)
        self._members.check_allowed(group)
        wait = self._commit(group, topic, queue, request.long("commitOffset", least=-1))
        wait(request.end)

    def _commit(self, group: str, topic: str, queue: int, offset: int) -> Step:
        """Commit OFFSET, see `OffsetUpdates.update`; raise InvalidArgument if it is outside the queue."""
        check_own_choice(group)
        one = pb.GroupOffset(topic=topic, queue=queue, offset=offset)
        check_committable(self._store, one, field="commitOffset")
        return self._updates.update(group, topic, queue, offset)

    def by_time(self, request: RemotingRequest) -> None:
        """Answer the offset of the first message that was stored at a time or later."""
        topic, queue = self._queue(request)
        low, high = self._store.queue_bounds(topic, queue)
        at_ms = max(request.long("timestamp", least=-1), 0)
        offset = self._store.offset_by_time(topic, queue, at_ms) if low < high else high
        request.answer(fields={"offset": str(offset)})

    def max_offset(self, request: RemotingRequest) -> None:
        """Answer the end of a queue."""
        request.answer(fields={"offset": str(self._store.queue_bounds(*self._queue(request))[1])})

    def min_offset(self, request: RemotingRequest) -> None:
        """Answer the first offset of a queue."""
        request.answer(fields={"offset": str(self._store.queue_bounds(*self._queue(request))[0])})

    def earliest(self, request: RemotingRequest) -> None:
        """Answer when the first message of a queue was stored; -1: it has none."""
        topic, queue = self._queue(request)
        low, _ = self._store.queue_bounds(topic, queue)
        stored_ms = self._store.stored_ms(topic, queue, low)
        request.answer(fields={"timestamp": str(-1 if stored_ms is None else stored_ms)})

    def _queue(self, request: RemotingRequest) -> tuple[str, int]:
        """Return topic and queue of REQUEST; raise TopicNotFound, NotReadable or QueueNotFound."""
        topic, queue = request.text("topic"), request.number("queueId", least=-1)
        self._topics.for_reading(topic, queue)
        return topic, queue


def _cancel(waiting: WatchedOperation) -> None:
    waiting.cancel()


def _answer(request: RemotingRequest, asked: int, reply: pb.FetchReply) -> None:
    """Answer REQUEST, a pull from ASKED on, with REPLY."""
    code, remark, next_offset = SUCCESS, "FOUND", reply.next_offset
    if reply.error.name:
        error: PocketMQError = from_wire(reply.error)
        if not isinstance(error, OffsetOutOfRange):
            request.fail(error)
            return
        code, remark = ResponseCode.PULL_OFFSET_MOVED, error.message
        next_offset = min(max(asked, reply.min_offset), reply.max_offset)
    elif not reply.records:
        moved = next_offset > asked
        code = ResponseCode.PULL_RETRY_IMMEDIATELY if moved else ResponseCode.PULL_NOT_FOUND
        remark = "NO_MATCHED_MESSAGE" if moved else "OFFSET_OVERFLOW_ONE"
        next_offset = max(next_offset, asked)
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": str(reply.min_offset),
        "maxOffset": str(reply.max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    request.answer(reply.records, code=code, remark=remark, fields=fields)
