"""Committed offsets of a consumer, which the brokers keep for its group.

A broker takes all offsets of a request or none, and its error does not name the queue. After an error that may be about
one queue, each half is committed by itself, down to the queue that causes it. A queue that another consumer owns now
(LeaseLost), or that does not exist any more, is given up: the consumer loses it. Any other error is raised after the
other queues were committed. If a broker may have lost what was committed, it is committed again, with its metadata.
Offsets that did not change are not committed again.

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


#: What was committed reaches the followers of a master in a tenth of this.
_LAG_MS: Final = 1_000
#: Of each queue, so many of the last moments' offsets are kept in mind.
_RECENT_MAX: Final = 1_024
#: Queues that one log line names.
_QUEUES_NAMED: Final = 8
#: A broker's clock waits for so long without an outcome (PATIENCE_S of broker/unfinished_messages.py).
HURRY_MS: Final = 5_000
_LOOK_MS: Final = 5
#: Errors of a request that one of its queues may cause alone.
_OF_ONE_QUEUE: Final = (
    errors.LeaseLost,
    *QUEUE_IS_GONE,
    errors.NotReadable,
    errors.NotAuthorized,
    errors.InvalidArgument,
)
#: The right, the offset, and its text; None: as it is.
_Row: TypeAlias = tuple[HeldQueue, int, str | None]


class OffsetKeeper(ABC):
    """Keeps offsets: the brokers for a group, a file for a consumer that reads everything for itself."""

    #: Can texts go with offsets?
    keeps_metadata: ClassVar[bool] = True

    def __init__(self) -> None:
        self._committed: dict[Queue, int] = {}

    @abstractmethod
    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Keep OFFSETS, and with those of the queues in METADATA these texts ("": none).

        A queue that is not in METADATA keeps its text as long as its offset.
        """

    @abstractmethod
    def doubt(self, broker: str) -> None:
        """Hear that the connection to BROKER broke: it may be another run, and not know what was committed last."""

    def begin(self, held: HeldQueue) -> None:
        """Note what was kept of a queue when it came."""
        if held.committed >= 0:
            self._committed[held.queue] = held.committed

    def committed(self, queue: Queue) -> int | None:
        """Return what was kept last of QUEUE, by us or before it came; None: nothing yet."""
        return self._committed.get(queue)

    def kept(self, queue: Queue) -> frozenset[int]:
        """Return what the broker or file may have as the last offset of QUEUE if no one else committed; −1: none."""
        return frozenset((self._committed.get(queue, -1),))

    def learn(self, queue: Queue, offset: int) -> None:
        """Note that OFFSET of QUEUE is committed, by another part of the client."""
        self._committed[queue] = offset

    @abstractmethod
    def still_there(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        """Hear that what was asked at SENT_MS, after BREAKS of the broker, was answered under our right to QUEUE: until
        then it was the same run and the same master.
        """

    def forget(self, queue: Queue) -> None:
        """Forget what was kept of QUEUE: it has gone."""
        self._committed.pop(queue, None)


class Commits(OffsetKeeper):
    """Commits for the group what SOURCE says that we hold."""

    def __init__(self, parts: ConsumerParts, source: QueueSource) -> None:
        super().__init__()
        self._parts = parts
        self._session = parts.session
        self._group = parts.group
        self._timeout_ms = parts.config.request_timeout_ms
        self._counts = parts.counts
        self._source = source
        #: What is committed again, since its broker may have forgotten it.
        self._doubtful: set[Queue] = set()
        #: What else the next master of a replica set may take for committed, and since when, by queue: it may lack the
        #: latest commits, and may have one that was not answered.
        self._recent: dict[Queue, deque[tuple[int, int]]] = {}
        #: How often its broker had broken off when each queue's offset was last known to be there.
        self._breaks: dict[Queue, int] = {}
        #: Texts that we committed with what is committed now.
        self._metadata: dict[Queue, str] = {}

    def doubt(self, broker: str) -> None:
        """Commit again to BROKER what it took so far: a broker writes offsets down only now and then."""
        self._doubtful |= {queue for queue in self._committed if queue.broker == broker}

    def forget(self, queue: Queue) -> None:
        """Forget what was committed of QUEUE: another member continues with it."""
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
            # What else its broker says now, it has been told since: by somebody else, or by a commit without an answer.
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

    def still_there(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        if queue in self._breaks:
            self._breaks[queue] = max(self._breaks[queue], breaks)
            self._know_until(queue, sent_ms)

    def _note_recent(self, queue: Queue, offset: int) -> None:
        """Note that the next master may take OFFSET of QUEUE for committed."""
        recent = self._recent.setdefault(queue, deque(maxlen=_RECENT_MAX))
        if recent and recent[-1][1] == offset:
            recent.pop()
        recent.append((self._session.clock.now_ms(), offset))

    def _know_until(self, queue: Queue, now_ms: int) -> None:
        """Forget what no master after NOW_MS takes for committed, unless the last commit was not answered."""
        recent = self._recent.get(queue)
        if recent and recent[-1][1] == self._committed.get(queue):
            while recent and recent[0][0] < now_ms - _LAG_MS:
                recent.popleft()

    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Commit OFFSETS, to all brokers at once; queues that are not held, or committed so far, are left out.

        Those in METADATA are committed once more. Raises the first error that a broker gave, once all have answered.
        A queue that was lost, or does not exist any more, is none.
        """
        self._parts.need_group("commit")
        texts = metadata or {}
        by_broker: dict[str, list[_Row]] = {}
        for queue, offset in offsets.items():
            held = self._source.held(queue)
            is_known = self._committed.get(queue) == offset
            text = texts.get(queue)
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
            await self._ask(broker, rows)
        except PocketMQError as error:
            if len(rows) > 1 and isinstance(error, _OF_ONE_QUEUE):
                await self._commit_halves(broker, rows)
                return
            self._counts.commits_failed += len(rows)
            if isinstance(error, ConnectionLost):
                self.doubt(broker)
            if not isinstance(error, (errors.LeaseLost, *QUEUE_IS_GONE)):
                raise
            self._give_up(rows[0][0], error)

    async def _commit_halves(self, broker: str, rows: list[_Row]) -> None:
        """Commit each half of ROWS by itself; raise the first error once both were tried."""
        half = len(rows) // 2
        first_error: PocketMQError | None = None
        for part in rows[:half], rows[half:]:
            try:
                await self._commit_to(broker, part)
            except PocketMQError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _give_up(self, held: HeldQueue, error: PocketMQError) -> None:
        """Lose HELD, of which nothing can be committed any more."""
        if isinstance(error, QUEUE_IS_GONE):
            logger.warning(
                "offset not committed, the queue does not exist any more %s",
                Facts(group=self._group, queue=held.queue, reason=error.message),
            )
            if not held.token:
                return  # Queues without leases are never lost.
        self._source.lost(held)

    async def _ask(self, broker: str, rows: Iterable[_Row]) -> None:
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
    """Has KEEPER commit what FINISHED() says, every auto_commit_interval_ms; what fails is tried again.

    Where a broker's clock waits for what was fetched, at once when it is finished, for HURRY_MS.
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
        self._hurries = False
        self._hurries_until_ms = 0
        #: What has come back, and is finished further than its broker knows.
        self._resumed: dict[Queue, int] = {}

    def start(self) -> None:
        """Begin, until the session ends."""
        self._parts.session.tasks.spawn(self._run())
        self._parts.on_clock_waits.append(self._hurry)

    def resumed(self, held: HeldQueue, offset: int) -> None:
        """Commit soon that HELD, which was lost and has come back, is finished up to OFFSET."""
        if offset != held.committed:
            if not self._resumed:
                self._parts.session.tasks.spawn(self._commit_resumed())
            self._resumed[held.queue] = offset

    async def _commit_resumed(self) -> None:
        """Commit what has come back in this turn, in one go."""
        resumed, self._resumed = self._resumed, {}
        are_there = await asyncio.gather(*(self._is_there(*one) for one in resumed.items()))
        finished = self._finished()
        there = [queue for queue, is_there in zip(resumed, are_there, strict=True) if is_there]
        await self._commit({queue: finished[queue] for queue in there if queue in finished})

    async def _is_there(self, queue: Queue, offset: int) -> bool:
        """Has QUEUE as many messages? If not, an administrator accepted a loss; the reader finds where to continue."""
        try:
            bounds = await self._parts.bounds.of(queue, None)
        except PocketMQError:
            return False  # It is committed with the others.
        return offset <= bounds.max_offset

    def _hurry(self) -> None:
        """Hear that a broker's clock waits until what has just come is committed."""
        self._hurries_until_ms = self._clock.now_ms() + HURRY_MS
        if not self._hurries:
            self._hurries = True
            self._parts.session.tasks.spawn(self._run_hurrying())

    async def _run(self) -> None:
        interval_ms = self._parts.config.auto_commit_interval_ms
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + interval_ms)
            await self._commit(self._finished())

    async def _run_hurrying(self) -> None:
        try:
            while (now_ms := self._clock.now_ms()) < self._hurries_until_ms:
                await self._clock.sleep_until(now_ms + _LOOK_MS)
                await self._commit(self._finished())
        finally:
            self._hurries = False

    async def _commit(self, offsets: Mapping[Queue, int]) -> None:
        try:
            await self._keeper.commit(offsets)
        except PocketMQError as error:
            queues = ", ".join(map(str, sorted(offsets)[:_QUEUES_NAMED]))
            logger.warning(
                "offsets not committed, trying again later %s",
                Facts(group=self._parts.group, queues=queues, reason=error.message),
            )
