"""The core of both pull consumers: it prefetches messages of its queues, commits positions, seeks, and pauses.

The API classes (pull_consumer.py) own the cursor, and pass the application's position with each call.

Before a queue is released, the consumer waits until the application has finished the messages that it got from the
queue. Then it commits and releases the queue. Prefetched messages are dropped.

If the application does not ask for more within max_poll_interval_ms, the consumer leaves its group, so that other
members get its queues. While the application iterates over a batch, each message counts as asking for more.

In all these calls, POSITION is the position after the messages that were delivered to the application. Not
thread-safe: the consumer's event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ...proto.commit_metadata import check_metadata
from ...proto.errors import ClientClosed, InvalidArgument, LeaseLost, PocketMQError
from ...proto.facts import Facts
from ...proto.topics import check_topic
from ..config import ConsumerConfig
from ..queue import Queue
from ..session import Session
from ..subscriptions import Subscriptions
from .commits import RegularCommits
from .held_queue import (
    Batch,
    Cursor,
    HeldQueue,
    OffsetAndMetadata,
    Positions,
    ReadPosition,
    ReadSpan,
)
from .parts import ConsumerParts, reach_name_server
from .prefetch import ASSIGNED, LOST, REVOKED, Prefetch, PrefetchSink, Rebalanced
from .queue_reader import QueueReader, start_ms
from .queue_supply import QueueSupply, broadcast_supply, chosen_supply, group_supply, with_retries
from .sharing import GroupAssignment
from .unshared_queues import AssignedQueues, committed_positions

logger = logging.getLogger(__name__)


#: Pause between tries to commit a queue that is revoked.
_COMMIT_PAUSE_MS = 200
#: Number of checks of the application per max_poll_interval_ms. So the end of the interval is noticed up to 1/8 late.
_CHECKS: Final = 8


@dataclass(slots=True)
class Active:
    """A queue that the consumer reads."""

    held: HeldQueue
    stretch: ReadSpan
    reader: QueueReader
    #: The offset after the messages that the API class got; None: not known yet.
    offset: int | None = None
    #: The offset where its reader started; None: it resumed at an earlier position, or the offset is not known yet.
    started: int | None = None
    is_paused: bool = False


class PullReading:
    """Reads the queues that its supply assigns."""

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        session: Session,
        cursor: Cursor,
        *,
        has_listener: bool,
    ) -> None:
        self.config = config
        self.parts = ConsumerParts(group, config, session)
        self.counts = self.parts.counts
        self._session = session
        self.positions = Positions()
        self._prefetch = Prefetch(config.prefetch_max_bytes, session.clock, session.tasks)
        self.subscriptions: Subscriptions = {}
        self.supply: QueueSupply | None = None
        self._commits: RegularCommits | None = None
        #: The queues that are read now.
        self.active: dict[Queue, Active] = {}
        #: The queues that were read before.
        self._gone: set[Queue] = set()
        self._paused: set[Queue] = set()
        #: The batch that the API class has; the application may have got messages of it.
        self._delivered: Batch | None = None
        self._returned = asyncio.Event()
        #: Events of revoked queues that wait for the listener.
        self._pending_events: set[Rebalanced] = set()
        #: Called with each batch that the API class gets.
        self._on_batch: Callable[[Batch], None] | None = None
        #: Whether the application has a listener for queues that are assigned and revoked.
        self.has_listener = has_listener
        #: The application's position, from the API class. Another thread may write it.
        self._cursor = cursor
        self.calls = 0
        self.is_waiting = False
        #: Whether the consumer has left the group, because the application did not ask for more in time.
        self.is_away = False
        self._started = self._closed = self._reaches = False

    def start(self) -> None:
        """Start to serve messages."""
        self._started = True
        self._session.tasks.spawn(self._watch_polls())

    async def _watch_polls(self) -> None:
        """Leave the group when the application does not ask for more in time."""
        clock, cursor = self._session.clock, self._cursor
        interval_ms = self.config.max_poll_interval_ms
        last = (0, 0)
        since_ms = clock.now_ms()
        while True:
            await clock.sleep_until(clock.now_ms() + max(1, interval_ms // _CHECKS))
            now = (self.calls, cursor.end)
            if self.is_waiting or now != last or self.is_away or self.supply is None:
                last, since_ms = now, clock.now_ms()
            elif clock.now_ms() - since_ms >= interval_ms:
                logger.warning(
                    "application did not ask for messages in time, leaving the group until it does %s",
                    Facts(group=self.parts.group, max_poll_interval_ms=interval_ms),
                )
                self.is_away = True
                self.drop_delivered()
                await self.supply.source.close()

    def use(self, supply: QueueSupply) -> None:
        """Read the queues that SUPPLY assigns."""
        self.supply = supply
        supply.source.start()
        if not self._reaches:
            self._reaches = True
            self._session.tasks.spawn(reach_name_server(self.parts, self.fail))
        if self.config.auto_commit:
            self._commits = RegularCommits(self.parts, supply.keeper, self._finished)
            self._commits.start()

    def begin(self, held: HeldQueue) -> None:
        """Start to read a queue that was assigned."""
        assert self.supply is not None, "queues are assigned by a supply"
        self.supply.keeper.begin(held)
        stretch = ReadSpan(held)
        active = Active(held, stretch, self._reader(stretch))
        self.active[held.queue] = active
        self._gone.discard(held.queue)
        active.offset = self.positions.resume(held)
        if active.offset is not None and self._commits is not None:
            self._commits.resumed(held, active.offset)
        if held.queue in self._paused:
            active.is_paused = True
        else:
            active.reader.start(active.offset)
        if self.has_listener:
            self._prefetch.announce(ASSIGNED, held.queue)

    def _reader(self, stretch: ReadSpan) -> QueueReader:
        assert self.supply is not None
        sink = PrefetchSink(self._prefetch, stretch, self._note_start)
        wanted = self.subscriptions.get(stretch.queue.topic)
        return QueueReader(stretch.held, wanted, sink, self.supply, self.parts)

    def _note_start(self, stretch: ReadSpan, offset: int) -> None:
        active = self.active.get(stretch.queue)
        if active is None or active.stretch is not stretch:
            return
        active.offset = active.started = offset
        committed = stretch.held.committed
        finished = self.positions.finished().get(stretch.queue, -1)
        if finished > offset or (committed >= 0 and offset != committed):
            # The setting `start` overrides the committed offset, or the queue ends before the finished offset. From now
            # on this is the offset of the group.
            self.positions.finish(ReadPosition(stretch, offset))

    async def end(self, queue: Queue, *, lost: bool) -> None:
        """Stop reading QUEUE; wait until delivered messages are finished, and commit, unless the queue is LOST."""
        active = self.active.pop(queue)
        self._gone.add(queue)
        skipped = self._prefetch.skipped(active.stretch)
        self.halt(active)
        try:
            if not lost:
                await active.reader.reported()
            if not lost and not self._closed:
                await self._until_returned(queue)
            if self.has_listener and not self._closed:
                await self._announce_end(queue, lost or self.is_away)
            if not lost and self.config.auto_commit:
                self._finish_skipped(active, skipped)
                await self._commit_before_release(queue)
        finally:
            if lost and self.config.auto_commit and not self.has_listener:
                self._finished()  # If a new master assigns the queue again, reading continues there.
            self._forget(active)

    async def _announce_end(self, queue: Queue, lost: bool) -> None:
        """Notify the listener that QUEUE is revoked and wait for it, or that QUEUE is LOST."""
        event = self._prefetch.announce(LOST if lost else REVOKED, queue)
        if not lost:
            self._pending_events.add(event)
            await event.handled.wait()
            self._pending_events.discard(event)

    def halt(self, active: Active) -> None:
        """End the present stretch of ACTIVE: no more of it is delivered."""
        active.stretch.end()
        active.reader.stop()
        self._prefetch.drop(active.stretch)

    async def _until_returned(self, queue: Queue) -> None:
        """Return when the application has finished its messages of QUEUE."""
        while self._delivered is not None and self._is_of(self._delivered, queue):
            self._returned.clear()
            await self._returned.wait()

    def _is_of(self, batch: Batch, queue: Queue) -> bool:
        return batch.stretch.queue == queue and not batch.stretch.void

    def _finish_skipped(self, active: Active, skipped: int | None) -> None:
        """Finish the messages up to SKIPPED, which were filtered out, if all messages before them are finished."""
        finished = self.positions.finished().get(active.held.queue, active.started)
        if skipped is not None and finished is not None and finished == active.offset:
            self.positions.finish(ReadPosition(active.stretch, skipped))

    def _finish_all_skipped(self) -> None:
        for active in self.active.values():
            self._finish_skipped(active, self._prefetch.skipped(active.stretch))

    async def _commit_before_release(self, queue: Queue) -> None:
        """Commit the finished messages of QUEUE; retry until it succeeds or a retry cannot help."""
        clock = self._session.clock
        while True:
            offset = self._finished().get(queue)
            try:
                if offset is not None and self.supply is not None:
                    await self.supply.keeper.commit({queue: offset})
                return
            except PocketMQError as error:
                if self._closed or not error.retriable:
                    logger.warning(
                        "offset not committed, processed messages will be redelivered %s",
                        Facts(
                            group=self.parts.group, queue=queue, offset=offset, reason=error.message
                        ),
                    )
                    return
            await clock.sleep_until(clock.now_ms() + _COMMIT_PAUSE_MS)

    def _forget(self, active: Active) -> None:
        queue = active.held.queue
        if self._delivered is not None and self._is_of(self._delivered, queue):
            self.drop_delivered()  # The application has not finished its messages.
        active.stretch.annul()
        assert self.supply is not None
        self.positions.leave(queue, self.supply.keeper.kept(queue), active.started)
        self.supply.keeper.forget(queue)

    def fail(self, error: PocketMQError) -> None:
        """Raise ERROR to the application."""
        self._prefetch.fail(error)

    async def next(
        self, finished: ReadPosition | None, timeout_ms: int | None
    ) -> Batch | Rebalanced | None:
        """Return the next batch, or None after TIMEOUT_MS (None: wait without a limit). Events are returned first.

        FINISHED: the position up to which the application has finished the batch before.
        """
        self.check_open()
        self.note_poll(finished)
        if self.is_away and self.supply is not None:
            self.is_away = False
            self.supply.source.start()
        clock = self._session.clock
        deadline_ms = None if timeout_ms is None else clock.now_ms() + timeout_ms
        self.is_waiting = True
        try:
            while True:
                left_ms = None if deadline_ms is None else max(0, deadline_ms - clock.now_ms())
                taken = await self._prefetch.take(left_ms)
                if not isinstance(taken, Batch) or await self._deliver(taken):
                    return taken
        finally:
            self.is_waiting = False

    def stop_waiting(self) -> None:
        """Let `next` return None from now on, also if it waits."""
        self._prefetch.end()

    async def _deliver(self, batch: Batch) -> bool:
        """Prepare BATCH for the API class; return False if it has no messages for the application."""
        if batch.stretch.ended:
            return False
        if not batch.messages:
            self.positions.finish(ReadPosition(batch.stretch, batch.next_offset))
        elif self.config.delivery == "at_most_once" and not await self._commit_first(batch):
            return False
        if batch.stretch.ended or not batch.messages:
            return False
        self.active[batch.stretch.queue].offset = batch.next_offset
        self._delivered = batch
        if self._on_batch is not None:
            self._on_batch(batch)
        self.counts.handed_out += len(batch.messages)
        return True

    async def _commit_first(self, batch: Batch) -> bool:
        """Commit BATCH before it is delivered; return False if the consumer does not hold the queue any more."""
        assert self.supply is not None
        keeper, queue = self.supply.keeper, batch.stretch.queue
        try:
            await keeper.commit({queue: batch.next_offset})
        except PocketMQError:
            self._prefetch.put_back(batch)
            raise
        self.positions.finish(ReadPosition(batch.stretch, batch.next_offset))
        return keeper.committed(queue) == batch.next_offset

    def drop_delivered(self) -> None:
        """Let the delivered batch not be finished any more, because the application takes too long."""
        if self._delivered is not None:
            self.counts.repeats += len(self._delivered.messages)
            self._delivered.stretch.annul()
            self._delivered = None
            self._returned.set()

    def note_poll(self, finished: ReadPosition | None) -> None:
        """Note that the application asks for more, and that it has finished the messages before FINISHED."""
        self.calls += 1
        self.positions.finish(finished)
        self._delivered = None
        self._returned.set()

    def _finished(self) -> Mapping[Queue, int]:
        # Read the batch first, then the position in it, because the API class writes them in the other order. Between
        # two batches the cursor still has the one before.
        cursor = self._cursor
        batch, begin = cursor.batch, cursor.begin
        if (
            batch is not None
            and batch is self._delivered
            and self.config.delivery != "at_most_once"
        ):
            self.positions.finish(ReadPosition(batch.stretch, batch.offset_at(begin)))
        return self.positions.finished()

    async def commit(self, finished: ReadPosition | None) -> None:
        """Commit the positions of all queues. FINISHED: as in `next`."""
        self.calls += 1
        if self.config.delivery != "at_most_once" or (finished and finished.stretch.ended):
            self.positions.finish(finished)
        self._finish_all_skipped()
        self.return_if_ended(finished)
        if self.supply is not None:
            await self.supply.keeper.commit(self.positions.finished())

    async def report_commit(
        self, work: Awaitable[None], callback: Callable[[PocketMQError | None], object] | None
    ) -> None:
        """Await WORK, a commit; then call CALLBACK with its error or None. Without CALLBACK, log the error."""
        failure: PocketMQError | None = None
        try:
            await work
        except PocketMQError as error:
            failure = error
        if callback is not None:
            callback(failure)
        elif failure is not None:
            logger.warning(
                "offsets not committed %s",
                Facts(group=self.parts.group, reason=failure.message),
            )

    @property
    def is_observed(self) -> bool:
        """Whether `observe` has set a function."""
        return self._on_batch is not None

    def observe(self, on_batch: Callable[[Batch], None] | None) -> None:
        """Call ON_BATCH with each batch that is delivered from now on; None: call nothing."""
        self._on_batch = on_batch

    def return_if_ended(self, finished: ReadPosition | None = None) -> None:
        """If the queue of the delivered batch is being released, release it now. FINISHED: as in `next`."""
        if self._delivered is not None and self._delivered.stretch.ended:
            self.note_poll(finished)

    def active_queue(self, queue: Queue) -> Active:
        """Return the state of QUEUE. Raises LeaseLost if it was revoked, InvalidArgument if it was never assigned."""
        self.check_open()
        active = self.active.get(queue)
        if active is None:
            here = ", ".join(map(str, sorted(self.active)[:32])) or "none"
            if queue in self._gone:
                raise LeaseLost(
                    f"queue {queue} is not assigned to this consumer any more: it has {here}. Messages that were not"
                    " committed are redelivered, perhaps to another member.",
                    topic=queue.topic,
                    queue=queue.number,
                    group=self.parts.group,
                )
            raise InvalidArgument(
                f"queue {queue} is not assigned to this consumer: it has {here}. Use one of these queues.",
                field="queue",
                value=queue,
            )
        return active

    def restart_at(self, active: Active, offset: int | None) -> None:
        """Continue to read at OFFSET (None: where the settings say). Prefetched messages are dropped.

        Messages that were delivered can still be finished.
        """
        self.halt(active)
        active.stretch = ReadSpan(active.held)
        active.reader = self._reader(active.stretch)
        active.offset = offset
        if not active.is_paused:
            active.reader.start(offset)

    def set_paused(self, queue: Queue, paused: bool) -> None:
        """Remember whether QUEUE is paused, also after it is released and assigned again."""
        if paused:
            self._paused.add(queue)
        else:
            self._paused.discard(queue)

    @property
    def is_open(self) -> bool:
        """Whether the consumer is started and not closed."""
        return self._started and not self._closed

    def check_open(self) -> None:
        """Raise ClientClosed unless the consumer is started and not closed."""
        if self._closed:
            raise ClientClosed("the consumer is closed: create a new one to read more")
        if not self._started:
            raise ClientClosed("the consumer is not started: use it in a `with` block")

    async def close(self, finished: ReadPosition | None, *, failing: bool = False) -> None:
        """Commit, unless auto_commit is off, and disconnect. FINISHED: as in `next`.

        FAILING: the application has raised an error. Then an error of the commit is logged, so that it does not hide
        the first one.
        """
        if self._closed:
            return
        self._closed = True
        self.note_poll(finished)
        self._finish_all_skipped()
        for event in list(self._pending_events):
            event.handled.set()
        try:
            if self.supply is not None:
                await self._commit_and_release(self.supply, failing)
        finally:
            await self._session.close()

    async def _commit_and_release(self, supply: QueueSupply, failing: bool) -> None:
        failure: PocketMQError | None = None
        if self.config.auto_commit:
            try:
                await supply.keeper.commit(self.positions.finished())
            except PocketMQError as error:
                failure = error
        await supply.source.close()
        if failure is not None and not failing:
            raise failure
        if failure is not None:
            logger.warning(
                "offsets not committed %s",
                Facts(group=self.parts.group, reason=failure.message),
            )


class ConsumerControl:
    """Subscriptions, assignment, seeking, pausing and commits of offsets for a PullReading."""

    def __init__(self, reading: PullReading) -> None:
        self._reading = reading
        self._parts = reading.parts
        self._chosen: AssignedQueues | None = None

    def subscribe(self, subscriptions: Subscriptions, position: ReadPosition | None) -> None:
        """Read SUBSCRIPTIONS from now on, and no other topics."""
        reading = self._reading
        reading.check_open()
        self._parts.need_group("subscribe")
        if self._chosen is not None:
            raise InvalidArgument(
                "cannot subscribe after assign: create another consumer for subscriptions",
                field="subscribe",
            )
        before, reading.subscriptions = reading.subscriptions, subscriptions
        if reading.supply is None:
            if subscriptions:
                self._begin(subscriptions)
            return
        source = reading.supply.source
        if not isinstance(source, GroupAssignment):
            raise InvalidArgument(
                "cannot change the subscriptions of a broadcasting consumer: create another consumer",
                field="subscribe",
            )
        source.replace_subscriptions(with_retries(subscriptions, self._parts))
        for queue, active in list(reading.active.items()):
            if queue.topic in before and queue.topic not in subscriptions:
                reading.halt(active)  # It will be revoked.
            elif before.get(queue.topic) != subscriptions.get(queue.topic):
                reading.restart_at(active, self._offset(active, position))

    def _begin(self, subscriptions: Subscriptions) -> None:
        reading = self._reading
        if reading.config.broadcasting:
            folder = reading.config.offsets_folder
            reading.use(broadcast_supply(subscriptions, reading, self._parts, folder))
        else:
            reading.use(group_supply(subscriptions, reading, self._parts, "pull"))

    async def assign(self, queues: Collection[Queue], position: ReadPosition | None) -> None:
        """Read QUEUES from now on, and no others, independent of the group. Messages before POSITION are finished."""
        reading = self._reading
        reading.check_open()
        reading.note_poll(position)
        # Only the application changes the queues, so a listener has nothing to report.
        reading.has_listener = False
        if self._chosen is None:
            if reading.supply is not None:
                raise InvalidArgument(
                    "cannot assign queues after subscribe: create another consumer for assigned queues",
                    field="assign",
                )
            supply, self._chosen = chosen_supply(reading, self._parts)
            reading.use(supply)
        await self._chosen.replace(queues)

    def assignment(self) -> list[Queue]:
        """Return the queues that the consumer reads."""
        self._reading.check_open()
        return sorted(self._reading.active)

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return all readable queues of TOPIC."""
        self._reading.check_open()
        return (await self._parts.session.routes.find(check_topic(topic))).readable

    def _offset(self, active: Active, position: ReadPosition | None) -> int | None:
        """Return the offset of the next message of ACTIVE for the application; None: not known yet."""
        if position is not None and position.stretch is active.stretch:
            return position.offset
        return active.offset

    async def position(self, queue: Queue, position: ReadPosition | None) -> int:
        """Return the offset of the next message of QUEUE."""
        active = self._reading.active_queue(queue)
        offset = self._offset(active, position)
        return await active.reader.first_offset() if offset is None else offset

    async def committed(self, queue: Queue) -> OffsetAndMetadata | None:
        """Return the committed offset of the group in QUEUE, with its metadata; None: none."""
        reading = self._reading
        reading.check_open()
        self._parts.need_group("return committed offsets")
        if reading.supply is not None and reading.config.broadcasting:
            kept = reading.supply.keeper.committed(queue)
            return None if kept is None else OffsetAndMetadata(kept)
        session = self._parts.session
        await session.routes.find(queue.topic)
        found = (await committed_positions(self._parts, [queue])).get(queue)
        return None if found is None or found.offset < 0 else found

    def seek(self, queue: Queue, offset: int) -> None:
        """Continue at OFFSET of QUEUE. Messages of it that were delivered before cannot be finished any more."""
        if offset < 0:
            raise InvalidArgument(
                f"offset is {offset}: it must be at least 0", field="offset", limit=0, value=offset
            )
        reading = self._reading
        active = reading.active_queue(queue)
        active.stretch.annul()
        reading.restart_at(active, offset)
        reading.positions.finish(ReadPosition(active.stretch, offset))

    async def seek_to(
        self, queues: Collection[Queue] | None, where: datetime | int | None, *, last: bool = False
    ) -> dict[Queue, int]:
        """Seek in QUEUES (None: all assigned queues); return the new offsets.

        WHERE: a time; continue at the first message stored then or later. None: seek to the beginning, or with LAST to
        the end.
        """
        chosen = self.assignment() if queues is None else list(queues)
        for queue in chosen:
            self._reading.active_queue(queue)
        time_ms = None if where is None else start_ms(where)
        bounds = await asyncio.gather(*(self._parts.bounds.of(queue, time_ms) for queue in chosen))
        offsets: dict[Queue, int] = {}
        for queue, one in zip(chosen, bounds, strict=True):
            edge = one.max_offset if last else one.min_offset
            offsets[queue] = edge if where is None else one.offset_at_time
            self.seek(queue, offsets[queue])
        return offsets

    def pause(self, queues: Collection[Queue], position: ReadPosition | None) -> None:
        """Deliver no messages of QUEUES until they are resumed."""
        reading = self._reading
        for active in [reading.active_queue(queue) for queue in queues]:
            reading.set_paused(active.held.queue, True)
            if not active.is_paused:
                active.is_paused = True
                reading.restart_at(active, self._offset(active, position))

    def resume(self, queues: Collection[Queue]) -> None:
        """Resume QUEUES. Queues that are not paused do not change."""
        reading = self._reading
        reading.check_open()
        for queue in queues:
            reading.set_paused(queue, False)
            active = reading.active.get(queue)
            if active is not None and active.is_paused:
                active.is_paused = False
                active.reader.start(active.offset)

    async def commit_offsets(self, offsets: Mapping[Queue, int | tuple[int, str]]) -> None:
        """Commit OFFSETS and no others: by queue, the offset of the next message, or (offset, metadata)."""
        reading = self._reading
        reading.check_open()
        plain: dict[Queue, int] = {}
        metadata: dict[Queue, str] = {}
        for queue, one in offsets.items():
            reading.active_queue(queue)
            if isinstance(one, tuple):
                plain[queue], text = one
                metadata[queue] = check_metadata(text)
            else:
                plain[queue] = one
        if reading.supply is not None and not reading.supply.keeper.keeps_metadata:
            _check_none(metadata)
        for queue, offset in plain.items():
            reading.positions.finish(ReadPosition(reading.active[queue].stretch, offset))
        if reading.supply is not None:
            await reading.supply.keeper.commit(plain, metadata)


def _check_none(metadata: Mapping[Queue, str]) -> None:
    for queue, text in metadata.items():
        if text:
            raise InvalidArgument(
                f"cannot commit metadata for {queue}: a broadcasting consumer stores its offsets in the file"
                " offsets.json, which has no field for metadata. Commit the offset alone.",
                field="metadata",
            )
