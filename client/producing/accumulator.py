"""The accumulator: gathers messages into batches, a deque per queue, and decides which batches may leave.

The docstring of `Accumulator.drain` says when a batch is ready. If the producer is ordered, a queue has one batch in
flight, and messages that arrive meanwhile join the next batch. So an idle queue sends at once, and a busy queue sends
larger batches.

The accumulator does no I/O and reads no clock: the time is an argument. It is not thread-safe: the producer's event
loop owns it. Only `Budget` may be used by other threads.
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
    """The memory that messages without an acknowledgement may use.

    Any thread may call `take`. Waiting and `give` are for the event loop. Waiters are served in their order. A message
    that is larger than the whole budget is accepted when the budget is unused.
    """

    def __init__(self, limit_bytes: int, on_wait: Callable[[], None]) -> None:
        """ON_WAIT is called when a sender starts to wait, so that lingering batches are sent."""
        self.limit_bytes = limit_bytes
        self._on_wait = on_wait
        #: How many senders have waited.
        self.wait_count = 0
        self._taken_bytes = 0
        self._lock = threading.Lock()  # protects _taken_bytes
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @property
    def has_waiters(self) -> bool:
        """Whether a sender waits for memory."""
        return bool(self._waiters)

    def take(self, size_bytes: int) -> bool:
        """Take SIZE_BYTES, unless they are not free or another sender waits. Return whether they were taken."""
        if self._waiters:
            return False
        with self._lock:
            taken_bytes = self._taken_bytes + size_bytes
            if taken_bytes > self.limit_bytes and self._taken_bytes:
                return False
            self._taken_bytes = taken_bytes
            return True

    async def take_within(self, size_bytes: int, max_block_ms: int) -> None:
        """Take SIZE_BYTES; wait up to MAX_BLOCK_MS until they are free. Raises BufferFull."""
        if self.take(size_bytes):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, waiter))
        self.wait_count += 1
        self._on_wait()
        try:
            async with asyncio.timeout(max_block_ms / 1000):
                await waiter
        except TimeoutError:
            raise self.full_error(f"for {max_block_ms} ms") from None
        finally:
            self._drop(waiter, size_bytes)

    def _drop(self, waiter: asyncio.Future[None], size_bytes: int) -> None:
        """Remove WAITER if it was cancelled, and serve the next one."""
        if waiter.cancelled() or not waiter.done():
            self._waiters = deque(entry for entry in self._waiters if entry[1] is not waiter)
            self._serve()

    def give(self, size_bytes: int) -> None:
        """Release SIZE_BYTES. Only the event loop's thread may call it."""
        with self._lock:
            self._taken_bytes -= size_bytes
        if self._waiters:
            self._serve()

    def _serve(self) -> None:
        while self._waiters:
            size_bytes, waiter = self._waiters[0]
            if not waiter.done():
                if not self._take_for_first(size_bytes):
                    return
                waiter.set_result(None)
            self._waiters.popleft()

    def _take_for_first(self, size_bytes: int) -> bool:
        """Take SIZE_BYTES for the sender that has waited longest, if they are free."""
        with self._lock:
            if self._taken_bytes and self._taken_bytes + size_bytes > self.limit_bytes:
                return False
            self._taken_bytes += size_bytes
            return True

    def full_error(self, how_long: str) -> BufferFull:
        """Return the error for a sender that got no memory."""
        return BufferFull(
            f"the producer's buffer was full {how_long}: the limit is {self.limit_bytes} bytes (buffer_memory), and the"
            " brokers accept fewer messages than you send. Wait for acknowledgements, or raise buffer_memory or"
            " max_block_ms.",
            limit=self.limit_bytes,
        )


class _QueueBatches:
    """The waiting batches of one queue, in order. The last one may be open."""

    __slots__ = ("batches", "broker", "queue", "scheduled", "under_way")

    def __init__(self, queue: Queue, broker: _Broker) -> None:
        self.queue = queue
        self.broker = broker
        self.batches: deque[ProducerBatch] = deque()
        #: Number of its batches that are in flight.
        self.under_way = 0
        #: Whether it is in its broker's ring.
        self.scheduled = False

    @property
    def open_batch(self) -> ProducerBatch | None:
        """The batch that messages may join."""
        return self.batches[-1] if self.batches and self.batches[-1].open else None


class _Broker:
    """The queues of one broker that have something to send, and how many of its batches are in flight."""

    __slots__ = ("name", "ring", "under_way")

    def __init__(self, name: str) -> None:
        self.name = name
        #: The queues that have something to send and may send it, the next one first.
        self.ring: deque[_QueueBatches] = deque()
        self.under_way = 0


class Accumulator:
    """Takes messages and returns batches. Report the end of each try of a batch with `finished` or `requeue`."""

    def __init__(self, config: ProducerConfig, budget: Budget) -> None:
        """When a batch is done, its bytes are released to BUDGET."""
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
        #: By topic, the last queue that got messages which did not name a queue.
        self._last_opened: dict[str, _QueueBatches] = {}
        self._unfinished: set[ProducerBatch] = set()
        self._flushes: list[tuple[set[ProducerBatch], Callable[[], None]]] = []

    def open_queue(self, topic: str, count: int, size_bytes: int) -> Queue | None:
        """Return the queue of TOPIC whose open batch can take COUNT more messages that name no queue.

        None if there is no such batch: choose a queue then.
        """
        pending = self._last_opened.get(topic)
        if pending is None or (batch := pending.open_batch) is None:
            return None
        return pending.queue if self._fits(batch, count, size_bytes) else None

    def add(self, queue: Queue, part: JointPart, now_ms: int, *, pinned: bool) -> None:
        """Send PART to QUEUE. PINNED: to no other queue, also after an error."""
        # Bodies are encoded column by column, so they are alone in their batch.
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
        """Send those of SINGLES from BEGIN on that fit one batch, at least one, to QUEUE. Return where they end."""
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
        """Put PENDING into its broker's ring if it has a batch that may be sent; forget PENDING if it is idle.

        In an ordered producer, a queue with a batch in flight has to wait.
        """
        if pending.batches and not (self._ordered and pending.under_way):
            if not pending.scheduled:
                pending.scheduled = True
                pending.broker.ring.append(pending)
        elif not pending.batches and not pending.under_way:
            self._pending.pop(pending.queue, None)

    def drain(self, now_ms: int) -> list[ProducerBatch]:
        """Take the batches that may be sent now. Each is in flight until `finished` or `requeue`.

        A batch is ready if it is full, if its linger time is over (without a linger: always), if it is flushed, or if
        a sender waits for memory. After an error it is ready when its pause is over.

        Brokers take turns, and so do the ready queues of a broker, so that none starves. A broker with `max_in_flight`
        batches in flight is skipped.
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
        """Return the next ready batch for BROKER, if BROKER may get one more."""
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
        """Return when the first batch of PENDING may be sent, as far as this depends on the time; 0: now."""
        batch = pending.batches[0]
        if batch.not_before_ms:
            return batch.not_before_ms
        if (
            self._linger_ms
            and batch.open
            and not batch.flush_requested
            and not self._budget.has_waiters
        ):
            return batch.born_ms + self._linger_ms
        return 0

    @property
    def has_waiting(self) -> bool:
        """Whether a batch waits for more than another batch of its own queue."""
        return any(broker.ring for broker in self._visits)

    def next_ms(self, now_ms: int) -> int | None:
        """Return the earliest time after NOW_MS at which `drain` or `expired` may return a batch; None: no such time.

        A batch counts even if its route is not known yet or its broker is busy, because that may have changed by then.
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

    def finished(self, batch: ProducerBatch) -> None:
        """Note that BATCH is no longer in flight and will not be sent again."""
        pending = self._pending[batch.queue]
        pending.under_way -= 1
        pending.broker.under_way -= 1
        self._schedule(pending)

    def requeue(self, batch: ProducerBatch) -> None:
        """Put BATCH, which is no longer in flight, in front of its queue, to be sent again."""
        pending = self._pending[batch.queue]
        pending.batches.appendleft(batch)
        self.finished(batch)

    def requeue_in_parts(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Put the PARTS of BATCH, which is no longer in flight, in front of its queue, in their order."""
        pending = self._pending[batch.queue]
        pending.batches.extendleft(reversed(parts))
        for batches in (self._unfinished, *(batches for batches, _ in self._flushes)):
            if batch in batches:
                batches.remove(batch)
                batches.update(parts)
        self.finished(batch)

    def move(self, batch: ProducerBatch, queue: Queue) -> None:
        """Move BATCH, which waits, to the front of QUEUE, but after the batches that have sequence numbers there."""
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
        """Remove BATCH from the waiting batches."""
        pending = self._pending[batch.queue]
        pending.batches.remove(batch)
        self._schedule(pending)

    def waiting_for(self, queue: Queue) -> Iterator[ProducerBatch]:
        """Yield the batches that wait for QUEUE, in order."""
        pending = self._pending.get(queue)
        return iter(pending.batches if pending is not None else ())

    def expired(self, now_ms: int) -> list[ProducerBatch]:
        """Take the waiting batches whose `delivery_timeout_ms` is over."""
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
        """Send everything that was added so far; call FLUSHED once it is acknowledged or has failed."""
        batches = set(self._unfinished)
        if not batches:
            flushed()
            return
        for batch in batches:
            batch.flush_requested = True
        self._flushes.append((batches, flushed))

    @property
    def message_count(self) -> int:
        """Number of messages without an acknowledgement."""
        return sum(len(batch.messages) for batch in self._unfinished)

    def fail_all(self, error: PocketMQError) -> None:
        """Fail all unfinished batches with ERROR. Call `finished` for those in flight nevertheless."""
        for pending in list(self._pending.values()):
            pending.batches.clear()
            self._schedule(pending)
        for batch in list(self._unfinished):
            batch.fail(error)

    def check(self) -> None:
        """Assert the invariants."""
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
