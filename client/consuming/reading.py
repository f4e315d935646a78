"""The core of both pull consumers: reads all queues of the topics ahead, keeps and commits the positions.

Not thread-safe: the consumer's event loop owns it. The faces (pull_consumer.py) hold the cursor, and say with each
call how far the application has come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...proto.errors import ClientClosed, InvalidArgument, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import check_topic, retry_topic
from ..config import ConsumerConfig
from ..connections import BROKER
from ..queue import Queue, find_queue
from ..received_message import FetchedRun, ReceivedMessage
from ..session import Session
from .offsets import Batch, Position, Positions
from .prefetch import Prefetch
from .queue_reader import QueueReader
from .sending_back import SentBack, send_back

logger = logging.getLogger(__name__)

#: How often new queues are looked for: of topics that are there, and of those that are not yet.
WATCH_MS = 10_000
WATCH_UNKNOWN_MS = 500
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
        self._queues: set[Queue] = set()
        #: Topics without a route, of which was warned.
        self._missing: set[str] = set()
        #: Tells how far the application has finished, in the middle of a batch too.
        self._progress: Callable[[], Position | None] = lambda: None
        self._started = self._closed = False

    def start(self, progress: Callable[[], Position | None] | None = None) -> None:
        """Begin to read ahead. PROGRESS, called on the loop, says what is finished between the calls of `next`."""
        self._started = True
        if progress is not None:
            self._progress = progress
        if self._topics:
            self._session.tasks.spawn(self._watch())
            if self._config.auto_commit:
                self._session.tasks.spawn(self._commit_regularly())

    async def _watch(self) -> None:
        """Read every queue that the topics have or get."""
        clock = self._session.clock
        while True:
            all_known = True
            for topic in self._topics:
                all_known &= await self._read_queues(topic)
            if self._retry_topic:
                # Not there until something fails: nothing to wait for.
                await self._read_queues(self._retry_topic)
            pause_ms = WATCH_MS if all_known else WATCH_UNKNOWN_MS
            await clock.sleep_until(clock.now_ms() + pause_ms)

    async def _read_queues(self, topic: str) -> bool:
        """Start a reader for each new queue of TOPIC; return False if its route is not known."""
        try:
            route = await self._session.routes.find(topic)
        except PocketMQError as error:
            quiet = topic in self._missing or topic == self._retry_topic
            level = logging.DEBUG if quiet else logging.WARNING
            self._missing.add(topic)
            logger.log(level, "waiting for topic", extra={"topic": topic, "error": str(error)})
            return False
        self._missing.discard(topic)
        for queue in route.readable:
            if queue not in self._queues:
                self._queues.add(queue)
                self._session.tasks.spawn(self._reader(queue).run())
        return True

    async def _look_for_retries(self, broker: str) -> None:
        """Read the retry queues of BROKER as soon as a name server knows them."""
        clock = self._session.clock
        for _ in range(_LOOKS_FOR_RETRIES):
            self._session.routes.forget(self._retry_topic)
            await self._read_queues(self._retry_topic)
            if self._reads_retries(broker):
                break
            await clock.sleep_until(clock.now_ms() + WATCH_UNKNOWN_MS)
        self._looking.discard(broker)

    def _reads_retries(self, broker: str) -> bool:
        return any(
            queue.topic == self._retry_topic and queue.broker == broker for queue in self._queues
        )

    def _reader(self, queue: Queue) -> QueueReader:
        session, config = self._session, self._config
        if queue.topic == self._retry_topic:
            # Whatever the consumer skips of its topics, what it sent back itself comes again, and only once.
            config = replace(config, start="committed")
        return QueueReader(
            queue,
            self._group,
            config,
            self._prefetch,
            routes=session.routes,
            connections=session.connections,
            clock=session.clock,
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
        by_broker: dict[str, dict[Queue, int]] = {}
        for queue, offset in self._positions.uncommitted().items():
            by_broker.setdefault(queue.broker, {})[queue] = offset
        for broker, offsets in by_broker.items():
            await self._commit_to(broker, offsets)

    async def _commit_to(self, broker: str, offsets: dict[Queue, int]) -> None:
        request = pb.CommitOffsetsRequest(
            group=self._group,
            offsets=[
                pb.GroupOffset(topic=queue.topic, queue=queue.number, offset=offset)
                for queue, offset in offsets.items()
            ],
        )
        connection = self._session.connections.to(self._session.routes.address(broker))
        await connection.call(
            BROKER + "CommitOffsets",
            request,
            pb.CommitOffsetsReply,
            self._config.request_timeout_ms,
        )
        self._positions.commit(offsets)

    async def _commit_regularly(self) -> None:
        clock = self._session.clock
        while True:
            await clock.sleep_until(clock.now_ms() + self._config.auto_commit_interval_ms)
            try:
                await self.commit(self._progress())
            except PocketMQError as error:
                logger.warning(
                    "offsets not committed, trying again later",
                    extra={"group": self._group, "error": str(error)},
                )

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
