"""Sources of queues without leases: all queues of the topics, or those that the application chose.

Other consumers may read the same queues. If a topic has no route yet, the consumer logs one warning and waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

from ...proto.errors import BadReply, GroupNotFound, PocketMQError
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import retry_topic
from ..claims import check_places
from ..queue import Queue, in_parts
from ..tasks import Alarm
from .held_queue import HeldQueue, OffsetAndMetadata, QueueUser
from .parts import ConsumerParts

logger = logging.getLogger(__name__)

#: How often new queues are looked for: of known topics, and of topics without a route.
WATCH_MS = 10_000
WATCH_UNKNOWN_MS = 500

#: Returns the committed offsets of queues; −1: none.
CommittedOf = Callable[[Collection[Queue]], Awaitable[dict[Queue, int]]]


class TopicWatch:
    """Finds the queues of topics, and says when to look again. Not thread-safe: its event loop owns it."""

    def __init__(self, parts: ConsumerParts) -> None:
        self._session = parts.session
        self._group = parts.group
        self._retry_topic = retry_topic(parts.group)
        #: Topics without a route for which the warning was logged.
        self._missing: set[str] = set()
        self._alarm = Alarm(parts.session.clock, parts.session.tasks)

    async def look(self, topics: Collection[str]) -> tuple[list[Queue], bool]:
        """Return the readable queues of TOPICS, and whether all topics except the retry topic have a route."""
        queues: list[Queue] = []
        all_known = True
        for topic in topics:
            try:
                route = await self._session.routes.find(topic)
            except PocketMQError as error:
                # The retry topic does not exist before a message fails, so do not wait for it.
                all_known &= topic == self._retry_topic
                self._note_missing(topic, error)
                continue
            self._missing.discard(topic)
            queues += route.readable
        return queues, all_known

    def _note_missing(self, topic: str, error: PocketMQError) -> None:
        quiet = topic in self._missing or topic == self._retry_topic
        self._missing.add(topic)
        logger.log(
            logging.DEBUG if quiet else logging.WARNING,
            "topic has no route, waiting for it %s",
            Facts(group=self._group, topic=topic, reason=error.message),
        )

    async def pause(self, all_known: bool) -> None:
        """Return when it is time to look again, or soon after `look_soon`."""
        clock = self._session.clock
        began_ms = clock.now_ms()
        # Always pause: errors often come in groups, and a change is not known to all at once.
        await clock.sleep_until(began_ms + WATCH_UNKNOWN_MS)
        if all_known:
            await self._alarm.wait_until(began_ms + WATCH_MS)

    def look_soon(self) -> None:
        """Let `pause` return soon."""
        self._alarm.ring()


class _Unshared:
    """A source of queues without leases: other consumers may read them, too."""

    def __init__(self) -> None:
        self._held: dict[Queue, HeldQueue] = {}

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return QUEUE if the consumer reads it, else None."""
        return self._held.get(queue)

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        """Do nothing: there is no lease to renew."""

    def doubt(self, held: HeldQueue) -> None:
        """Do nothing: there is no lease to renew."""


class WholeTopics(_Unshared):
    """Assigns all queues of TOPICS to USER. COMMITTED_OF returns their committed offsets."""

    def __init__(
        self,
        topics: Collection[str],
        user: QueueUser,
        parts: ConsumerParts,
        committed_of: CommittedOf,
    ) -> None:
        super().__init__()
        self._topics = topics
        self._user = user
        self._parts = parts
        self._committed_of = committed_of
        self._watch = TopicWatch(parts)

    def start(self) -> None:
        """Start to assign queues."""
        self._parts.session.tasks.spawn(self._run())

    async def _run(self) -> None:
        while True:
            queues, all_known = await self._watch.look(self._topics)
            new = [queue for queue in queues if queue not in self._held]
            try:
                for queue, committed in (await self._committed_of(new)).items():
                    held = HeldQueue(queue, 0, committed, from_start=True)
                    self._held[queue] = held
                    self._user.begin(held)
            except PocketMQError as error:
                logger.warning(
                    "queues not readable yet, retrying %s",
                    Facts(group=self._parts.group, reason=error.message),
                )
            all_known &= all(queue in self._held for queue in queues)
            await self._watch.pause(all_known)

    def lost(self, held: HeldQueue) -> None:
        """Do nothing: queues without a lease cannot be lost."""

    def look_again(self) -> None:
        """Look for new queues soon."""
        self._watch.look_soon()

    async def close(self) -> None:
        """Call `end` for each queue."""
        await asyncio.gather(*(self._user.end(queue, lost=False) for queue in self._held))


class AssignedQueues(_Unshared):
    """Assigns the queues that `replace` names to USER. COMMITTED_OF returns their committed offsets."""

    def __init__(self, user: QueueUser, parts: ConsumerParts, committed_of: CommittedOf) -> None:
        super().__init__()
        self._user = user
        self._group = parts.group
        self._session = parts.session
        self._committed_of = committed_of
        self._chosen: set[Queue] = set()
        self._changed = Alarm(parts.session.clock, parts.session.tasks)

    def start(self) -> None:
        """Start to assign queues."""
        self._session.tasks.spawn(self._run())

    async def replace(self, queues: Collection[Queue]) -> None:
        """Read QUEUES from now on, and no others."""
        self._chosen = set(queues)
        await self._drop(self._held.keys() - self._chosen)
        # Assign what is readable now, so that the application may seek at once. `_run` retries the others.
        with suppress(PocketMQError):
            await self._find(self._chosen - self._held.keys())
        self._changed.ring()

    async def _run(self) -> None:
        clock = self._session.clock
        while True:
            missing = self._chosen - self._held.keys()
            try:
                await self._find(missing)
            except PocketMQError as error:
                logger.warning(
                    "queues not readable yet, retrying %s",
                    Facts(
                        group=self._group,
                        queues=", ".join(map(str, sorted(missing - self._held.keys())[:32])),
                        reason=error.message,
                    ),
                )
            if self._chosen <= self._held.keys():
                await self._changed.wait()
            else:
                await self._changed.wait_until(clock.now_ms() + WATCH_UNKNOWN_MS)

    async def _find(self, missing: Collection[Queue]) -> None:
        """Start to read those of MISSING whose topic has a route; then raise the first error of the other topics."""
        found: set[str] = set()
        first_error: PocketMQError | None = None
        for topic in sorted({queue.topic for queue in missing}):
            try:
                await self._session.routes.find(topic)
                found.add(topic)
            except PocketMQError as error:
                first_error = first_error or error
        there = [queue for queue in missing if queue.topic in found]
        for queue, committed in (await self._committed_of(there)).items():
            if queue in self._chosen and queue not in self._held:
                held = self._held[queue] = HeldQueue(queue, 0, committed, from_start=True)
                self._user.begin(held)
        if first_error is not None:
            raise first_error

    def lost(self, held: HeldQueue) -> None:
        """Log that nothing can be committed, because a group member holds the queue. Reading continues."""
        logger.warning(
            "offset not committed %s",
            Facts(
                group=self._group,
                queue=held.queue,
                reason="a member of the group holds the queue",
            ),
        )

    def look_again(self) -> None:
        """Do nothing: only the application changes the queues."""

    async def close(self) -> None:
        """Call `end` for each queue."""
        self._chosen.clear()
        await self._drop(set(self._held))

    async def _drop(self, queues: Collection[Queue]) -> None:
        await asyncio.gather(*(self._user.end(queue, lost=False) for queue in queues))
        for queue in queues:
            del self._held[queue]


async def committed_offsets(parts: ConsumerParts, queues: Collection[Queue]) -> dict[Queue, int]:
    """Return the result of `committed_positions` without the metadata."""
    found = await committed_positions(parts, queues)
    return {queue: one.offset for queue, one in found.items()}


async def committed_positions(
    parts: ConsumerParts, queues: Collection[Queue]
) -> dict[Queue, OffsetAndMetadata]:
    """Return the committed offsets of the group in QUEUES; −1: none. Queues whose broker fails are omitted."""
    if not parts.group:
        return dict.fromkeys(queues, OffsetAndMetadata(-1))
    found: dict[Queue, OffsetAndMetadata] = {}
    for broker in {queue.broker for queue in queues}:
        for wanted in in_parts(queue for queue in queues if queue.broker == broker):
            found |= await _committed_at(parts, broker, wanted)
    return found


async def _committed_at(
    parts: ConsumerParts, broker: str, wanted: Sequence[Queue]
) -> dict[Queue, OffsetAndMetadata]:
    """Return the committed offsets of WANTED, which are queues of BROKER.

    After an error that one queue may have caused, each half is requested by itself.
    """
    session = parts.session
    ids = [pb.QueueId(topic=queue.topic, queue=queue.number) for queue in wanted]
    request = pb.GroupOffsetsRequest(group=parts.group, queues=ids)
    try:
        reply = await session.ask(
            broker, "GroupOffsets", request, pb.GroupOffsetsReply, parts.config.request_timeout_ms
        )
        check_places(ids, reply.offsets, f"broker {broker}")
    except GroupNotFound:
        return dict.fromkeys(wanted, OffsetAndMetadata(-1))
    except PocketMQError as error:
        if len(wanted) > 1 and not error.retriable and not isinstance(error, BadReply):
            half = len(wanted) // 2
            first = await _committed_at(parts, broker, wanted[:half])
            return first | await _committed_at(parts, broker, wanted[half:])
        for topic in {queue.topic for queue in wanted}:
            session.routes.forget(topic)
        logger.warning(
            "committed offsets not readable, retrying %s",
            Facts(group=parts.group, broker=broker, reason=error.message),
        )
        return {}
    return {
        queue: OffsetAndMetadata(one.offset, one.metadata)
        for queue, one in zip(wanted, reply.offsets, strict=True)
    }
