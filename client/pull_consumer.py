"""The pull consumer for coroutines. `make sync` generates the one for ordinary threads from it.

    with PullConsumer("billing", "orders") as consumer:
        for message in consumer:
            handle(message.body)

The consumers of a group share the queues of their topics (consuming/sharing.py). With `broadcasting` each consumer
reads all queues. `assign` reads the queues that you choose. A consumer without a group (None) only assigns: it commits
nothing.

At least once: the broker keeps the group's offset of each queue. A message is processed when you ask for the next one,
call `commit`, or leave the `with` block without an error. The consumer commits every auto_commit_interval_ms, when it
loses a queue, and at the end. After a crash, messages that were not committed are redelivered. Messages of one queue
come in order. If a topic does not exist yet, the consumer waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
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
from .consuming.reading import PullReading, Steering
from .consuming.sending_back import Retrying, SendBackResult
from .lifecycle import AsyncSignalledClient
from .message_batch import MessageBatch
from .queue import Queue
from .received_message import ReceivedMessage
from .session import Session
from .signals import Signals
from .subscriptions import Topics, subscriptions_of

Value = TypeVar("Value")


#: Hears what became of `commit_async`: None, or why it failed.
CommitCallback = Callable[[PocketMQError | None], object]


class RebalanceListener:
    """Called with queues while the application polls; leave out what you do not need.

    Of a synchronous consumer it is called on the polling thread, of an asyncio one on the event loop, where it may be a
    coroutine function. What it raises comes out of that poll.
    """

    def on_assigned(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """This consumer has QUEUES from now on; nothing of them was delivered yet: `seek` is in time."""
        return None

    def on_revoked(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """QUEUES go to others when this returns; what was delivered of them can still be committed."""
        return None

    def on_lost(self, queues: Sequence[Queue]) -> Awaitable[None] | None:
        """QUEUES may be others' already: nothing of them can be committed."""
        return None


def tell(listener: RebalanceListener | None, news: Rebalanced) -> Awaitable[None] | None:
    """Tell LISTENER NEWS; return what it wants to be awaited."""
    if listener is None:
        return None
    kinds = {ASSIGNED: listener.on_assigned, REVOKED: listener.on_revoked}
    return kinds.get(news.kind, listener.on_lost)(news.queues)


class AsyncPullConsumer(AsyncSignalledClient):
    """Reads topics for GROUP, or for none (None), from coroutines. Settings are those of ConsumerConfig.

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
        """NAMESERVERS: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.

        CLOCK, CONNECTIONS and RANDOM are for tests.
        """
        self.config = settled(ConsumerConfig, nameservers, settings)
        self._session = Session(
            self.config,
            connections,
            clock or SystemClock(),
            random or Random(),
        )
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
        self._steering = Steering(self._reading)
        self._retrying = Retrying(self._reading)
        self._signals = Signals(self._finish)
        self._waits = False

    async def start(self) -> None:
        """Begin to read ahead; `async with` does so."""
        self._reading.start()
        if self._subscriptions:
            self._steering.subscribe(self._subscriptions, None)

    async def poll(
        self, max_messages: int | None = None, timeout_ms: int | None = 1_000
    ) -> MessageBatch:
        """Return the next messages, of one queue: max_poll_records, or all of one fetch, but at most MAX_MESSAGES.

        The batch is empty if none comes within TIMEOUT_MS (None: wait on). What earlier polls returned is finished.
        Raises what the coordinator refuses this member with, and errors of fetches that no repetition heals.
        """
        self._check_open()
        self._check_signals()
        most = max_messages or self.config.max_poll_records
        if not (messages := self._cursor.hand_out(most)) and await self._next_batch(timeout_ms):
            messages = self._cursor.hand_out(most)
        if not messages:
            self._check_signals()
        return messages

    async def messages(self, timeout_ms: int | None = None) -> AsyncIterator[ReceivedMessage]:
        """Yield messages one by one; end when none comes for TIMEOUT_MS (None: never, but at SIGTERM or Ctrl-C)."""
        signals = self._signals
        with signals.returning() if timeout_ms is None else nullcontext():
            while signals.told is None:
                self._check_open()
                for message in self._cursor.one_by_one():
                    yield message
                    if signals.told is not None:
                        break
                if not await self._next_batch(timeout_ms):
                    break
        if timeout_ms is not None:
            self._check_signals()  # Whoever reads to the end must not take this for it.

    def _finish(self) -> bool:
        """Deliver nothing more; return whether the application is at a message, or waits for one."""
        if self._waits:
            self.stop_waiting()
        return self._waits or self._cursor.begin < self._cursor.end

    def _check_signals(self) -> None:
        """Raise what was put off until the application came for more; what it was handed is finished."""
        if self._signals.told is not None:
            self._cursor.finish()
            self._signals.check()

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self.messages()

    async def _next_batch(self, timeout_ms: int | None) -> bool:
        self._waits = True
        try:
            if self._signals.told is not None:
                return False
            while isinstance(taken := await self.take(timeout_ms), Rebalanced):
                await self._tell(taken)
        finally:
            self._waits = False
        if taken is not None:
            self._cursor.open(taken)
        return taken is not None

    async def _tell(self, news: Rebalanced) -> None:
        try:
            answer = tell(self._listener, news)
            if inspect.isawaitable(answer):
                await answer
        finally:
            await self.heard(news)

    @property
    def cursor(self) -> Cursor:
        """Where the application stands."""
        return self._cursor

    def _check_open(self) -> None:
        """Raise ClientClosed unless messages are served."""
        self._reading.check_open()

    async def take(self, timeout_ms: int | None) -> Batch | Rebalanced | None:
        """Finish what was delivered, and return what comes next."""
        return await self._reading.next(self._cursor.finish(), timeout_ms)

    def stop_waiting(self) -> None:
        """Have `take` return None, now and from now on."""
        self._reading.stop_waiting()

    async def heard(self, news: Rebalanced) -> None:
        """Continue: the listener got NEWS."""
        news.told.set()

    async def farewell(self) -> Rebalanced | None:
        """Return what the listener is to hear before the end; None: nothing."""
        reading = self._reading
        if not reading.has_listener or not reading.is_open or not reading.active:
            return None
        return Rebalanced(REVOKED, sorted(reading.active))

    async def disconnect(self, *, finished: bool) -> None:
        """Do as `close` does, and tell no listener."""
        counts = finished or self.config.delivery == "at_most_once"
        position = self._cursor.finish() if counts else self._cursor.before()
        await self._reading.close(position, failing=not finished)

    def atomic_reading(self) -> AtomicReading:
        """Return what an atomic commit of a producer needs of this consumer: see `atomic_commit` of producers."""
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
        """Return the messages of QUEUE from OFFSET on, waiting up to WAIT_MS for one; positions do not move.

        MAX_MESSAGES and MAX_BYTES 0: the consumer's settings. Raises OffsetOutOfRange with min_offset and max_offset.
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
        """Return MESSAGE to the broker: it is redelivered later, or moved to the dead-letter queue; return which.

        For a message that you cannot process: the consumer gets a copy from the group's retry topic, and after the
        group's maximum of retries the message is in the dead-letter queue.

        DELAY_LEVEL: 1 s to 2 h for 1 to 18; 0: longer with each retry, as the group is set; below 0: dead at once.
        REASON stays with a dead letter, up to 1 KiB. The message counts as handled when the application continues.
        Raises MessageNotFound for one that the broker does not have (any more).
        """
        return await self._retrying.send_back(message, delay_level=delay_level, reason=reason)

    async def subscribe(self, topics: Topics) -> None:
        """Read TOPICS from now on, and no others; the group divides their queues again."""
        self._steering.subscribe(subscriptions_of(topics), self._cursor.behind())

    async def assign(self, queues: Collection[Queue]) -> None:
        """Read QUEUES from now on, and no others, independently of the group.

        Nothing is shared: other consumers may read them, too. Offsets are the group's; a queue that a member of the
        group holds cannot be committed.
        """
        await self._steering.assign(queues, self._cursor.finish())

    async def assignment(self) -> list[Queue]:
        """Return the queues that are read at present."""
        return self._steering.assignment()

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read, whoever reads them."""
        return await self._steering.queues(topic)

    async def position(self, queue: Queue) -> int:
        """Return the offset of the next message of QUEUE that will be delivered."""
        return await self._steering.position(queue, self._cursor.behind())

    async def committed(self, queue: Queue) -> OffsetAndMetadata | None:
        """Return the offset that the group has committed of QUEUE, and the text that goes with it; None: nothing."""
        return await self._steering.committed(queue)

    async def seek(self, queue: Queue, offset: int) -> None:
        """Continue at OFFSET of QUEUE, one that this consumer has; what was delivered of it does not count any more."""
        self._steering.seek(queue, offset)

    async def seek_to_first(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Go to the first message of each of QUEUES, None: of all that it has; return the offsets."""
        return await self._steering.seek_to(queues, None)

    async def seek_to_last(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Go after the last message of each of QUEUES, None: of all that it has; return the offsets."""
        return await self._steering.seek_to(queues, None, last=True)

    async def seek_to_time(
        self, queues: Collection[Queue] | None, when: datetime | int
    ) -> dict[Queue, int]:
        """Go to the first message stored at WHEN (a datetime, or Unix milliseconds) or later; return the offsets."""
        return await self._steering.seek_to(queues, when)

    async def pause(self, queues: Collection[Queue]) -> None:
        """Deliver nothing of QUEUES until they are resumed, also when they go and come back."""
        self._steering.pause(queues, self._cursor.behind())

    async def resume(self, queues: Collection[Queue]) -> None:
        """Continue with QUEUES."""
        self._steering.resume(queues)

    async def commit(self) -> None:
        """Finish what was delivered, and have the brokers keep how far the group is."""
        self._reading.check_open()
        await self._reading.commit(self._cursor.finish())

    async def commit_sync(
        self, offsets: Mapping[Queue, int | tuple[int, str]] | None = None
    ) -> None:
        """Commit OFFSETS, of the next message of each queue; None: what was delivered is finished, as in `commit`.

        With (offset, metadata) the broker keeps that text, 1,024 bytes of UTF-8 at most, as long as the group stands
        there; "" takes it away. Raises InvalidArgument for a longer one, or for any if the consumer broadcasts.
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
        """Do as `commit_sync`, and do not wait for it; CALLBACK hears what became of it, on the event loop."""
        self._reading.check_open()
        if offsets is None:
            work = self._reading.commit(self._cursor.finish())
        else:
            work = self._steering.commit_offsets(offsets)
        self._session.tasks.spawn(self._reading.tell_outcome(work, callback))

    def metrics(self) -> ConsumerMetrics:
        """Return what was counted so far, also after the end."""
        return replace(self._reading.counts)

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    async def close(self, *, finished: bool = True) -> None:
        """Commit, unless auto_commit is off, give the queues back, and disconnect.

        FINISHED: what was delivered counts as done. Raises what kept a broker from taking the offsets; the consumer is
        closed all the same.
        """
        if (news := await self.farewell()) is not None:
            await self._tell(news)
        await self.disconnect(finished=finished)

    async def _leave(self, error: BaseException | None) -> None:
        await self.close(finished=error is None)
