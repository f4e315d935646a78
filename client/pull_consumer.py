"""The pull consumer: your program asks for messages. `make sync` generates the class for threads from this one.

    with PullConsumer("billing", "orders") as consumer:
        for message in consumer:
            handle(message.body)

The consumers of a group share the queues of their topics (consuming/sharing.py). With `broadcasting`, each consumer
reads all queues. `assign` reads the queues that you choose. A consumer without a group (None) can only `assign` and
`pull`, and it commits nothing.

At-least-once delivery: the broker stores the committed offset of the group for each queue. A message counts as
processed when you ask for the next one, call `commit`, or leave the `with` block without an error. The consumer commits
every auto_commit_interval_ms, when a queue is revoked, and at the end. After a crash, messages that were not committed
are redelivered. Messages of one queue are delivered in order. If a topic does not exist yet, the consumer waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import TypeVar, Unpack

from ..proto.clock import Clock, SystemClock
from ..proto.errors import PocketMQError
from ..proto.topics import check_group
from .config import ConsumerConfig, ConsumerSettings, settled
from .connections import Connections
from .consuming.atomic_reading import AtomicReading
from .consuming.held_queue import Batch, Cursor, OffsetAndMetadata
from .consuming.parts import ConsumerMetrics
from .consuming.prefetch import ASSIGNED, REVOKED, Rebalanced
from .consuming.queue_reader import PullResult, pull_once
from .consuming.reading import ConsumerControl, PullReading
from .consuming.sending_back import Retrying, SendBackResult
from .lifecycle import AsyncSignalledClient
from .message_batch import MessageBatch
from .queue import Queue
from .received_message import ReceivedMessage
from .session import Session
from .signals import Signals
from .subscriptions import Topics, subscriptions_of

Value = TypeVar("Value")


#: Called with the result of `commit_async`: None, or the error.
CommitCallback = Callable[[PocketMQError | None], object]


class RebalanceListener:
    """Called when queues are assigned, revoked or lost. Override the methods that you need.

    The methods are called during a poll: on the polling thread, or with asyncio on the event loop, where they may be
    coroutine functions. If a method raises, the poll raises the error.
    """

    def on_assigned(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """Called when QUEUES are assigned, before their first message is delivered. You can `seek` here."""
        return None

    def on_revoked(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """Called before QUEUES are released. You can commit their delivered messages here."""
        return None

    def on_lost(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """Called when QUEUES are lost. Other members may have them, so you cannot commit their messages."""
        return None


def notify(listener: RebalanceListener | None, event: Rebalanced) -> Awaitable[None] | None:
    """Call LISTENER with EVENT; return the awaitable that it returned, if any."""
    if listener is None:
        return None
    kinds = {ASSIGNED: listener.on_assigned, REVOKED: listener.on_revoked}
    return kinds.get(event.kind, listener.on_lost)(event.queues)


class AsyncPullConsumer(AsyncSignalledClient):
    """Reads topics for a group, or without a group, from coroutines. Settings are those of ConsumerConfig.

    Not thread-safe: it belongs to the event loop on which it was started.
    """

    def __init__(
        self,
        group: str | None,
        topics: Topics = (),
        nameservers: str | None = None,
        *,
        listener: RebalanceListener | None = None,
        clock: Clock | None = None,
        connections: Connections | None = None,
        random: Random | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """Create a consumer; it starts with `async with`, or with `start`.

        Args:
            group: The consumer group; None: no group.
            topics: Topics to subscribe to, or a filter by topic.
            nameservers: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.
            listener: Called when queues are assigned, revoked or lost.
            clock: For tests.
            connections: For tests.
            random: For tests.
            settings: Fields of ConsumerConfig.
        """
        self.config = settled(ConsumerConfig, nameservers, settings)
        clock, random = clock or SystemClock(), random or Random()
        self._session = Session(self.config, connections, clock, random)
        self._subscriptions = subscriptions_of(topics)
        if group is None:
            self.config = replace(self.config, auto_commit=False)
        self._listener = listener
        self._cursor = Cursor()
        self._reading = PullReading(
            "" if group is None else check_group(group),
            self.config,
            self._session,
            self._cursor,
            has_listener=listener is not None,
        )
        self._steering = ConsumerControl(self._reading)
        self._retrying = Retrying(self._reading)
        self._signals = Signals(self._finish)
        self._waits = False

    async def start(self) -> None:
        """Start to prefetch messages. `async with` calls it."""
        self._reading.start()
        if self._subscriptions:
            self._steering.subscribe(self._subscriptions, None)

    async def poll(
        self, max_messages: int | None = None, timeout_ms: int | None = 1_000
    ) -> MessageBatch:
        """Return the next messages of one queue. Messages of earlier polls count as processed.

        Args:
            max_messages: Maximum number of messages; None: max_poll_records.
            timeout_ms: How long to wait for a message, in milliseconds; None: without a limit.

        Returns:
            Messages of one queue; empty if there was none within `timeout_ms`.

        Raises:
            PocketMQError: The group refused this consumer, or a fetch failed and a retry cannot help.
        """
        self._check_open()
        self._check_signals()
        most = max_messages or self.config.max_poll_records
        if not (messages := self._cursor.deliver(most)) and await self._next_batch(timeout_ms):
            messages = self._cursor.deliver(most)
        if not messages:
            self._check_signals()
        return messages

    async def messages(self, timeout_ms: int | None = None) -> AsyncIterator[ReceivedMessage]:
        """Yield messages one at a time. Asking for a message means that the one before is processed.

        Args:
            timeout_ms: End when there was no message for so many milliseconds. None: end only at SIGTERM or Ctrl-C.
        """
        signals = self._signals
        with signals.returning() if timeout_ms is None else nullcontext():
            while signals.received is None:
                self._check_open()
                for message in self._cursor.one_by_one():
                    yield message
                    if signals.received is not None:
                        break
                if not await self._next_batch(timeout_ms):
                    break
        if timeout_ms is not None:
            self._check_signals()  # So that the application does not mistake a signal for the end of the messages.

    def _finish(self) -> bool:
        """Deliver no more; return whether the application is at a message, or waits for one."""
        if self._waits:
            self.stop_waiting()
        return self._waits or self._cursor.begin < self._cursor.end

    def _check_signals(self) -> None:
        """Raise the exit of a signal that was postponed until this poll. Delivered messages count as processed."""
        if self._signals.received is not None:
            self._cursor.finish()
            self._signals.check()

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self.messages()

    async def _next_batch(self, timeout_ms: int | None) -> bool:
        self._waits = True
        try:
            if self._signals.received is not None:
                return False
            while isinstance(taken := await self.take(timeout_ms), Rebalanced):
                await self._notify(taken)
        finally:
            self._waits = False
        if taken is not None:
            self._cursor.open(taken)
        return taken is not None

    async def _notify(self, event: Rebalanced) -> None:
        try:
            answer = notify(self._listener, event)
            if inspect.isawaitable(answer):
                await answer
        finally:
            await self.acknowledge_rebalance(event)

    @property
    def cursor(self) -> Cursor:
        """The position of the application."""
        return self._cursor

    def _check_open(self) -> None:
        """Raise ClientClosed unless the consumer is started and not closed."""
        self._reading.check_open()

    async def take(self, timeout_ms: int | None) -> Batch | Rebalanced | None:
        """Mark delivered messages as finished, and return the next batch or event; None after TIMEOUT_MS."""
        return await self._reading.next(self._cursor.finish(), timeout_ms)

    def stop_waiting(self) -> None:
        """Let `take` return None from now on, also if it waits."""
        self._reading.stop_waiting()

    async def acknowledge_rebalance(self, event: Rebalanced) -> None:
        """Note that the listener has handled EVENT."""
        event.handled.set()

    async def pending_revocation(self) -> Rebalanced | None:
        """Return the event for the listener before the consumer is closed; None: there is none."""
        reading = self._reading
        if not reading.has_listener or not reading.is_open or not reading.active:
            return None
        return Rebalanced(REVOKED, sorted(reading.active))

    async def disconnect(self, *, finished: bool) -> None:
        """Do the same as `close`, but without the listener."""
        counts = finished or self.config.delivery == "at_most_once"
        position = self._cursor.finish() if counts else self._cursor.before_unfinished()
        await self._reading.close(position, failing=not finished)

    def atomic_reading(self) -> AtomicReading:
        """Return the consumer's part of an atomic commit, for `Producer.atomic_commit`."""
        return AtomicReading(self._reading, self._cursor)

    async def pull(
        self,
        topic: str,
        queue: Queue | int,
        offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
    ) -> PullResult:
        """Fetch messages of any queue once. This changes neither positions nor committed offsets.

        Args:
            topic: Topic of the queue.
            queue: The queue, or its number if only one broker has a queue with this number.
            offset: Offset of the first message.
            max_messages: Maximum number of messages; 0: fetch_messages_max.
            max_bytes: Maximum size of the messages in bytes; 0: fetch_max_bytes.
            wait_ms: How long the broker waits if there is no message yet, in milliseconds.

        Raises:
            OffsetOutOfRange: The queue does not have this offset; `details` has min_offset and max_offset.
        """
        self._reading.check_open()
        return await pull_once(
            self._reading.parts,
            topic,
            queue,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
        )

    async def send_back(
        self, message: ReceivedMessage, *, delay_level: int = 0, reason: str = ""
    ) -> SendBackResult:
        """Return a message that you cannot process to its broker, which redelivers it later.

        A member of the group gets a copy from the retry topic of the group. After the maximum number of retries of the
        group, the message is moved to the dead-letter queue. The message itself counts as processed when you ask for
        the next one.

        Args:
            message: The message.
            delay_level: 1 to 18: redeliver after 1 s to 2 h; 0: later with each retry, as the group is configured;
                below 0: move to the dead-letter queue at once.
            reason: Stored with a dead letter, up to 1 KiB.

        Returns:
            Whether the message is a dead letter now, and when it is redelivered.

        Raises:
            MessageNotFound: The broker does not have the message (any more).
            InvalidArgument: The consumer has no group, or does not get retries.
        """
        return await self._retrying.send_back(message, delay_level=delay_level, reason=reason)

    async def subscribe(self, topics: Topics) -> None:
        """Subscribe to TOPICS instead of the present ones. The group rebalances.

        Raises:
            InvalidArgument: The consumer has no group, has assigned queues, or is broadcasting.
        """
        self._steering.subscribe(subscriptions_of(topics), self._cursor.after_delivered())

    async def assign(self, queues: Collection[Queue]) -> None:
        """Read QUEUES from now on, and no others, without rebalances.

        Other consumers may read the same queues. Offsets are those of the group. You cannot commit a queue that is
        assigned to a member of the group.

        Raises:
            InvalidArgument: The consumer subscribes to topics.
        """
        await self._steering.assign(queues, self._cursor.finish())

    async def assignment(self) -> list[Queue]:
        """Return the queues that the consumer reads now."""
        return self._steering.assignment()

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return all readable queues of TOPIC."""
        return await self._steering.queues(topic)

    async def position(self, queue: Queue) -> int:
        """Return the offset of the next message of QUEUE that will be delivered."""
        return await self._steering.position(queue, self._cursor.after_delivered())

    async def committed(self, queue: Queue) -> OffsetAndMetadata | None:
        """Return the committed offset of the group in QUEUE, with its metadata; None: nothing is committed."""
        return await self._steering.committed(queue)

    async def seek(self, queue: Queue, offset: int) -> None:
        """Continue at OFFSET of QUEUE. Messages of it that were delivered before do not count as processed.

        Raises:
            LeaseLost: QUEUE is not assigned to this consumer any more.
            InvalidArgument: QUEUE was never assigned to it, or OFFSET is negative.
        """
        self._steering.seek(queue, offset)

    async def seek_to_first(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Continue at the first message of each of QUEUES (None: of all assigned queues); return the offsets."""
        return await self._steering.seek_to(queues, None)

    async def seek_to_last(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Continue after the last message of each of QUEUES (None: of all assigned queues); return the offsets."""
        return await self._steering.seek_to(queues, None, last=True)

    async def seek_to_time(
        self, queues: Collection[Queue] | None, when: datetime | int
    ) -> dict[Queue, int]:
        """Continue at the first message that was stored at WHEN or later; return the offsets.

        Args:
            queues: Assigned queues; None: all of them.
            when: A datetime, or Unix milliseconds.
        """
        return await self._steering.seek_to(queues, when)

    async def pause(self, queues: Collection[Queue]) -> None:
        """Deliver no messages of QUEUES until `resume`, also if they are revoked and assigned again."""
        self._steering.pause(queues, self._cursor.after_delivered())

    async def resume(self, queues: Collection[Queue]) -> None:
        """Deliver messages of QUEUES again after `pause`."""
        self._steering.resume(queues)

    async def commit(self) -> None:
        """Mark all delivered messages as processed, and commit. Raises the first error of a broker."""
        self._reading.check_open()
        await self._reading.commit(self._cursor.finish())

    async def commit_sync(
        self, offsets: Mapping[Queue, int | tuple[int, str]] | None = None
    ) -> None:
        """Commit OFFSETS, or without them do the same as `commit`.

        Args:
            offsets: By queue, the offset of the next message, or (offset, metadata). The broker stores the metadata,
                up to 1,024 bytes of UTF-8, until the offset changes; "" deletes it.

        Raises:
            InvalidArgument: The metadata is too long, or the consumer is broadcasting.
            LeaseLost: A queue is not assigned to this consumer any more.
        """
        if offsets is None:
            await self.commit()
        else:
            await self._steering.commit_offsets(offsets)

    async def commit_async(
        self,
        callback: CommitCallback | None = None,
        offsets: Mapping[Queue, int | tuple[int, str]] | None = None,
    ) -> None:
        """Do the same as `commit_sync` without waiting. CALLBACK gets None or the error, on the event loop."""
        self._reading.check_open()
        if offsets is None:
            work = self._reading.commit(self._cursor.finish())
        else:
            work = self._steering.commit_offsets(offsets)
        self._session.tasks.spawn(self._reading.report_commit(work, callback))

    def metrics(self) -> ConsumerMetrics:
        """Return the counters of this consumer, also after it was closed."""
        return replace(self._reading.counts)

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics in the Prometheus text format (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    async def close(self, *, finished: bool = True) -> None:
        """Commit, unless auto_commit is off, release the queues, and disconnect.

        Args:
            finished: Whether all delivered messages are processed. If not, the last ones are redelivered.

        Raises:
            PocketMQError: A broker did not accept the offsets. The consumer is closed nevertheless.
        """
        if (event := await self.pending_revocation()) is not None:
            await self._notify(event)
        await self.disconnect(finished=finished)

    async def _leave(self, error: BaseException | None) -> None:
        await self.close(finished=error is None)
