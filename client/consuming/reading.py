"""The core of both pull consumers: reads its queues ahead, keeps and commits positions, seeks, and pauses.

The API classes (pull_consumer.py) own the cursor, and pass the application's position with each call.

A queue that is to be released waits until the application has finished what it got of it. Then that is committed, and
the queue is released. Messages fetched ahead are dropped.

A consumer whose application does not ask for more in max_poll_interval_ms leaves its group, so that other members get
its queues. While the application iterates over a batch, each message counts as asking for more.

POSITION, in all these calls, is the position after what was delivered to the application. Not thread-safe: the
consumer's event loop owns it.
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
    ReadStretch,
)
from .parts import ConsumerParts, reach_name_server
from .prefetch import ASSIGNED, LOST, REVOKED, Prefetch, PrefetchSink, Rebalanced
from .queue_reader import QueueReader, start_ms
from .queue_supply import Supply, broadcast_supply, chosen_supply, group_supply, with_retries
from .sharing import Sharing
from .unshared_queues import AssignedQueues, committed_positions

logger = logging.getLogger(__name__)


#: Pause between tries to commit a queue that is to go.
_COMMIT_PAUSE_MS = 200
#: Checks of the application per max_poll_interval_ms: its absence is noticed an eighth of that later, or earlier.
_LOOKS: Final = 8


@dataclass(slots=True)
class Active:
    """A queue that is read."""

    held: HeldQueue
    stretch: ReadStretch
    reader: QueueReader
    #: After what the API class has; None: it is not known yet where reading began.
    offset: int | None = None
    #: Where its reader began; None: where it had been before, or that is not known yet.
    begun: int | None = None
    is_paused: bool = False


class PullReading:
    """Reads for the group what its supply gives it."""

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
        self.supply: Supply | None = None
        self._commits: RegularCommits | None = None
        #: What is read, by queue.
        self.active: dict[Queue, Active] = {}
        #: What was, and is not any more.
        self._gone: set[Queue] = set()
        self._paused: set[Queue] = set()
        #: What the API class has; it may be delivered.
        self._handed: Batch | None = None
        self._returned = asyncio.Event()
        #: What the listener has not heard yet, and an end waits for.
        self._untold: set[Rebalanced] = set()
        #: Is called with each batch that the API class gets.
        self._witness: Callable[[Batch], None] | None = None
        #: The application has a listener for queues that are assigned and revoked.
        self.has_listener = has_listener
        #: The application's position, from the API class. Another thread may write it.
        self._cursor = cursor
        self.calls = 0
        self.is_waiting = False
        #: It was too long at its messages, and is out of the group until it comes for more.
        self.is_away = False
        self._started = self._closed = self._reaches = False

    def start(self) -> None:
        """Serve messages from now on."""
        self._started = True
        self._session.tasks.spawn(self._watch_polls())

    async def _watch_polls(self) -> None:
        """Leave the group when the application does not come for more."""
        clock, cursor = self._session.clock, self._cursor
        interval_ms = self.config.max_poll_interval_ms
        last = (0, 0)
        since_ms = clock.now_ms()
        while True:
            await clock.sleep_until(clock.now_ms() + max(1, interval_ms // _LOOKS))
            now = (self.calls, cursor.end)
            if self.is_waiting or now != last or self.is_away or self.supply is None:
                last, since_ms = now, clock.now_ms()
            elif clock.now_ms() - since_ms >= interval_ms:
                logger.warning(
                    "application does not come for more messages, leaving the group until it does %s",
                    Facts(group=self.parts.group, max_poll_interval_ms=interval_ms),
                )
                self.is_away = True
                self.give_up_handed()
                await self.supply.source.close()

    def use(self, supply: Supply) -> None:
        """Read what SUPPLY gives."""
        self.supply = supply
        supply.source.start()
        if not self._reaches:
            self._reaches = True
            self._session.tasks.spawn(reach_name_server(self.parts, self.fail))
        if self.config.auto_commit:
            self._commits = RegularCommits(self.parts, supply.keeper, self._finished)
            self._commits.start()

    def begin(self, held: HeldQueue) -> None:
        """Read a queue from now on."""
        assert self.supply is not None, "a supply gives queues"
        self.supply.keeper.begin(held)
        stretch = ReadStretch(held)
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
            self._prefetch.tell(ASSIGNED, held.queue)

    def _reader(self, stretch: ReadStretch) -> QueueReader:
        assert self.supply is not None
        sink = PrefetchSink(self._prefetch, stretch, self._note_start)
        wanted = self.subscriptions.get(stretch.queue.topic)
        return QueueReader(stretch.held, wanted, sink, self.supply, self.parts)

    def _note_start(self, stretch: ReadStretch, offset: int) -> None:
        active = self.active.get(stretch.queue)
        if active is None or active.stretch is not stretch:
            return
        active.offset = active.begun = offset
        committed = stretch.held.committed
        finished = self.positions.finished().get(stretch.queue, -1)
        if finished > offset or (committed >= 0 and offset != committed):
            # The settings passed over what was committed, or the queue ends before what was finished: from now on the
            # group stands here.
            self.positions.finish(ReadPosition(stretch, offset))

    async def end(self, queue: Queue, *, lost: bool) -> None:
        """Stop reading QUEUE; have what was delivered finished and committed, unless the queue is LOST."""
        active = self.active.pop(queue)
        self._gone.add(queue)
        skipped = self._prefetch.skipped(active.stretch)
        self.halt(active)
        try:
            if not lost:
                await active.reader.told()
            if not lost and not self._closed:
                await self._until_returned(queue)
            if self.has_listener and not self._closed:
                await self._tell_end(queue, lost or self.is_away)
            if not lost and self.config.auto_commit:
                self._finish_skipped(active, skipped)
                await self._commit_at_last(queue)
        finally:
            if lost and self.config.auto_commit and not self.has_listener:
                self._finished()  # If the queue returns, from another master, reading continues there.
            self._forget(active)

    async def _tell_end(self, queue: Queue, lost: bool) -> None:
        """Have the listener hear that QUEUE goes, and wait for it unless QUEUE is LOST."""
        news = self._prefetch.tell(LOST if lost else REVOKED, queue)
        if not lost:
            self._untold.add(news)
            await news.told.wait()
            self._untold.discard(news)

    def halt(self, active: Active) -> None:
        """End the stretch that is read: no more of it is delivered."""
        active.stretch.end()
        active.reader.stop()
        self._prefetch.drop(active.stretch)

    async def _until_returned(self, queue: Queue) -> None:
        """Return when the application is not at messages of QUEUE."""
        while self._handed is not None and self._is_of(self._handed, queue):
            self._returned.clear()
            await self._returned.wait()

    def _is_of(self, batch: Batch, queue: Queue) -> bool:
        return batch.stretch.queue == queue and not batch.stretch.void

    def _finish_skipped(self, active: Active, skipped: int | None) -> None:
        """Finish what the filter SKIPPED, if all that was delivered before it is finished."""
        finished = self.positions.finished().get(active.held.queue, active.begun)
        if skipped is not None and finished is not None and finished == active.offset:
            self.positions.finish(ReadPosition(active.stretch, skipped))

    def _finish_all_skipped(self) -> None:
        for active in self.active.values():
            self._finish_skipped(active, self._prefetch.skipped(active.stretch))

    async def _commit_at_last(self, queue: Queue) -> None:
        """Commit what is finished of QUEUE, again and again if need be: it is about to go."""
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
                        "offset not committed, what was handled comes again %s",
                        Facts(
                            group=self.parts.group, queue=queue, offset=offset, reason=error.message
                        ),
                    )
                    return
            await clock.sleep_until(clock.now_ms() + _COMMIT_PAUSE_MS)

    def _forget(self, active: Active) -> None:
        queue = active.held.queue
        if self._handed is not None and self._is_of(self._handed, queue):
            self.give_up_handed()  # The application is still at it.
        active.stretch.annul()
        assert self.supply is not None
        self.positions.leave(queue, self.supply.keeper.kept(queue), active.begun)
        self.supply.keeper.forget(queue)

    def fail(self, error: PocketMQError) -> None:
        """Have the application meet ERROR."""
        self._prefetch.fail(error)

    async def next(
        self, finished: ReadPosition | None, timeout_ms: int | None
    ) -> Batch | Rebalanced | None:
        """Return the next batch, or None if none comes in TIMEOUT_MS (None: wait on); news of queues come first.

        FINISHED is how far the application has come with the batch before.
        """
        self.check_open()
        self.come_back(finished)
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
                if not isinstance(taken, Batch) or await self._hand_out(taken):
                    return taken
        finally:
            self.is_waiting = False

    def stop_waiting(self) -> None:
        """Have `next` return None, now and from now on."""
        self._prefetch.end()

    async def _hand_out(self, batch: Batch) -> bool:
        """Pass BATCH to the API class; return False if it contains nothing for the application."""
        if batch.stretch.ended:
            return False
        if not batch.messages:
            self.positions.finish(ReadPosition(batch.stretch, batch.next_offset))
        elif self.config.delivery == "at_most_once" and not await self._commit_first(batch):
            return False
        if batch.stretch.ended or not batch.messages:
            return False
        self.active[batch.stretch.queue].offset = batch.next_offset
        self._handed = batch
        if self._witness is not None:
            self._witness(batch)
        self.counts.handed_out += len(batch.messages)
        return True

    async def _commit_first(self, batch: Batch) -> bool:
        """Commit BATCH before the application sees it; return False if the queue is not held any more."""
        assert self.supply is not None
        keeper, queue = self.supply.keeper, batch.stretch.queue
        try:
            await keeper.commit({queue: batch.next_offset})
        except PocketMQError:
            self._prefetch.put_back(batch)
            raise
        self.positions.finish(ReadPosition(batch.stretch, batch.next_offset))
        return keeper.committed(queue) == batch.next_offset

    def give_up_handed(self) -> None:
        """Have what the application was handed not count any more: it takes too long."""
        if self._handed is not None:
            self.counts.repeats += len(self._handed.messages)
            self._handed.stretch.annul()
            self._handed = None
            self._returned.set()

    def come_back(self, finished: ReadPosition | None) -> None:
        """Note that the application has come for more, and how far it is: what it was handed is FINISHED."""
        self.calls += 1
        self.positions.finish(finished)
        self._handed = None
        self._returned.set()

    def _finished(self) -> Mapping[Queue, int]:
        # First the batch, then the position in it: the API class writes them in the other order. Between two batches
        # the cursor is still in the one before.
        cursor = self._cursor
        batch, begin = cursor.batch, cursor.begin
        if batch is not None and batch is self._handed and self.config.delivery != "at_most_once":
            self.positions.finish(ReadPosition(batch.stretch, batch.offset_at(begin)))
        return self.positions.finished()

    async def commit(self, finished: ReadPosition | None) -> None:
        """Have the brokers keep how far the group is; FINISHED as in `next`."""
        self.calls += 1
        if self.config.delivery != "at_most_once" or (finished and finished.stretch.ended):
            self.positions.finish(finished)
        self._finish_all_skipped()
        self.let_go_of_ended(finished)
        if self.supply is not None:
            await self.supply.keeper.commit(self.positions.finished())

    async def tell_outcome(
        self, work: Awaitable[None], callback: Callable[[PocketMQError | None], object] | None
    ) -> None:
        """Tell CALLBACK what becomes of WORK, a commit; without one, a failure is logged."""
        outcome: PocketMQError | None = None
        try:
            await work
        except PocketMQError as error:
            outcome = error
        if callback is not None:
            callback(outcome)
        elif outcome is not None:
            logger.warning(
                "offsets not committed %s",
                Facts(group=self.parts.group, reason=outcome.message),
            )

    @property
    def is_watched(self) -> bool:
        """Is a witness called with each batch?"""
        return self._witness is not None

    def watch(self, witness: Callable[[Batch], None] | None) -> None:
        """Call WITNESS with each batch that is delivered from now on; None: call nothing."""
        self._witness = witness

    def let_go_of_ended(self, finished: ReadPosition | None = None) -> None:
        """If the queue of the current message is to go, have it come back from there; FINISHED as in `next`."""
        if self._handed is not None and self._handed.stretch.ended:
            self.come_back(finished)

    def active_queue(self, queue: Queue) -> Active:
        """Return what is known of QUEUE. Raises LeaseLost if it went, InvalidArgument if it was never read here."""
        self.check_open()
        active = self.active.get(queue)
        if active is None:
            here = ", ".join(map(str, sorted(self.active)[:32])) or "none"
            if queue in self._gone:
                raise LeaseLost(
                    f"queue {queue} went from this consumer since it was read: it has {here}, and what is not committed"
                    " comes again, perhaps elsewhere",
                    topic=queue.topic,
                    queue=queue.number,
                    group=self.parts.group,
                )
            raise InvalidArgument(
                f"queue {queue} is not read by this consumer at present: it has {here}",
                field="queue",
                value=queue,
            )
        return active

    def go(self, active: Active, offset: int | None) -> None:
        """Read on at OFFSET, None: where the settings say; what lies ahead is dropped, what was delivered counts."""
        self.halt(active)
        active.stretch = ReadStretch(active.held)
        active.reader = self._reader(active.stretch)
        active.offset = offset
        if not active.is_paused:
            active.reader.start(offset)

    def set_paused(self, queue: Queue, paused: bool) -> None:
        """Remember whether QUEUE is read, also when it is released and assigned again."""
        if paused:
            self._paused.add(queue)
        else:
            self._paused.discard(queue)

    @property
    def is_open(self) -> bool:
        """Are messages served?"""
        return self._started and not self._closed

    def check_open(self) -> None:
        """Raise ClientClosed unless messages are served."""
        if self._closed:
            raise ClientClosed("the consumer was closed; make a new one to go on reading")
        if not self._started:
            raise ClientClosed("the consumer was not started: use it in a `with` block")

    async def close(self, finished: ReadPosition | None, *, failing: bool = False) -> None:
        """Commit, unless auto_commit is off, and disconnect; FINISHED as in `next`.

        FAILING: the application is leaving with an error of its own, which one of the commit must not hide.
        """
        if self._closed:
            return
        self._closed = True
        self.come_back(finished)
        self._finish_all_skipped()
        for news in list(self._untold):
            news.told.set()
        try:
            if self.supply is not None:
                await self._let_go(self.supply, failing)
        finally:
            await self._session.close()

    async def _let_go(self, supply: Supply, failing: bool) -> None:
        trouble: PocketMQError | None = None
        if self.config.auto_commit:
            try:
                await supply.keeper.commit(self.positions.finished())
            except PocketMQError as error:
                trouble = error
        await supply.source.close()
        if trouble is not None and not failing:
            raise trouble
        if trouble is not None:
            logger.warning(
                "offsets not committed %s",
                Facts(group=self.parts.group, reason=trouble.message),
            )


class Steering:
    """Steers READING."""

    def __init__(self, reading: PullReading) -> None:
        self._reading = reading
        self._parts = reading.parts
        self._chosen: AssignedQueues | None = None

    def subscribe(self, subscriptions: Subscriptions, position: ReadPosition | None) -> None:
        """Read SUBSCRIPTIONS from now on, and nothing else."""
        reading = self._reading
        reading.check_open()
        self._parts.need_group("subscribe")
        if self._chosen is not None:
            raise InvalidArgument(
                "this consumer reads the queues that it was assigned: make another one to subscribe",
                field="subscribe",
            )
        before, reading.subscriptions = reading.subscriptions, subscriptions
        if reading.supply is None:
            if subscriptions:
                self._begin(subscriptions)
            return
        source = reading.supply.source
        if not isinstance(source, Sharing):
            raise InvalidArgument(
                "a consumer that broadcasts keeps its subscriptions: make another one",
                field="subscribe",
            )
        source.replace_subscriptions(with_retries(subscriptions, self._parts))
        for queue, active in list(reading.active.items()):
            if queue.topic in before and queue.topic not in subscriptions:
                reading.halt(active)  # It is about to go.
            elif before.get(queue.topic) != subscriptions.get(queue.topic):
                reading.go(active, self._offset(active, position))

    def _begin(self, subscriptions: Subscriptions) -> None:
        reading = self._reading
        if reading.config.broadcasting:
            folder = reading.config.offsets_folder
            reading.use(broadcast_supply(subscriptions, reading, self._parts, folder))
        else:
            reading.use(group_supply(subscriptions, reading, self._parts, "pull"))

    async def assign(self, queues: Collection[Queue], position: ReadPosition | None) -> None:
        """Read QUEUES from now on, and no others, whatever the group's members do; what is before POSITION is done."""
        reading = self._reading
        reading.check_open()
        reading.come_back(position)
        # Nothing comes or goes but by the application's own wish.
        reading.has_listener = False
        if self._chosen is None:
            if reading.supply is not None:
                raise InvalidArgument(
                    "this consumer subscribes to topics: make another one to assign queues",
                    field="assign",
                )
            supply, self._chosen = chosen_supply(reading, self._parts)
            reading.use(supply)
        await self._chosen.replace(queues)

    def assignment(self) -> list[Queue]:
        """Return the queues that are read."""
        self._reading.check_open()
        return sorted(self._reading.active)

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read, by any consumer."""
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
        """Return what the group has committed of QUEUE; None: nothing."""
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
        """Continue at OFFSET of QUEUE; what was delivered of it does not count any more."""
        if offset < 0:
            raise InvalidArgument(
                f"offset is {offset}, but must be at least 0", field="offset", limit=0, value=offset
            )
        reading = self._reading
        active = reading.active_queue(queue)
        active.stretch.annul()
        reading.go(active, offset)
        reading.positions.finish(ReadPosition(active.stretch, offset))

    async def seek_to(
        self, queues: Collection[Queue] | None, where: datetime | int | None, *, last: bool = False
    ) -> dict[Queue, int]:
        """Go to the first message stored at WHERE or later of QUEUES (None: all), or else to the first or LAST.

        Return the offsets.
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
        """Deliver nothing more of QUEUES until they are resumed."""
        reading = self._reading
        for active in [reading.active_queue(queue) for queue in queues]:
            reading.set_paused(active.held.queue, True)
            if not active.is_paused:
                active.is_paused = True
                reading.go(active, self._offset(active, position))

    def resume(self, queues: Collection[Queue]) -> None:
        """Resume QUEUES; those that are not paused are left as they are."""
        reading = self._reading
        reading.check_open()
        for queue in queues:
            reading.set_paused(queue, False)
            active = reading.active.get(queue)
            if active is not None and active.is_paused:
                active.is_paused = False
                active.reader.start(active.offset)

    async def commit_offsets(self, offsets: Mapping[Queue, int | tuple[int, str]]) -> None:
        """Commit OFFSETS, which are those of the next messages, perhaps with texts, and nothing else."""
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
                f"offset of {queue} cannot have metadata: a consumer that broadcasts keeps its offsets in Apache's"
                " offsets.json, which has no room for it; commit the offset alone",
                field="metadata",
            )
