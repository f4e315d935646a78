"""Commits offsets of a consumer to the brokers, which store them for the group.

A broker accepts all offsets of a request or none, and its error does not name the queue. After an error that one queue
may have caused, each half is committed by itself, until that queue is found. If another consumer owns the queue now
(LeaseLost), or if it no longer exists, the consumer loses it. Any other error is raised after the other queues were
committed. If a broker may have lost committed offsets, they are committed again, with their metadata. Unchanged offsets
are not committed again.

Not thread-safe: the client's event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final, TypeAlias

from ...proto import errors
from ...proto.errors import ConnectionLost, PocketMQError
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..queue import Queue, in_parts
from .held_queue import HeldQueue, QueueSource
from .parts import QUEUE_IS_GONE, ConsumerParts

logger = logging.getLogger(__name__)


#: Commits reach the followers of a master in a tenth of this time.
_LAG_MS: Final = 1_000
#: Maximum number of recent offsets that are remembered per queue.
_RECENT_MAX: Final = 1_024
#: Maximum number of queues in one log line.
_QUEUES_NAMED: Final = 8
#: How long the virtual clock of a broker waits for a commit (PATIENCE_S of broker/unfinished_messages.py).
CLOCK_WAIT_MS: Final = 5_000
_QUICK_INTERVAL_MS: Final = 5
#: Errors that a single queue of a request may cause.
_OF_ONE_QUEUE: Final = (
    errors.LeaseLost,
    *QUEUE_IS_GONE,
    errors.NotReadable,
    errors.NotAuthorized,
    errors.InvalidArgument,
)
#: The held queue, the offset, and its metadata; None: the metadata stays as it is.
_Row: TypeAlias = tuple[HeldQueue, int, str | None]


class OffsetKeeper(ABC):
    """Stores offsets: on the brokers for a group, or in a file for a broadcasting consumer."""

    #: Whether metadata can be stored with offsets.
    keeps_metadata: ClassVar[bool] = True

    def __init__(self) -> None:
        self._committed: dict[Queue, int] = {}

    @abstractmethod
    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Store OFFSETS, and METADATA by queue ("" deletes the metadata).

        If a queue is not in METADATA, its metadata stays until its offset changes.
        """

    @abstractmethod
    def doubt(self, broker: str) -> None:
        """Note that the connection to BROKER broke: it may have restarted and lost the last commits."""

    def begin(self, held: HeldQueue) -> None:
        """Note the committed offset of a queue that was assigned."""
        if held.committed >= 0:
            self._committed[held.queue] = held.committed

    def committed(self, queue: Queue) -> int | None:
        """Return the last committed offset of QUEUE, by this consumer or before it was assigned; None: none yet."""
        return self._committed.get(queue)

    def kept(self, queue: Queue) -> frozenset[int]:
        """Return the offsets that may be stored for QUEUE if no other member has committed; −1: none is stored."""
        return frozenset((self._committed.get(queue, -1),))

    def learn(self, queue: Queue, offset: int) -> None:
        """Note that another part of the client has committed OFFSET of QUEUE."""
        self._committed[queue] = offset

    @abstractmethod
    def confirm(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        """Note that the broker of QUEUE answered a request that was sent at SENT_MS, and that it still knew the lease.

        So until SENT_MS it had not restarted, and the master was the same. BREAKS: how often connections to it had
        broken then.
        """

    def forget(self, queue: Queue) -> None:
        """Forget QUEUE, which was revoked or lost."""
        self._committed.pop(queue, None)


class Commits(OffsetKeeper):
    """Commits offsets of the queues that the consumer holds, for its group."""

    def __init__(self, parts: ConsumerParts, source: QueueSource) -> None:
        super().__init__()
        self._parts = parts
        self._session = parts.session
        self._group = parts.group
        self._timeout_ms = parts.config.request_timeout_ms
        self._counts = parts.counts
        self._source = source
        #: Queues whose offset is committed again, because their broker may have lost it.
        self._doubtful: set[Queue] = set()
        #: By queue: other offsets that the next master of a replica set may have as committed, and since when. It may
        #: lack the latest commits, and it may have a commit that was not answered.
        self._recent: dict[Queue, deque[tuple[int, int]]] = {}
        #: By queue: how often connections to its broker had broken when the broker last confirmed its offset.
        self._breaks: dict[Queue, int] = {}
        #: Metadata that was committed with the present offsets.
        self._metadata: dict[Queue, str] = {}

    def doubt(self, broker: str) -> None:
        """Commit all offsets of BROKER again with the next commit: a broker flushes offsets only at intervals."""
        self._doubtful |= {queue for queue in self._committed if queue.broker == broker}

    def forget(self, queue: Queue) -> None:
        """Forget QUEUE: another member reads it now."""
        super().forget(queue)
        self._doubtful.discard(queue)
        self._recent.pop(queue, None)
        self._breaks.pop(queue, None)
        self._metadata.pop(queue, None)

    def begin(self, held: HeldQueue) -> None:
        super().begin(held)
        self._breaks[held.queue] = self._session.routes.breaks(held.queue.broker)

    def kept(self, queue: Queue) -> frozenset[int]:
        recent = [offset for _, offset in self._recent.get(queue, ())]
        if self._breaks.get(queue) == self._session.routes.breaks(queue.broker):
            # The broker has not restarted. Another offset is from another consumer, or from a commit without a reply.
            recent = recent[-1:]
        return super().kept(queue) | set(recent)

    def learn(self, queue: Queue, offset: int) -> None:
        now_ms = self._session.clock.now_ms()
        if (before := self._committed.get(queue, -1)) != offset:
            self._note_recent(queue, before)
            self._note_recent(queue, offset)
        super().learn(queue, offset)
        self._know_until(queue, now_ms)
        self._breaks[queue] = self._session.routes.breaks(queue.broker)

    def confirm(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        if queue in self._breaks:
            self._breaks[queue] = max(self._breaks[queue], breaks)
            self._know_until(queue, sent_ms)

    def _note_recent(self, queue: Queue, offset: int) -> None:
        """Note that the next master may have OFFSET of QUEUE as committed."""
        recent = self._recent.setdefault(queue, deque(maxlen=_RECENT_MAX))
        if recent and recent[-1][1] == offset:
            recent.pop()
        recent.append((self._session.clock.now_ms(), offset))

    def _know_until(self, queue: Queue, now_ms: int) -> None:
        """Forget offsets that no master elected after NOW_MS can have, unless the last commit was not answered."""
        recent = self._recent.get(queue)
        if recent and recent[-1][1] == self._committed.get(queue):
            while recent and recent[0][0] < now_ms - _LAG_MS:
                recent.popleft()

    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Commit OFFSETS to all brokers at once, except queues that are not held or whose offset is committed already.

        Queues in METADATA are committed in any case. When all brokers have answered, raises the first error. A queue
        that was lost or no longer exists is no error.
        """
        self._parts.need_group("commit")
        metadata = metadata or {}
        by_broker: dict[str, list[_Row]] = {}
        for queue, offset in offsets.items():
            held = self._source.held(queue)
            is_known = self._committed.get(queue) == offset
            text = metadata.get(queue)
            if is_known and text is None:
                if queue not in self._doubtful:
                    continue
                text = self._metadata.get(queue)
            if held is not None:
                by_broker.setdefault(queue.broker, []).append((held, offset, text))
        results = await asyncio.gather(
            *(
                self._commit_to(broker, part)
                for broker, rows in by_broker.items()
                for part in in_parts(rows)
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _commit_to(self, broker: str, rows: list[_Row]) -> None:
        try:
            await self._request(broker, rows)
        except PocketMQError as error:
            if len(rows) > 1 and isinstance(error, _OF_ONE_QUEUE):
                await self._commit_halves(broker, rows)
                return
            self._counts.commits_failed += len(rows)
            if isinstance(error, ConnectionLost):
                self.doubt(broker)
            if not isinstance(error, (errors.LeaseLost, *QUEUE_IS_GONE)):
                raise
            self._lose(rows[0][0], error)

    async def _commit_halves(self, broker: str, rows: list[_Row]) -> None:
        """Commit each half of ROWS by itself; raise the first error after both tries."""
        half = len(rows) // 2
        first_error: PocketMQError | None = None
        for part in rows[:half], rows[half:]:
            try:
                await self._commit_to(broker, part)
            except PocketMQError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _lose(self, held: HeldQueue, error: PocketMQError) -> None:
        """Report to the source that HELD is lost, because nothing can be committed for it any more."""
        if isinstance(error, QUEUE_IS_GONE):
            logger.warning(
                "offset not committed, queue no longer exists %s",
                Facts(group=self._group, queue=held.queue, reason=error.message),
            )
            if not held.token:
                return  # Queues without leases are never lost.
        self._source.lost(held)

    async def _request(self, broker: str, rows: Iterable[_Row]) -> None:
        request = pb.CommitOffsetsRequest(group=self._group)
        for held, offset, text in rows:
            topic, _, number = held.queue
            request.offsets.add(
                topic=topic, queue=number, offset=offset, lease=held.token, metadata=text
            )
            self._note_recent(held.queue, offset)
        await self._session.ask(
            broker, "CommitOffsets", request, pb.CommitOffsetsReply, self._timeout_ms
        )
        for held, offset, text in rows:
            if self._source.held(held.queue) == held:
                self._note(held.queue, offset, text)
            self._counts.commits += 1

    def _note(self, queue: Queue, offset: int, text: str | None) -> None:
        if text:
            self._metadata[queue] = text
        elif text is not None or self._committed.get(queue) != offset:
            self._metadata.pop(queue, None)
        self.learn(queue, offset)
        self._doubtful.discard(queue)


class RegularCommits:
    """Commits finished messages every auto_commit_interval_ms, and retries after errors.

    If the virtual clock of a broker waits for fetched messages, it commits every few milliseconds for CLOCK_WAIT_MS.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        keeper: OffsetKeeper,
        finished: Callable[[], Mapping[Queue, int]],
    ) -> None:
        self._parts = parts
        self._clock = parts.session.clock
        self._keeper = keeper
        self._finished = finished
        self._is_quick = False
        self._quick_until_ms = 0
        #: Queues that were assigned again, and the offsets up to which they are finished but not committed.
        self._resumed: dict[Queue, int] = {}

    def start(self) -> None:
        """Start; the end of the session ends it."""
        self._parts.session.tasks.spawn(self._run())
        self._parts.on_clock_waits.append(self._commit_quickly)

    def resumed(self, held: HeldQueue, offset: int) -> None:
        """Commit soon that HELD, which was lost and is assigned again, is finished up to OFFSET."""
        if offset != held.committed:
            if not self._resumed:
                self._parts.session.tasks.spawn(self._commit_resumed())
            self._resumed[held.queue] = offset

    async def _commit_resumed(self) -> None:
        """Commit the queues that were assigned again in this turn of the event loop, in one request per broker."""
        resumed, self._resumed = self._resumed, {}
        are_there = await asyncio.gather(*(self._is_there(*one) for one in resumed.items()))
        finished = self._finished()
        there = [queue for queue, is_there in zip(resumed, are_there, strict=True) if is_there]
        await self._commit({queue: finished[queue] for queue in there if queue in finished})

    async def _is_there(self, queue: Queue, offset: int) -> bool:
        """Return whether QUEUE has messages up to OFFSET.

        If not, an administrator has accepted the loss of messages. Then the reader finds where to continue.
        """
        try:
            bounds = await self._parts.bounds.of(queue, None)
        except PocketMQError:
            return False  # It is committed with the others.
        return offset <= bounds.max_offset

    def _commit_quickly(self) -> None:
        """Commit every few milliseconds for a while: the clock of a broker waits for the messages just fetched."""
        self._quick_until_ms = self._clock.now_ms() + CLOCK_WAIT_MS
        if not self._is_quick:
            self._is_quick = True
            self._parts.session.tasks.spawn(self._run_quickly())

    async def _run(self) -> None:
        interval_ms = self._parts.config.auto_commit_interval_ms
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + interval_ms)
            await self._commit(self._finished())

    async def _run_quickly(self) -> None:
        try:
            while (now_ms := self._clock.now_ms()) < self._quick_until_ms:
                await self._clock.sleep_until(now_ms + _QUICK_INTERVAL_MS)
                await self._commit(self._finished())
        finally:
            self._is_quick = False

    async def _commit(self, offsets: Mapping[Queue, int]) -> None:
        try:
            await self._keeper.commit(offsets)
        except PocketMQError as error:
            queues = ", ".join(map(str, sorted(offsets)[:_QUEUES_NAMED]))
            logger.warning(
                "offsets not committed, will retry %s",
                Facts(group=self._parts.group, queues=queues, reason=error.message),
            )
