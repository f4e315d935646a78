"""The core of both pull consumers: reads all queues of the topics ahead, keeps and commits the positions.

Not thread-safe: the consumer's event loop owns it. The faces (pull_consumer.py) hold the cursor, and say with each
call how far the application has come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ...proto.errors import ClientClosed, InvalidArgument, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import check_topic, retry_topic
from ..config import ConsumerConfig
from ..queue import Queue, find_queue
from ..received_message import FetchedRun, ReceivedMessage
from ..session import Session
from .commits import Commits, commit_regularly
from .held_queue import HeldQueue, QueueSource
from .offsets import Batch, Position, Positions
from .parts import ConsumerParts
from .prefetch import Prefetch
from .queue_reader import QueueReader
from .sending_back import SentBack, send_back
from .whole_topics import WATCH_UNKNOWN_MS, WholeTopics, committed_offsets

logger = logging.getLogger(__name__)

#: How often a retry queue that a broker has just made is looked for, before it is left to the regular look.
_LOOKS_FOR_RETRIES = 60


@dataclass(frozen=True, slots=True)
class Pulled:
    """What `pull` brought: messages, where to go on, and what the queue holds."""

    messages: list[ReceivedMessage]
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


class Reading:
    """Reads TOPICS for GROUP."""

    def __init__(
        self, group: str, topics: tuple[str, ...], config: ConsumerConfig, session: Session
    ) -> None:
        self._group = group
        self._topics = topics
        self._retry_topic = retry_topic(group) if config.retries and topics else ""
        if self._retry_topic in topics:
            self._retry_topic = ""
        #: Brokers of which a retry queue is looked for.
        self._looking: set[str] = set()
        self._config = config
        self._session = session
        self._positions = Positions()
        self._prefetch = Prefetch(config.prefetch_bytes_max)
        self._readers: dict[Queue, QueueReader] = {}
        self._parts = parts = ConsumerParts(group, config, session)
        all_topics = [*topics, self._retry_topic] if self._retry_topic else topics
        self._source: QueueSource = WholeTopics(
            all_topics, self, parts, partial(committed_offsets, parts)
        )
        self._commits = Commits(parts, self._source)
        #: Tells how far the application has finished, in the middle of a batch too.
        self._progress: Callable[[], Position | None] = lambda: None
        self._started = self._closed = False

    def start(self, progress: Callable[[], Position | None] | None = None) -> None:
        """Begin to read ahead. PROGRESS, called on the loop, says what is finished between the calls of `next`."""
        self._started = True
        if progress is not None:
            self._progress = progress
        if self._topics:
            self._source.start()
            if self._config.auto_commit:
                interval_ms = self._config.auto_commit_interval_ms
                self._session.tasks.spawn(
                    commit_regularly(self._session, self._commits, interval_ms, self._finished)
                )

    # ------------------------------------------------------------ as the user of queues

    def begin(self, held: HeldQueue) -> None:
        """Read a queue from now on."""
        reader = QueueReader(held, None, self._prefetch, self._source, self._parts)
        self._readers[held.queue] = reader
        reader.start()

    async def end(self, queue: Queue, *, lost: bool) -> None:
        """Read QUEUE no more."""
        self._readers.pop(queue).stop()

    def fail(self, error: PocketMQError) -> None:
        """Have the application meet ERROR."""
        self._prefetch.fail(error)

    # ------------------------------------------------------------ as the application's

    async def _look_for_retries(self, broker: str) -> None:
        """Read the retry queues of BROKER as soon as a name server knows them."""
        clock = self._session.clock
        for _ in range(_LOOKS_FOR_RETRIES):
            if self._reads_retries(broker):
                break
            self._session.routes.forget(self._retry_topic)
            self._source.look_again()
            await clock.sleep_until(clock.now_ms() + WATCH_UNKNOWN_MS)
        self._looking.discard(broker)

    def _reads_retries(self, broker: str) -> bool:
        return any(
            queue.topic == self._retry_topic and queue.broker == broker for queue in self._readers
        )

    async def next(self, finished: Position | None, timeout_ms: int | None) -> Batch | None:
        """Return the next batch, or None if none comes in TIMEOUT_MS (None: wait on).

        FINISHED is how far the application has come with the batch before.
        """
        self.check_open()
        self._positions.finish(finished)
        return await self._prefetch.take(timeout_ms)

    async def pull(self, pull: Pull) -> Pulled:
        """Fetch once, at a place of the caller's choice."""
        self.check_open()
        route = await self._session.routes.find(check_topic(pull.topic))
        place = find_queue(pull.queue, pull.topic, route.readable)
        request = pb.FetchRequest(
            topic=pull.topic,
            queue=place.number,
            offset=pull.offset,
            max_messages=pull.max_messages or self._config.fetch_messages_max,
            max_bytes=pull.max_bytes or self._config.fetch_bytes_max,
            min_bytes=1 if pull.wait_ms else 0,
            max_wait_ms=pull.wait_ms,
            group=self._group,
        )
        connection = self._session.connections.to(self._session.routes.address(place.broker))
        reply = await connection.fetch(request, pull.wait_ms + self._config.request_timeout_ms)
        messages: list[ReceivedMessage] = []
        if reply.records:
            run = FetchedRun(place.broker, reply.records)
            messages = run.messages(run.first_at_or_after(pull.offset))
        return Pulled(messages, reply.next_offset, reply.min_offset, reply.max_offset)

    async def send_back(
        self, message: ReceivedMessage, *, delay_level: int, reason: str
    ) -> SentBack:
        """Give MESSAGE back to its broker; see pull_consumer.py."""
        self.check_open()
        if not self._config.retries and delay_level >= 0:
            raise InvalidArgument(
                "this consumer has retries off, as one that reads everything for itself: a retry would come to its"
                " group and not to it; turn retries on, or give the message up with delay_level=-1",
                field="retries",
                value=False,
            )
        sent = await send_back(
            self._session,
            self._group,
            message,
            delay_level=delay_level,
            reason=reason,
            timeout_ms=self._config.request_timeout_ms,
        )
        broker = message.broker
        known = broker in self._looking or self._reads_retries(broker)
        if self._retry_topic and not sent.dead and not known:
            self._looking.add(broker)
            self._session.tasks.spawn(self._look_for_retries(broker))
        return sent

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read."""
        self.check_open()
        return (await self._session.routes.find(check_topic(topic))).readable

    async def commit(self, finished: Position | None) -> None:
        """Have the brokers keep how far the group is; FINISHED as in `next`."""
        self._positions.finish(finished)
        await self._commits.commit(self._positions.finished())

    def _finished(self) -> Mapping[Queue, int]:
        self._positions.finish(self._progress())
        return self._positions.finished()

    def check_open(self) -> None:
        """Raise ClientClosed unless messages are served."""
        if self._closed:
            raise ClientClosed("the consumer was closed; make a new one to go on reading")
        if not self._started:
            raise ClientClosed("the consumer was not started: use it in a `with` block")

    async def close(self, finished: Position | None, *, failing: bool = False) -> None:
        """Commit, unless auto_commit is off, and disconnect; FINISHED as in `next`.

        FAILING: the application is leaving with an error of its own, which one of the commit must not hide.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._config.auto_commit:
                await self.commit(finished)
        except PocketMQError as error:
            if not failing:
                raise
            logger.warning(
                "offsets not committed", extra={"group": self._group, "error": str(error)}
            )
        finally:
            await self._session.close()
