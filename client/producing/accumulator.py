"""The accumulator: gathers messages into batches, a deque per queue, and decides which batches may leave.

`Accumulator.drain` says when a batch is ready. While order is kept, a queue has one batch under way, and what arrives
meanwhile gathers in the next. So an idle queue sends at once, and a busy one sends larger batches.

Pure: the time is an argument. Not thread-safe: the producer's event loop owns it, except for `Budget`.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ...proto.errors import BufferFull, PocketMQError
from ..config import ProducerConfig
from ..queue import Queue
from .batch import ProducerBatch
from .batch_parts import JointPart, SinglesPart
from .bodies import Bodies


class Budget:
    """The memory that messages without an acknowledgement may take.

    `take` and `give` may be called from any thread; waiting is for the event loop. Waiters are served in their order,
    and a message larger than the whole budget is let in when nothing else is there.
    """

    def __init__(self, limit_bytes: int, on_short: Callable[[], None]) -> None:
        """ON_SHORT is called when somebody begins to wait: what lingers has to leave."""
        self.limit_bytes = limit_bytes
        self._on_short = on_short
        #: How many have waited.
        self.wait_count = 0
        self._taken_bytes = 0
        self._lock = threading.Lock()  # protects _taken_bytes
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @property
    def is_short(self) -> bool:
        """Does somebody wait?"""
        return bool(self._waiters)

    def take(self, size_bytes: int) -> bool:
        """Take SIZE_BYTES if they are there and nobody waits for them."""
        if self._waiters:
            return False
        with self._lock:
            taken_bytes = self._taken_bytes + size_bytes
            if taken_bytes > self.limit_bytes and self._taken_bytes:
                return False
            self._taken_bytes = taken_bytes
            return True

    async def take_within(self, size_bytes: int, max_block_ms: int) -> None:
        """Take SIZE_BYTES; wait for them up to MAX_BLOCK_MS. Raises BufferFull."""
        if self.take(size_bytes):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, waiter))
        self.wait_count += 1
        self._on_short()
        try:
            async with asyncio.timeout(max_block_ms / 1000):
                await waiter
        except TimeoutError:
            raise self.full(f"for {max_block_ms} ms") from None
        finally:
            self._drop(waiter, size_bytes)

    def _drop(self, waiter: asyncio.Future[None], size_bytes: int) -> None:
        """Forget WAITER; hand on what it was given but, cancelled, will not use."""
        if waiter.cancelled() or not waiter.done():
            self._waiters = deque(entry for entry in self._waiters if entry[1] is not waiter)
            self._serve()

    def give(self, size_bytes: int) -> None:
        """Give SIZE_BYTES back. On the event loop's thread."""
        with self._lock:
            self._taken_bytes -= size_bytes
        if self._waiters:
            self._serve()

    def _serve(self) -> None:
        while self._waiters:
            size_bytes, waiter = self._waiters[0]
            if not waiter.done():
                if not self._has_room(size_bytes):
                    return
                waiter.set_result(None)
            self._waiters.popleft()

    def _has_room(self, size_bytes: int) -> bool:
        """Take SIZE_BYTES for the one that waits longest, if they are there."""
        with self._lock:
            if self._taken_bytes and self._taken_bytes + size_bytes > self.limit_bytes:
                return False
            self._taken_bytes += size_bytes
            return True

    def full(self, how_long: str) -> BufferFull:
        """Return the error for a sender that found no room."""
        return BufferFull(
            f"the producer's buffer of {self.limit_bytes} bytes was full {how_long}: the brokers take less than you "
            f"send; wait for acknowledgements, raise buffer_memory, or raise max_block_ms",
            limit=self.limit_bytes,
        )


class _QueueBatches:
    """The batches of one queue that wait, in order; the last one may be open."""

    __slots__ = ("batches", "broker", "queue", "scheduled", "under_way")

    def __init__(self, queue: Queue, broker: _Broker) -> None:
        self.queue = queue
        self.broker = broker
        self.batches: deque[ProducerBatch] = deque()
        #: Runs of it that travel.
        self.under_way = 0
        #: Is it in its broker's ring?
        self.scheduled = False

    @property
    def open_batch(self) -> ProducerBatch | None:
        """The batch that messages may join."""
        return self.batches[-1] if self.batches and self.batches[-1].open else None


class _Broker:
    """What waits for one broker, and how much travels."""

    __slots__ = ("name", "ring", "under_way")

    def __init__(self, name: str) -> None:
        self.name = name
        #: The queues that have something to send and are not muted, the next one first.
        self.ring: deque[_QueueBatches] = deque()
        self.under_way = 0


class Accumulator:
    """Takes messages, and delivers batches; every batch ends in `finished` or `back`."""

    def __init__(self, config: ProducerConfig, budget: Budget) -> None:
        """BUDGET gets the bytes of what is done back."""
        self._ordered = config.ordered
        self._linger_ms = config.linger_ms
        self._delivery_timeout_ms = config.delivery_timeout_ms
        self._in_flight_max = config.max_in_flight
        self._bytes_max = config.batch_max_bytes
        self._messages_max = config.batch_messages_max
        self._budget = budget
        self._pending: dict[Queue, _QueueBatches] = {}
        self._brokers: dict[str, _Broker] = {}
        #: The brokers in the order in which they are visited.
        self._visits: deque[_Broker] = deque()
        #: By topic, the queue that messages for any queue joined last.
        self._last_opened: dict[str, _QueueBatches] = {}
        self._unfinished: set[ProducerBatch] = set()
        self._flushes: list[tuple[set[ProducerBatch], Callable[[], None]]] = []

    # --- messages in

    def open_queue(self, topic: str, count: int, size_bytes: int) -> Queue | None:
        """Return the queue whose batch COUNT more messages for any queue of TOPIC may join; None: choose one."""
        pending = self._last_opened.get(topic)
        if pending is None or (batch := pending.open_batch) is None:
            return None
        return pending.queue if self._fits(batch, count, size_bytes) else None

    def add(self, queue: Queue, part: JointPart, now_ms: int, *, pinned: bool) -> None:
        """Send PART to QUEUE. PINNED: to this very queue, wherever else there may be room."""
        # What is encoded by the column travels by itself.
        alone = isinstance(part.messages, Bodies)
        count = self._messages_max + 1 if alone else len(part.messages)
        pending, batch = self._open_batch(queue, count, part.size_bytes, now_ms)
        batch.add(part)
        if alone:
            batch.open = False
        self._added(pending, batch, pinned)

    def add_singles(
        self, queue: Queue, singles: SinglesPart, begin: int, now_ms: int, *, pinned: bool
    ) -> int:
        """Send as many of SINGLES from BEGIN on to QUEUE as fit one batch, at least one; return where they end."""
        ends = singles.ends
        pending, batch = self._open_batch(queue, 1, ends[begin + 1] - ends[begin], now_ms)
        room_bytes = self._bytes_max - batch.size_bytes
        fit = bisect_left(ends, ends[begin] + room_bytes, begin + 1) - 1
        end = max(begin + 1, min(fit, begin + self._messages_max - len(batch.messages)))
        batch.add(singles.part(begin, end))
        self._added(pending, batch, pinned)
        return end

    def _open_batch(
        self, queue: Queue, count: int, size_bytes: int, now_ms: int
    ) -> tuple[_QueueBatches, ProducerBatch]:
        """Return the open batch of QUEUE, a new one if COUNT more messages do not fit."""
        pending = self._pending_of(queue)
        batch = pending.open_batch
        if batch is not None and not self._fits(batch, count, size_bytes):
            batch.open = False
            batch = None
        if batch is None:
            batch = ProducerBatch(queue, now_ms, self._done)
            pending.batches.append(batch)
            self._unfinished.add(batch)
            self._schedule(pending)
        return pending, batch

    def _added(self, pending: _QueueBatches, batch: ProducerBatch, pinned: bool) -> None:
        if pinned:
            batch.pinned = True
        else:
            self._last_opened[pending.queue.topic] = pending
        if not self._fits(batch, 1, 0):
            batch.open = False

    def _fits(self, batch: ProducerBatch, count: int, size_bytes: int) -> bool:
        return (
            len(batch.messages) + count <= self._messages_max
            and batch.size_bytes + size_bytes < self._bytes_max
        )

    # --- queues and brokers

    def _pending_of(self, queue: Queue) -> _QueueBatches:
        pending = self._pending.get(queue)
        if pending is None:
            broker = self._brokers.get(queue.broker)
            if broker is None:
                broker = self._brokers[queue.broker] = _Broker(queue.broker)
                self._visits.append(broker)
            pending = self._pending[queue] = _QueueBatches(queue, broker)
        return pending

    def _schedule(self, pending: _QueueBatches) -> None:
        """Let PENDING be visited, if it has something to send and is not muted; an idle queue keeps nothing."""
        if pending.batches and not (self._ordered and pending.under_way):
            if not pending.scheduled:
                pending.scheduled = True
                pending.broker.ring.append(pending)
        elif not pending.batches and not pending.under_way:
            self._pending.pop(pending.queue, None)

    # --- batches out

    def drain(self, now_ms: int) -> list[ProducerBatch]:
        """Take the batches that may leave now. Each is under way until `finished` or `back`.

        A batch is ready if it is full, has lingered (without a linger: always), is flushed, or another sender waits
        for memory, and, after an error, when its pause is over.

        Brokers take turns, and the ready queues of a broker too, so that none starves another. A broker with
        `max_in_flight` batches under way is skipped.
        """
        drained: list[ProducerBatch] = []
        visits = self._visits
        idle = 0
        while idle < len(visits):
            broker = visits[0]
            visits.rotate(-1)
            batch = self._next_of(broker, now_ms)
            if batch is None:
                idle += 1
            else:
                idle = 0
                drained.append(batch)
        return drained

    def _next_of(self, broker: _Broker, now_ms: int) -> ProducerBatch | None:
        """Return the next ready batch for BROKER, if it may have one more."""
        if broker.under_way >= self._in_flight_max:
            return None
        ring = broker.ring
        for _ in range(len(ring)):
            pending = ring.popleft()
            pending.scheduled = False
            if pending.batches:
                if self._ready_ms(pending) <= now_ms and not pending.batches[0].route_pending:
                    return self._take(pending)
                pending.scheduled = True
                ring.append(pending)
        return None

    def _take(self, pending: _QueueBatches) -> ProducerBatch:
        batch = pending.batches.popleft()
        batch.open = False
        pending.under_way += 1
        pending.broker.under_way += 1
        self._schedule(pending)
        return batch

    def _ready_ms(self, pending: _QueueBatches) -> int:
        """Return from when on the first batch of PENDING may leave, as far as time tells."""
        batch = pending.batches[0]
        if batch.not_before_ms:
            return batch.not_before_ms
        if (
            self._linger_ms
            and batch.open
            and not batch.flush_requested
            and not self._budget.is_short
        ):
            return batch.born_ms + self._linger_ms
        return 0

    @property
    def has_waiting(self) -> bool:
        """Does any batch wait for anything but another one of its queue?"""
        return any(broker.ring for broker in self._visits)

    def next_ms(self, now_ms: int) -> int | None:
        """Return the earliest instant after NOW_MS at which `drain` or `expired` may have something; None: not by time.

        A batch counts even if its route is still asked for or its broker is busy: that may be over by then. What does
        not wait for a time is checked when such an event ends.
        """
        instants = [
            ready_ms
            for broker in self._visits
            for pending in broker.ring
            if pending.batches and (ready_ms := self._ready_ms(pending)) > now_ms
        ]
        instants += [
            min(batch.born_ms for batch in pending.batches) + self._delivery_timeout_ms
            for pending in self._pending.values()
            if pending.batches
        ]
        return min(instants, default=None)

    # --- batches back

    def finished(self, batch: ProducerBatch) -> None:
        """BATCH does not travel any more, and does not come back."""
        pending = self._pending[batch.queue]
        pending.under_way -= 1
        pending.broker.under_way -= 1
        self._schedule(pending)

    def back(self, batch: ProducerBatch) -> None:
        """BATCH does not travel any more, and waits at the front to be sent again."""
        pending = self._pending[batch.queue]
        pending.batches.appendleft(batch)
        self.finished(batch)

    def back_in_parts(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """BATCH does not travel any more; PARTS of it wait at the front, in their order."""
        pending = self._pending[batch.queue]
        pending.batches.extendleft(reversed(parts))
        for batches in (self._unfinished, *(batches for batches, _ in self._flushes)):
            if batch in batches:
                batches.remove(batch)
                batches.update(parts)
        self.finished(batch)

    def move(self, batch: ProducerBatch, queue: Queue) -> None:
        """Have BATCH, which waits, wait for QUEUE instead: in front, but behind what has its sequence there."""
        self.drop(batch)
        batch.queue = queue
        pending = self._pending_of(queue)
        at = next(
            (at for at, other in enumerate(pending.batches) if other.sequence is None),
            len(pending.batches),
        )
        pending.batches.insert(at, batch)
        self._schedule(pending)

    def drop(self, batch: ProducerBatch) -> None:
        """Forget that BATCH waits."""
        pending = self._pending[batch.queue]
        pending.batches.remove(batch)
        self._schedule(pending)

    def waiting_for(self, queue: Queue) -> Iterator[ProducerBatch]:
        """Yield the batches that wait for QUEUE, in order."""
        pending = self._pending.get(queue)
        return iter(pending.batches if pending is not None else ())

    def expired(self, now_ms: int) -> list[ProducerBatch]:
        """Take the waiting batches whose time to be delivered is over."""
        born_ms = now_ms - self._delivery_timeout_ms
        late = [
            batch
            for pending in self._pending.values()
            for batch in pending.batches
            if batch.born_ms <= born_ms
        ]
        for batch in late:
            self.drop(batch)
        return late

    # --- the end of batches

    def _done(self, batch: ProducerBatch) -> None:
        self._budget.give(batch.size_bytes)
        self._unfinished.discard(batch)
        if not self._flushes:
            return
        flushes, self._flushes = self._flushes, []
        for batches, flushed in flushes:
            batches.discard(batch)
            if batches:
                self._flushes.append((batches, flushed))
            else:
                flushed()

    def flush(self, flushed: Callable[[], None]) -> None:
        """Let everything leave that was added before; call FLUSHED once it has been acknowledged or has failed."""
        batches = set(self._unfinished)
        if not batches:
            flushed()
            return
        for batch in batches:
            batch.flush_requested = True
        self._flushes.append((batches, flushed))

    @property
    def message_count(self) -> int:
        """Messages without an acknowledgement."""
        return sum(len(batch.messages) for batch in self._unfinished)

    def fail_all(self, error: PocketMQError) -> None:
        """Give up everything that is not finished; what travels comes to `finished` all the same."""
        for pending in list(self._pending.values()):
            pending.batches.clear()
            self._schedule(pending)
        for batch in list(self._unfinished):
            batch.fail(error)

    def check(self) -> None:
        """Assert what holds at any time."""
        waiting = [batch for pending in self._pending.values() for batch in pending.batches]
        assert len(waiting) == len(set(waiting))
        assert self._unfinished.issuperset(waiting)
        for queue, pending in self._pending.items():
            assert pending.queue == queue
            assert pending.batches or pending.under_way
            assert all(batch.queue == queue and not batch.done for batch in pending.batches)
            assert not any(batch.open for batch in list(pending.batches)[:-1])
            assert not self._ordered or pending.under_way <= 1
            if pending.batches and not (self._ordered and pending.under_way):
                assert pending.scheduled
                assert pending in pending.broker.ring
        for name, broker in self._brokers.items():
            of_broker = [one for one in self._pending.values() if one.queue.broker == name]
            assert broker.under_way == sum(one.under_way for one in of_broker)
            assert broker.under_way <= self._in_flight_max
