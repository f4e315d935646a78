"""Queues of tasks at one broker: a task is with one worker at a time, renewed while it runs, and finished by itself.

    queues = TaskQueues("127.0.0.1:8081")
    queues.declare("celery")
    queues.send("celery", b"…", key="task-1", at_ms=None)
    task = queues.get("celery", wait_s=1)
    queues.finish(task)          # or give_back(task), or bury(task)

A queue is a topic, read by the consumer group of the same name with the calls of `apache.rocketmq.v2` for single
messages. A task in flight is renewed each third of LEASE_S. A worker that is killed renews nothing, and its tasks are
redelivered once their leases are over. A task that was delivered as often as the group allows is moved to the
dead-letter queue. A channel is a topic that each follower reads by itself, from when it begins: nothing of it is in
flight, kept, or finished.

Limits: BATCH_MAX messages per receive, as many at once as a consumer has space for; RENEWALS_AT_ONCE calls.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote
from uuid import uuid4

from google.protobuf.message import Message

from ...client.connections import BROKER
from ...client.loop_thread import LoopThread
from ...proto import errors
from ...proto.errors_wire import from_rpc_error
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.properties import REASON_HEADER
from ...proto.rpc.channels import EOF, CallFailed, Channel, ChannelClosed
from ...proto.tls import Trust
from ...proto.topics import PERMISSION_ALL

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 32
LEASE_S: Final = 60.0
#: RocketMQ's limit. The shortest lease is a setting of the broker.
LEASE_MAX_S: Final = 43_200.0
RENEWALS_AT_ONCE: Final = 16
#: Acknowledgements of one call.
_FINISHED_MAX: Final = 100
_POLL_S: Final = 15
#: How long a receive that is broken off is asked what it brought.
_AGAIN_S: Final = 0.1
_REQUEST_S: Final = 10.0
#: Characters of a reason; the broker keeps 1 KiB.
_REASON_MAX: Final = 500
_PAUSE_S: Final = 0.2
_PAUSE_MAX_S: Final = 5.0
#: How long a close waits for acknowledgements.
_CLOSE_S: Final = 5.0

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_ERRORS: Final[dict[int, type[errors.PocketMQError]]] = {
    v2.TOPIC_NOT_FOUND: errors.TopicNotFound,
    v2.INVALID_RECEIPT_HANDLE: errors.InvalidReceiptHandle,
    v2.UNAUTHORIZED: errors.NotAuthorized,
    v2.TOO_MANY_REQUESTS: errors.Overloaded,
}
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]")
_NO_KEY: Final = re.compile(r"[\s\x00-\x1f\x7f]")

Reply = TypeVar("Reply", bound=Message)
Value = TypeVar("Value")


def topic_of(name: str) -> str:
    """Return the topic of the queue NAME: what RocketMQ forbids in names becomes % and two digits for each byte."""
    return "".join(
        one if _PLAIN.match(one) else "".join(f"%{byte:02X}" for byte in one.encode())
        for one in name
    )


def _delayed_of(topic: str) -> str:
    """Return where delayed tasks wait of TOPIC, which has levels of priority: such topics accept no delays."""
    return f"{topic}%2Fdelayed"


class Task:
    """A message of QUEUE that is leased to this process."""

    __slots__ = (
        "attempt", "body", "born_ms", "changing", "handle", "is_over", "message_id", "queue", "topic",
    )  # fmt: skip

    def __init__(self, queue: str, topic: str, message: v2.Message) -> None:
        system = message.system_properties
        self.queue = queue
        self.topic = topic
        self.body = message.body
        self.message_id = system.message_id
        #: 1 of a first delivery.
        self.attempt = system.delivery_attempt
        self.born_ms = system.born_timestamp.ToMilliseconds()
        self.handle = system.receipt_handle
        #: Held by who changes the lease: each change ends the handle before it, and brings another.
        self.changing = asyncio.Lock()
        #: It was finished, returned or dead-lettered, or its lease is lost.
        self.is_over = False


class Consumer:
    """Readers in the background. Call `wake` when more tasks can be taken, `close` to end them."""

    def __init__(self, queues: TaskQueues, works: Sequence[Callable[[asyncio.Event], Any]]) -> None:
        self._queues = queues
        self._works = works
        self._events = [asyncio.Event() for _ in works]
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        create = asyncio.get_running_loop().create_task
        self._tasks = [
            create(work(woken)) for work, woken in zip(self._works, self._events, strict=True)
        ]

    def wake(self) -> None:
        """Check again how many tasks can be taken."""
        for woken in self._events:
            self._queues.post(woken.set)

    def close(self) -> None:
        """End; nothing more is delivered when this returns."""
        self._queues.run(self.end)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with suppress(ValueError):
            self._queues._consumers.remove(self)


def lease_seconds(value: object, option: str) -> float:
    """Return the seconds that VALUE of OPTION says, a number or a text. Raises InvalidArgument."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # Another type is an error like any other.
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds <= LEASE_MAX_S:  # False for nan, too.
        raise errors.InvalidArgument(
            f"{option} is {str(value)[:40]!r}: it must be a number of seconds, above 0 and up to {LEASE_MAX_S:.0f}",
            field=option,
            limit=LEASE_MAX_S,
            value=str(value)[:40],
        )
    return seconds


class TaskQueues:
    """The queues and channels of the broker, or replica set, at ADDRESS, "host:port". Close it.

    Any thread may call; all of it runs on the clients' event loop (client/loop_thread.py). In a process that was
    forked, an inherited object raises ClientClosed.
    """

    def __init__(self, address: str, trust: Trust | None = None, lease_s: float = LEASE_S) -> None:
        """TRUST: TLS, and the user by whom calls are signed; None: as the environment says. Raises ConfigError."""
        self.address = address
        self.lease_s = lease_seconds(lease_s, "lease_s")
        self.renew_s = self.lease_s / 3
        self._client = (("x-mq-client-id", f"pocketmq-{os.getpid()}-{uuid4().hex[:12]}"),)
        self._channel: Channel = (trust or Trust()).or_environment().dial()(address)
        self._portal = LoopThread.acquire()
        self._lent: set[Task] = set()
        #: Finished tasks without acknowledgement, by group and topic.
        self._finished: dict[str, list[Task]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._consumers: list[Consumer] = []
        self._known: dict[str, int | None] = {}
        self._closed = False

    def run(self, work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Do WORK on the loop. Raises ClientClosed, also in a process that was forked since."""
        if self._closed:
            raise errors.ClientClosed("the connection was closed: make a new one")
        return self._portal.run(work())

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have FUNCTION called on the loop, soon."""
        with suppress(errors.ClientClosed):
            self._portal.post(function, *arguments)

    def close(self) -> None:
        """Tell what was finished, give the rest back, and disconnect. Does nothing in a process that was forked."""
        if self._closed or self._portal.is_inherited:
            return
        try:
            with suppress(errors.ClientClosed):
                self.run(self._close)
        finally:
            self._closed = True
            self._portal.release()

    async def _close(self) -> None:
        for consumer in list(self._consumers):
            await consumer.end()
        with suppress(TimeoutError, errors.PocketMQError):
            async with asyncio.timeout(_CLOSE_S):
                while self._telling is not None:
                    await asyncio.wait((self._telling,))
                await self._at_once([partial(self._give_back, one, 0.0) for one in self._lent])
        for task in (self._renewing, self._telling):
            if task is not None:
                task.cancel()
        await self._channel.close(None)

    def check(self) -> None:
        """Raise ConnectionLost, TlsFailed or NotAuthenticated unless the broker answers, and knows who asks."""
        self.run(partial(self._own, "Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply))

    def exists(self, queue: str) -> bool:
        """Is there a queue, or channel, of this name?"""
        return self.run(partial(self._levels, topic_of(queue))) is not None

    def declare(self, queue: str, levels: int = 1, deliveries: int | None = None) -> None:
        """Make QUEUE unless it is there, of LEVELS of priority; DELIVERIES is the limit of deliveries.

        None: as often as the broker's groups have it, 17 times.
        """
        self.run(partial(self._declare, queue, levels, deliveries))

    async def _declare(self, queue: str, levels: int, deliveries: int | None) -> None:
        topic = topic_of(queue)
        if await self._levels(topic) is None:
            kind = "PRIORITY" if levels > 1 else "MIXED"
            config = pb.TopicConfig(
                name=topic,
                read_queues=levels,
                write_queues=levels,
                permission=PERMISSION_ALL,
                type=kind,
            )
            with suppress(errors.TopicExists):
                await self._own("CreateTopic", pb.CreateTopicRequest(topic=config), pb.TopicReply)
            self._known[topic] = levels
        if deliveries is not None:
            await self._set_deliveries(topic, deliveries)
        if self._known[topic] != 1 and levels > 1:
            await self._declare(f"{queue}/delayed", 1, deliveries)

    async def _set_deliveries(self, group: str, deliveries: int) -> None:
        """Make GROUP with so many deliveries; one that is there stays as it is."""
        config = pb.GroupConfig(
            name=group, retry_max_times=deliveries - 1, retry_queues=1, consume_enable=True
        )
        known = await self._own("ListGroups", pb.GroupListRequest(), pb.GroupListReply)
        if all(one.name != group for one in known.groups):
            with suppress(errors.GroupExists):
                await self._own("CreateGroup", pb.CreateGroupRequest(group=config), pb.GroupReply)

    async def _levels(self, topic: str) -> int | None:
        """Return how many levels of priority TOPIC has, 1 without; None: there is no such topic."""
        request = v2.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=_endpoints(self))
        try:
            reply = await self._ask("QueryRoute", request, v2.QueryRouteResponse)
        except errors.TopicNotFound:
            self._known.pop(topic, None)
            return None
        queues = reply.message_queues
        has_levels = v2.PRIORITY in queues[0].accept_message_types and len(queues) > 1
        self._known[topic] = len(queues) if has_levels else 1
        return self._known[topic]

    def delete(self, queue: str) -> None:
        """Delete QUEUE with all that it holds."""
        self.run(partial(self._delete, topic_of(queue)))

    async def _delete(self, topic: str) -> None:
        for one in await self._topics(topic):
            self._known.pop(one, None)
            with suppress(errors.TopicNotFound):
                request = pb.DeleteTopicRequest(topic=one)
                await self._own("DeleteTopic", request, pb.DeleteTopicReply)

    async def _topics(self, topic: str) -> list[str]:
        """Return the topics in which tasks of the queue TOPIC may lie; none if it is not there."""
        levels = await self._levels(topic)
        if levels is None:
            return []
        if levels > 1 and await self._levels(_delayed_of(topic)) is not None:
            return [topic, _delayed_of(topic)]
        return [topic]

    def size(self, queue: str) -> int:
        """Return how many tasks of QUEUE are not finished: those that wait, and those that are leased."""
        return self.run(partial(self._size, topic_of(queue)))

    async def _size(self, topic: str) -> int:
        count = 0
        for one in await self._topics(topic):
            for bounds, place in await self._places(one):
                first = max(place.read_to, place.offset, bounds.min_offset)
                count += bounds.max_offset - first + place.lent_count
        return count

    async def _places(self, topic: str) -> list[tuple[pb.QueueOffsets, pb.GroupOffset]]:
        """Return first and last offset of each queue of TOPIC, and the offset of its group."""
        asked = pb.DescribeTopicRequest(topic=topic)
        queues = (await self._own("DescribeTopic", asked, pb.DescribeTopicReply)).queues
        request = pb.GroupOffsetsRequest(
            group=topic,
            queues=[pb.QueueId(topic=topic, queue=one.queue) for one in queues],
            with_lent=True,
        )
        places = (await self._own("GroupOffsets", request, pb.GroupOffsetsReply)).offsets
        by_queue = {one.queue: one for one in places}
        return [(one, by_queue.get(one.queue, pb.GroupOffset())) for one in queues]

    def purge(self, queue: str) -> int:
        """Finish all tasks of QUEUE, but for those that are scheduled; return how many were not."""
        return self.run(partial(self._purge, topic_of(queue)))

    async def _purge(self, topic: str) -> int:
        count = await self._size(topic)
        for one in await self._topics(topic):
            resource = v2.Resource(name=one)
            for bounds, _ in await self._places(one):
                request = v2.UpdateOffsetRequest(
                    group=resource,
                    message_queue=v2.MessageQueue(topic=resource, id=bounds.queue),
                    offset=bounds.max_offset,
                )
                await self._ask("UpdateOffset", request, v2.UpdateOffsetResponse)
        return count

    def delayed(self) -> int:
        """Return how many messages of all topics are scheduled."""
        return self.run(self._delayed)

    async def _delayed(self) -> int:
        status = await self._own("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)
        return status.delayed_waiting

    def is_idle(self, queue: str) -> bool:
        """Is every task of QUEUE finished, and is no message of any queue scheduled?"""
        return self.run(partial(self._is_idle, topic_of(queue)))

    async def _is_idle(self, topic: str) -> bool:
        """A task that is retried may leave the queue and come back between two requests: then a queue has grown."""
        if await self._delayed():
            return False
        end = await self._end(topic)
        return not (
            await self._size(topic) or await self._delayed() or await self._end(topic) != end
        )

    async def _end(self, topic: str) -> int:
        """Return the sum of the ends of all queues of TOPIC."""
        return sum(
            [
                bounds.max_offset
                for one in await self._topics(topic)
                for bounds, _ in await self._places(one)
            ]
        )

    def send(
        self,
        queue: str,
        body: bytes,
        *,
        key: str = "",
        at_ms: int | None = None,
        priority: int = 0,
    ) -> None:
        """Store BODY in QUEUE, for AT_MS if that is ahead; a higher PRIORITY goes first where QUEUE has levels.

        KEY finds it (`pocketmq find`). Raises TopicNotFound; InvalidDelay for a time that is too far ahead.
        """
        self.run(partial(self._send, queue, body, key, at_ms, priority))

    async def _send(
        self, queue: str, body: bytes, key: str, at_ms: int | None, priority: int
    ) -> None:
        topic = topic_of(queue)
        levels = self._known.get(topic)
        if levels is None:
            levels = await self._levels(topic)
        if levels is None:
            raise errors.TopicNotFound(
                f"queue {queue!r} does not exist: declare it before you send to it",
                topic=topic,
            )
        if levels > 1 and at_ms is not None:
            topic = _delayed_of(topic)
        message = v2.Message(topic=v2.Resource(name=topic), body=body)
        system = message.system_properties
        system.message_id = uuid4().hex.upper()
        if key and not _NO_KEY.search(key):
            system.keys.append(key)
        system.message_type = v2.NORMAL
        if at_ms is not None:
            system.message_type = v2.DELAY
            system.delivery_timestamp.FromMilliseconds(at_ms)
        elif levels > 1:
            system.message_type = v2.PRIORITY
            system.priority = max(0, min(priority, levels - 1))
        system.born_timestamp.GetCurrentTime()
        request = v2.SendMessageRequest(messages=[message])
        try:
            await self._ask("SendMessage", request, v2.SendMessageResponse)
        except errors.TopicNotFound:
            self._known.pop(topic, None)
            raise

    def get(self, queue: str, wait_s: float) -> Task | None:
        """Return a task of QUEUE; None if none came within WAIT_S."""
        return self.run(partial(self._get, queue, wait_s))

    async def _get(self, queue: str, wait_s: float) -> Task | None:
        found: list[Task] = []
        topics = await self._topics(topic_of(queue))
        for topic in topics:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s / len(topics)):
                    await self._receive(queue, topic, 1, found.append)
            if found:
                break
        return found[0] if found else None

    def consume(
        self,
        queue: str,
        room: Callable[[], int],
        deliver: Callable[[Task], object],
        failed: Callable[[errors.PocketMQError], object],
    ) -> Consumer:
        """Call DELIVER with the tasks of QUEUE as they arrive, up to the number that ROOM returns.

        FAILED is called with errors; receiving continues. All three are called on the loop's thread.
        """
        topics = self.run(partial(self._topics, topic_of(queue))) or [topic_of(queue)]
        works = [partial(self._consume, queue, topic, room, deliver) for topic in topics]
        return self._begin(works, failed)

    def _begin(
        self,
        works: Sequence[Callable[[asyncio.Event], Awaitable[None]]],
        failed: Callable[[errors.PocketMQError], object],
    ) -> Consumer:
        consumer = Consumer(self, [partial(self._patiently, work, failed) for work in works])
        self._consumers.append(consumer)
        self.run(consumer.begin)
        return consumer

    async def _patiently(
        self,
        work: Callable[[asyncio.Event], Awaitable[None]],
        failed: Callable[[errors.PocketMQError], object],
        woken: asyncio.Event,
    ) -> None:
        """Do WORK again and again, and more slowly while it fails."""
        pause_s = _PAUSE_S
        while True:
            try:
                await work(woken)
                pause_s = _PAUSE_S
            except errors.PocketMQError as error:
                failed(error)
            except Exception as bug:  # The edge: what one message brings must not end the reader.
                logger.exception("receiving failed broker=%s", self.address)
                failed(errors.PocketMQError(f"internal error: {bug!r}"))
            else:
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _consume(
        self,
        queue: str,
        topic: str,
        room: Callable[[], int],
        deliver: Callable[[Task], object],
        woken: asyncio.Event,
    ) -> None:
        woken.clear()
        count = min(room(), BATCH_MAX)
        if count > 0:
            await self._receive(queue, topic, count, deliver)
        else:
            await woken.wait()

    async def _receive(
        self, queue: str, topic: str, count: int, deliver: Callable[[Task], object]
    ) -> None:
        """Ask TOPIC for up to COUNT tasks of QUEUE; call DELIVER with each that arrives."""
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=topic),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=-1),
            batch_size=count,
        )
        request.attempt_id = uuid4().hex
        request.invisible_duration.FromMilliseconds(int(self.lease_s * 1000))
        request.long_polling_timeout.FromSeconds(_POLL_S)
        there: set[str] = set()

        def take(reply: Any) -> None:
            if reply.HasField("message"):
                task = Task(queue, topic, reply.message)
                if task.message_id in there:
                    return
                there.add(task.message_id)
                self._lent.add(task)
                if self._renewing is None:
                    self._renewing = asyncio.get_running_loop().create_task(self._renew())
                deliver(task)

        ask = partial(self._stream, "ReceiveMessage", request, v2.ReceiveMessageResponse, take)
        try:
            await ask()
        except asyncio.CancelledError:
            # A request with the same id receives the tasks that were leased at this moment again.
            with suppress(TimeoutError, errors.PocketMQError):
                async with asyncio.timeout(_AGAIN_S):
                    await ask()
            raise

    def finish(self, task: Task) -> None:
        """Finish TASK: it is not redelivered. Returns before the broker knows; a close waits for it."""
        self.post(self._finish, task)

    def _finish(self, task: Task) -> None:
        if task not in self._lent:
            return
        self._lent.discard(task)
        task.is_over = True
        self._finished.setdefault(task.topic, []).append(task)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        """Acknowledge finished tasks; those that fail are redelivered when their lease expires."""
        try:
            while self._finished:
                topic, tasks = self._finished.popitem()
                if rest := tasks[_FINISHED_MAX:]:
                    self._finished[topic] = rest
                await self._acknowledge(topic, tasks[:_FINISHED_MAX])
        finally:
            self._telling = None

    async def _acknowledge(self, topic: str, tasks: Sequence[Task]) -> None:
        for one in tasks:
            async with one.changing:
                pass  # A renewal on its way brings another handle, which is the one that counts.
        resource = v2.Resource(name=topic)
        entries = [
            v2.AckMessageEntry(message_id=one.message_id, receipt_handle=one.handle)
            for one in tasks
        ]
        request = v2.AckMessageRequest(group=resource, topic=resource, entries=entries)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.lease_s
        while True:
            try:
                reply = await self._reply("AckMessage", request, v2.AckMessageResponse)
                if not reply.entries:
                    _check(reply.status)  # All of them were refused.
                break
            except errors.PocketMQError as error:
                if not error.retriable or loop.time() + _PAUSE_S > end_s:
                    logger.error("tasks not acknowledged, they will be redelivered topic=%s tasks=%d reason=%r",
                                 topic, len(tasks), error.message)  # fmt: skip
                    return
                await asyncio.sleep(_PAUSE_S)
        for task, entry in zip(tasks, reply.entries, strict=False):
            if entry.status.code != v2.OK:
                logger.warning("task finished after its lease, it will be redelivered topic=%s id=%s reason=%r",
                               topic, task.message_id, entry.status.message)  # fmt: skip

    def give_back(self, task: Task, after_s: float = 0.0) -> None:
        """Return TASK: it is redelivered after AFTER_S. That counts as a delivery."""
        self.run(partial(self._give_back, task, after_s))

    async def _give_back(self, task: Task, after_s: float) -> None:
        async with task.changing:
            if task.is_over:
                return
            self._lent.discard(task)
            task.is_over = True
            await self._change(task, after_s)

    def bury(self, task: Task, reason: str = "") -> None:
        """Make TASK a dead letter; REASON: why, for people."""
        self.run(partial(self._bury, task, reason))

    async def _bury(self, task: Task, reason: str) -> None:
        async with task.changing:
            if task.is_over:
                return
            self._lent.discard(task)  # Not renewed: if moving it fails, it is redelivered.
            resource = v2.Resource(name=task.topic)
            request = v2.ForwardMessageToDeadLetterQueueRequest(
                group=resource,
                topic=resource,
                receipt_handle=task.handle,
                message_id=task.message_id,
                delivery_attempt=task.attempt,
            )
            await self._ask(
                "ForwardMessageToDeadLetterQueue",
                request,
                v2.ForwardMessageToDeadLetterQueueResponse,
                ((REASON_HEADER, quote(reason[:_REASON_MAX])),) if reason else (),
            )
            task.is_over = True

    async def _change(self, task: Task, for_s: float) -> None:
        """Let TASK be redelivered after FOR_S, and not before."""
        resource = v2.Resource(name=task.topic)
        request = v2.ChangeInvisibleDurationRequest(
            group=resource,
            topic=resource,
            receipt_handle=task.handle,
            message_id=task.message_id,
        )
        request.invisible_duration.FromMilliseconds(int(for_s * 1000))
        reply = await self._ask(
            "ChangeInvisibleDuration", request, v2.ChangeInvisibleDurationResponse
        )
        task.handle = reply.receipt_handle

    async def _renew(self) -> None:
        """Renew what is in flight, each third of a lease."""
        while True:
            await asyncio.sleep(self.renew_s)
            await self._at_once([partial(self._renew_one, task) for task in self._lent])

    async def _renew_one(self, task: Task) -> None:
        async with task.changing:
            if task not in self._lent:
                return
            try:
                await self._change(task, self.lease_s)
            except errors.InvalidReceiptHandle:
                self._lent.discard(task)
                task.is_over = True
                logger.warning("lease lost, the task will be redelivered queue=%s id=%s",
                               task.queue, task.message_id)  # fmt: skip
            except errors.PocketMQError as error:
                logger.warning("lease not renewed queue=%s id=%s reason=%r",
                               task.queue, task.message_id, error.message)  # fmt: skip

    async def _at_once(self, works: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Do all WORKS, RENEWALS_AT_ONCE at a time."""
        left = list(works)

        async def some() -> None:
            while left:
                with suppress(errors.PocketMQError):
                    await left.pop()()

        await asyncio.gather(*(some() for _ in range(min(len(left), RENEWALS_AT_ONCE))))

    def follow(
        self,
        channel: str,
        deliver: Callable[[bytes], object],
        failed: Callable[[errors.PocketMQError], object],
    ) -> Consumer:
        """Have DELIVER called with all that is sent to CHANNEL, which is there, from now on."""
        topic = topic_of(channel)
        place = [self.run(partial(self._end_of, topic))]

        async def work(woken: asyncio.Event) -> None:
            await self._follow(topic, place, deliver)

        return self._begin([work], failed)

    async def _end_of(self, topic: str) -> int:
        queue = v2.MessageQueue(topic=v2.Resource(name=topic), id=0)
        request = v2.QueryOffsetRequest(message_queue=queue, query_offset_policy=v2.END)
        reply = await self._ask("QueryOffset", request, v2.QueryOffsetResponse)
        return reply.offset

    async def _follow(
        self, topic: str, place: list[int], deliver: Callable[[bytes], object]
    ) -> None:
        """Deliver what there is of TOPIC from PLACE on, now or soon, and move it: nothing is delivered twice."""
        resource = v2.Resource(name=topic)
        request = v2.PullMessageRequest(
            group=resource,
            message_queue=v2.MessageQueue(topic=resource, id=0),
            offset=place[0],
            batch_size=BATCH_MAX,
        )
        request.long_polling_timeout.FromSeconds(_POLL_S)

        def take(reply: Any) -> None:
            if reply.HasField("message"):
                place[0] = reply.message.system_properties.queue_offset + 1
                try:
                    deliver(reply.message.body)
                except Exception:  # The application's: one bad message does not make it deaf.
                    logger.exception("a message of a channel was dropped topic=%s", topic)
            elif reply.HasField("next_offset"):
                place[0] = reply.next_offset

        await self._stream("PullMessage", request, v2.PullMessageResponse, take)

    async def _own(self, method: str, request: Message, reply_type: type[Reply]) -> Reply:
        """Return the answer of METHOD of the broker's own service."""
        return await self._call(BROKER + method, request, reply_type)

    async def _ask(
        self,
        method: str,
        request: Message,
        reply_type: type[Reply],
        more: Sequence[tuple[str, str]] = (),
    ) -> Reply:
        """Return the answer of METHOD, asked with MORE metadata; raise what it was refused with."""
        reply = await self._call(_SERVICE + method, request, reply_type, more)
        answer: Any = reply
        _check(answer.status)
        return reply

    async def _reply(self, method: str, request: Message, reply_type: type[Reply]) -> Reply:
        return await self._call(_SERVICE + method, request, reply_type)

    async def _call(
        self,
        path: str,
        request: Message,
        reply_type: type[Reply],
        more: Sequence[tuple[str, str]] = (),
    ) -> Reply:
        ask = self._channel.unary_unary(
            path, type(request).SerializeToString, reply_type.FromString
        )
        try:
            reply: Reply = await ask(request, timeout=_REQUEST_S, metadata=(*self._client, *more))
        except ChannelClosed:
            raise errors.ClientClosed(f"the connection to {self.address} was closed") from None
        except CallFailed as failure:
            raise self._explained(failure) from None
        return reply

    async def _stream(
        self,
        method: str,
        request: Message,
        reply_type: type[Reply],
        take: Callable[[Any], None],
    ) -> None:
        """Call METHOD, and TAKE each message of its answer; raise what it was refused with."""
        opened = self._channel.stream_stream(
            _SERVICE + method, type(request).SerializeToString, reply_type.FromString
        )
        try:
            call = opened(timeout=_POLL_S + _REQUEST_S, metadata=self._client)
        except ChannelClosed:
            raise errors.ClientClosed(f"the connection to {self.address} was closed") from None
        try:
            await call.write(request)
            await call.done_writing()
            while (reply := await call.read()) is not EOF:
                if reply.HasField("status") and reply.status.code != v2.MESSAGE_NOT_FOUND:
                    _check(reply.status)
                take(reply)
        except CallFailed as failure:
            raise self._explained(failure) from None
        except asyncio.InvalidStateError:
            raise errors.ConnectionLost(
                f"{self.address} ended the call", address=self.address
            ) from None
        finally:
            call.cancel()

    def _explained(self, failure: CallFailed) -> errors.PocketMQError:
        error = from_rpc_error(failure)
        if isinstance(error, errors.ConnectionLost):
            return errors.ConnectionLost(
                f"cannot reach {self.address}: {error.message}", address=self.address
            )
        return error


def _check(status: v2.Status) -> None:
    if status.code != v2.OK:
        raise _ERRORS.get(status.code, errors.PocketMQError)(
            status.message, code=v2.Code.Name(status.code)
        )


def _endpoints(queues: TaskQueues) -> v2.Endpoints:
    host, _, port = queues.address.rpartition(":")
    scheme = v2.IPv6 if ":" in host else v2.DOMAIN_NAME
    return v2.Endpoints(
        scheme=scheme, addresses=[v2.Address(host=host.strip("[]"), port=int(port))]
    )
