"""Pull consumers: the asyncio face and the synchronous one over the same core (reading.py).

    with PullConsumer("billing", "orders") as consumer:
        for message in consumer:
            handle(message.body)

A consumer reads *all* queues of its topics: there is no sharing of queues within a group yet, so run one consumer a
group. At least once: the broker keeps for each queue the offset below which the group is finished. A message is
finished when the application asks for the next one (or the next batch), when it calls `commit`, or when it leaves the
`with` block without an error; finished offsets are committed every auto_commit_interval_ms and at the end. After a
crash, what was not committed comes again.

A topic that does not exist yet is waited for. Messages of one queue come in order; queues interleave by the run.

A message that cannot be handled is sent back (`send_back`) and finished like any other. A copy of it comes again later
in the group's retry topic, which is read too unless `retries` is off: `reconsume_times` says how often it failed,
`origin_topic` where it was sent. After as many retries as the group allows it lies in the group's dead letters.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from random import Random
from types import TracebackType
from typing import Self, Unpack

from ..proto.clock import Clock, SystemClock
from ..proto.topics import check_group, check_topic
from .config import ConsumerConfig, ConsumerSettings
from .connections import Connections, GrpcConnections
from .consuming.offsets import Cursor
from .consuming.reading import Pull, Pulled, Reading
from .consuming.sending_back import SentBack
from .name_servers import DEFAULT_NAME_SERVERS
from .portal import Portal
from .queue import Queue
from .received_message import ReceivedMessage
from .session import Session


def _checked_topics(topics: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(map(check_topic, (topics,) if isinstance(topics, str) else topics))


class AsyncPullConsumer:
    """Reads topics for GROUP, from coroutines. Settings are those of ConsumerConfig.

    Not thread-safe: it belongs to the event loop on which it was started.
    """

    def __init__(
        self,
        group: str,
        topics: str | Iterable[str] = (),
        nameservers: str = DEFAULT_NAME_SERVERS,
        *,
        clock: Clock | None = None,
        connections: Connections | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """NAMESERVERS: host:port, separated by commas. CLOCK and CONNECTIONS are for tests."""
        self.config = ConsumerConfig(nameservers=nameservers, **settings)
        session = Session(
            self.config, connections or GrpcConnections(), clock or SystemClock(), Random()
        )
        self._reading = Reading(check_group(group), _checked_topics(topics), self.config, session)
        self._cursor = Cursor()

    async def start(self) -> None:
        """Begin to read ahead; `async with` does so."""
        self._reading.start(self._cursor.before)

    async def poll(
        self, max_messages: int | None = None, timeout_ms: int | None = 1_000
    ) -> list[ReceivedMessage]:
        """Return the next messages, of one queue: all of one fetch, or at most MAX_MESSAGES.

        The list is empty if none comes within TIMEOUT_MS (None: wait on). What earlier polls returned is finished.
        Raises an error that the broker answers to fetches and that no repetition heals.
        """
        self._reading.check_open()
        if messages := self._cursor.hand_out(max_messages):
            return messages
        await self._next_batch(timeout_ms)
        return self._cursor.hand_out(max_messages)

    async def messages(self, timeout_ms: int | None = None) -> AsyncIterator[ReceivedMessage]:
        """Yield messages one by one; end when none comes for TIMEOUT_MS (None: never)."""
        cursor = self._cursor
        while True:
            for message in cursor.rest:
                cursor.first = cursor.last = message
                yield message
            if not await self._next_batch(timeout_ms):
                return

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self.messages()

    async def _next_batch(self, timeout_ms: int | None) -> bool:
        batch = await self._reading.next(self._cursor.behind(), timeout_ms)
        if batch is not None:
            self._cursor.open(batch)
        return batch is not None

    async def pull(
        self,
        topic: str,
        queue: Queue | int,
        offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
    ) -> Pulled:
        """Return the messages of QUEUE from OFFSET on, waiting up to WAIT_MS for one; positions do not move.

        MAX_MESSAGES and MAX_BYTES 0: the consumer's settings. Raises OffsetOutOfRange with min_offset and max_offset.
        """
        pull = Pull(
            topic=topic,
            queue=queue,
            offset=offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
        )
        return await self._reading.pull(pull)

    async def send_back(
        self, message: ReceivedMessage, *, delay_level: int = 0, reason: str = ""
    ) -> SentBack:
        """Give MESSAGE back: it comes again later, or lies in the group's dead letters; return what it will be.

        DELAY_LEVEL: 1 s to 2 h for 1 to 18; 0: longer with each retry, as the group is set; below 0: dead at once.
        REASON stays with a dead letter, up to 1 KiB. The message counts as handled when the application goes on. Raises
        MessageNotFound for one that the broker does not have (any more).
        """
        return await self._reading.send_back(message, delay_level=delay_level, reason=reason)

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read."""
        return await self._reading.queues(topic)

    async def commit(self) -> None:
        """Finish what was handed out, and have the brokers keep how far the group is."""
        self._reading.check_open()
        await self._reading.commit(self._cursor.behind())

    async def close(self, *, finished: bool = True) -> None:
        """Commit, unless auto_commit is off, and disconnect. FINISHED: what was handed out counts as done.

        Raises what kept a broker from taking the offsets; the consumer is closed all the same.
        """
        position = self._cursor.behind() if finished else self._cursor.before()
        await self._reading.close(position, failing=not finished)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(finished=error is None)


class PullConsumer:
    """Reads topics for GROUP, from one ordinary thread. Settings are those of ConsumerConfig."""

    def __init__(
        self,
        group: str,
        topics: str | Iterable[str] = (),
        nameservers: str = DEFAULT_NAME_SERVERS,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """NAMESERVERS: host:port, separated by commas. Starts at once; close it, or use it in a `with` block."""
        self.config = ConsumerConfig(nameservers=nameservers, **settings)
        names = check_group(group), _checked_topics(topics)
        self._cursor = Cursor()
        self._closed = False
        self._portal = Portal.hold()
        self._reading = self._portal.run(self._start(*names))

    async def _start(self, group: str, topics: tuple[str, ...]) -> Reading:
        session = Session(self.config, GrpcConnections(), SystemClock(), Random())
        reading = Reading(group, topics, self.config, session)
        # The cursor is the caller's thread's, so that regular commits count whole batches only.
        reading.start()
        return reading

    def poll(
        self, max_messages: int | None = None, timeout_ms: int | None = 1_000
    ) -> list[ReceivedMessage]:
        """Return the next messages, of one queue: all of one fetch, or at most MAX_MESSAGES.

        The list is empty if none comes within TIMEOUT_MS (None: wait on). What earlier polls returned is finished.
        Raises an error that the broker answers to fetches and that no repetition heals.
        """
        self._reading.check_open()
        if messages := self._cursor.hand_out(max_messages):
            return messages
        self._next_batch(timeout_ms)
        return self._cursor.hand_out(max_messages)

    def messages(self, timeout_ms: int | None = None) -> Iterator[ReceivedMessage]:
        """Yield messages one by one; end when none comes for TIMEOUT_MS (None: never)."""
        cursor = self._cursor
        while True:
            for message in cursor.rest:
                cursor.first = cursor.last = message
                yield message
            if not self._next_batch(timeout_ms):
                return

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self.messages()

    def _next_batch(self, timeout_ms: int | None) -> bool:
        self._reading.check_open()
        batch = self._portal.run(self._reading.next(self._cursor.behind(), timeout_ms))
        if batch is not None:
            self._cursor.open(batch)
        return batch is not None

    def pull(
        self,
        topic: str,
        queue: Queue | int,
        offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
    ) -> Pulled:
        """Return the messages of QUEUE from OFFSET on, waiting up to WAIT_MS for one; positions do not move.

        MAX_MESSAGES and MAX_BYTES 0: the consumer's settings. Raises OffsetOutOfRange with min_offset and max_offset.
        """
        self._reading.check_open()
        pull = Pull(
            topic=topic,
            queue=queue,
            offset=offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
        )
        return self._portal.run(self._reading.pull(pull))

    def send_back(
        self, message: ReceivedMessage, *, delay_level: int = 0, reason: str = ""
    ) -> SentBack:
        """Give MESSAGE back: it comes again later, or lies in the group's dead letters; return what it will be.

        DELAY_LEVEL: 1 s to 2 h for 1 to 18; 0: longer with each retry, as the group is set; below 0: dead at once.
        REASON stays with a dead letter, up to 1 KiB. The message counts as handled when the application goes on. Raises
        MessageNotFound for one that the broker does not have (any more).
        """
        self._reading.check_open()
        return self._portal.run(
            self._reading.send_back(message, delay_level=delay_level, reason=reason)
        )

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read."""
        self._reading.check_open()
        return self._portal.run(self._reading.queues(topic))

    def commit(self) -> None:
        """Finish what was handed out, and have the brokers keep how far the group is."""
        self._reading.check_open()
        self._portal.run(self._reading.commit(self._cursor.behind()))

    def close(self, *, finished: bool = True) -> None:
        """Commit, unless auto_commit is off, and disconnect. FINISHED: what was handed out counts as done.

        Raises what kept a broker from taking the offsets; the consumer is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        position = self._cursor.behind() if finished else self._cursor.before()
        try:
            self._portal.run(self._reading.close(position, failing=not finished))
        finally:
            self._portal.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(finished=error is None)
