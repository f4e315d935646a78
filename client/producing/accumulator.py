"""Gathers messages into runs, a deque of them for each queue, and says which may leave.

A run is ready when
    it is full (of bytes or of messages)
    it has lingered; without a linger, at the end of the event loop's turn in which it was begun
    somebody flushes, or waits for the memory that it takes
    it is tried again, and its pause is over
but while order is kept a queue is *muted* as long as one of its runs is under way: what arrives meanwhile gathers.
So batching is natural: a message for an idle queue leaves at once, with whatever else this turn has brought, and under
load a run holds what arrived while its predecessor travelled.

`drain` visits the brokers in turn, and the ready queues of each in turn, and takes one run at a visit, so that neither
a broker nor a queue starves another; a broker with max_in_flight runs under way is passed over. What comes back to be
tried again goes to the front of its deque, and so do the parts of a run that was cut, in their order.

Pure: the time is an argument. Not thread-safe: the producer's event loop owns it. Bounded by the producer's budget. A
queue with nothing to send is forgotten.
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
from .bodies import Bodies
from .run import MessageRow, Parcel, Run


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


class _Lane:
    """The runs of one queue that wait, in order; the last one may be open."""

    __slots__ = ("broker", "listed", "queue", "runs", "under_way")

    def __init__(self, queue: Queue, broker: _Broker) -> None:
        self.queue = queue
        self.broker = broker
        self.runs: deque[Run] = deque()
        #: Runs of it that travel.
        self.under_way = 0
        #: It stands in its broker's ring.
        self.listed = False

    @property
    def open_run(self) -> Run | None:
        """The run that messages may join."""
        return self.runs[-1] if self.runs and self.runs[-1].open else None


class _Broker:
    """What waits for one broker, and how much travels."""

    __slots__ = ("name", "ring", "under_way")

    def __init__(self, name: str) -> None:
        self.name = name
        #: The queues that have something to send and are not muted, the next one first.
        self.ring: deque[_Lane] = deque()
        self.under_way = 0


class Accumulator:
    """Takes messages, and hands out runs; every run ends in `finished` or `back`."""

    def __init__(self, config: ProducerConfig, budget: Budget) -> None:
        """BUDGET gets the bytes of what is done back."""
        self._ordered = config.ordered
        self._linger_ms = config.linger_ms
        self._delivery_timeout_ms = config.delivery_timeout_ms
        self._in_flight_max = config.max_in_flight
        self._bytes_max = config.run_bytes_max
        self._messages_max = config.batch_messages_max
        self._budget = budget
        self._lanes: dict[Queue, _Lane] = {}
        self._brokers: dict[str, _Broker] = {}
        #: The brokers in the order in which they are visited.
        self._visits: deque[_Broker] = deque()
        #: By topic, the lane that messages for any queue joined last.
        self._last_opened: dict[str, _Lane] = {}
        self._unfinished: set[Run] = set()
        self._flushes: list[tuple[set[Run], Callable[[], None]]] = []

    # --- messages in

    def open_queue(self, topic: str, count: int, size_bytes: int) -> Queue | None:
        """Return the queue whose run COUNT more messages for any queue of TOPIC may join; None: choose one."""
        lane = self._last_opened.get(topic)
        if lane is None or (run := lane.open_run) is None:
            return None
        return lane.queue if self._fits(run, count, size_bytes) else None

    def add(self, queue: Queue, parcel: Parcel, now_ms: int, *, pinned: bool) -> None:
        """Send PARCEL to QUEUE. PINNED: to this very queue, wherever else there may be room."""
        # What is encoded by the column travels by itself.
        alone = isinstance(parcel.messages, Bodies)
        count = self._messages_max + 1 if alone else len(parcel.messages)
        lane, run = self._open_run(queue, count, parcel.size_bytes, now_ms)
        run.add(parcel)
        if alone:
            run.open = False
        self._added(lane, run, pinned)

    def add_row(
        self, queue: Queue, row: MessageRow, begin: int, now_ms: int, *, pinned: bool
    ) -> int:
        """Send as many of ROW from BEGIN on to QUEUE as fit one run, at least one; return where they end."""
        ends = row.ends
        lane, run = self._open_run(queue, 1, ends[begin + 1] - ends[begin], now_ms)
        room_bytes = self._bytes_max - run.size_bytes
        fit = bisect_left(ends, ends[begin] + room_bytes, begin + 1) - 1
        end = max(begin + 1, min(fit, begin + self._messages_max - len(run.messages)))
        run.add(row.part(begin, end))
        self._added(lane, run, pinned)
        return end

    def _open_run(
        self, queue: Queue, count: int, size_bytes: int, now_ms: int
    ) -> tuple[_Lane, Run]:
        """Return the open run of QUEUE, a new one if COUNT more messages do not fit."""
        lane = self._lane(queue)
        run = lane.open_run
        if run is not None and not self._fits(run, count, size_bytes):
            run.open = False
            run = None
        if run is None:
            run = Run(queue, now_ms, self._done)
            lane.runs.append(run)
            self._unfinished.add(run)
            self._list(lane)
        return lane, run

    def _added(self, lane: _Lane, run: Run, pinned: bool) -> None:
        if pinned:
            run.pinned = True
        else:
            self._last_opened[lane.queue.topic] = lane
        if not self._fits(run, 1, 0):
            run.open = False

    def _fits(self, run: Run, count: int, size_bytes: int) -> bool:
        return (
            len(run.messages) + count <= self._messages_max
            and run.size_bytes + size_bytes < self._bytes_max
        )

    # --- lanes and brokers

    def _lane(self, queue: Queue) -> _Lane:
        lane = self._lanes.get(queue)
        if lane is None:
            broker = self._brokers.get(queue.broker)
            if broker is None:
                broker = self._brokers[queue.broker] = _Broker(queue.broker)
                self._visits.append(broker)
            lane = self._lanes[queue] = _Lane(queue, broker)
        return lane

    def _list(self, lane: _Lane) -> None:
        """Let LANE be visited, if it has something to send and is not muted; an idle queue keeps nothing."""
        if lane.runs and not (self._ordered and lane.under_way):
            if not lane.listed:
                lane.listed = True
                lane.broker.ring.append(lane)
        elif not lane.runs and not lane.under_way:
            self._lanes.pop(lane.queue, None)

    # --- runs out

    def drain(self, now_ms: int) -> list[Run]:
        """Take the runs that may leave now, in fair turns. Each is under way until `finished` or `back`."""
        drained: list[Run] = []
        visits = self._visits
        idle = 0
        while idle < len(visits):
            broker = visits[0]
            visits.rotate(-1)
            run = self._next_of(broker, now_ms)
            if run is None:
                idle += 1
            else:
                idle = 0
                drained.append(run)
        return drained

    def _next_of(self, broker: _Broker, now_ms: int) -> Run | None:
        """Return the next ready run for BROKER, if it may have one more."""
        if broker.under_way >= self._in_flight_max:
            return None
        ring = broker.ring
        for _ in range(len(ring)):
            lane = ring.popleft()
            lane.listed = False
            if lane.runs:
                if self._ready_ms(lane) <= now_ms and not lane.runs[0].finding:
                    return self._take(lane)
                lane.listed = True
                ring.append(lane)
        return None

    def _take(self, lane: _Lane) -> Run:
        run = lane.runs.popleft()
        run.open = False
        lane.under_way += 1
        lane.broker.under_way += 1
        self._list(lane)
        return run

    def _ready_ms(self, lane: _Lane) -> int:
        """Return from when on the first run of LANE may leave, as far as time tells."""
        run = lane.runs[0]
        if run.not_before_ms:
            return run.not_before_ms
        if self._linger_ms and run.open and not run.hurried and not self._budget.is_short:
            return run.born_ms + self._linger_ms
        return 0

    @property
    def has_waiting(self) -> bool:
        """Does any run wait for anything but another one of its queue?"""
        return any(broker.ring for broker in self._visits)

    def next_ms(self, now_ms: int) -> int | None:
        """Return the earliest instant after NOW_MS at which `drain` or `expired` may have something; None: not by time.

        A run counts from when on it may leave, though its route is still asked for or its broker has enough to do: that
        may be over by then. What time does not hold back any more is looked at when such a thing ends.
        """
        instants = [
            ready_ms
            for broker in self._visits
            for lane in broker.ring
            if lane.runs and (ready_ms := self._ready_ms(lane)) > now_ms
        ]
        instants += [
            min(run.born_ms for run in lane.runs) + self._delivery_timeout_ms
            for lane in self._lanes.values()
            if lane.runs
        ]
        return min(instants, default=None)

    # --- runs back

    def finished(self, run: Run) -> None:
        """RUN does not travel any more, and does not come back."""
        lane = self._lanes[run.queue]
        lane.under_way -= 1
        lane.broker.under_way -= 1
        self._list(lane)

    def back(self, run: Run) -> None:
        """RUN does not travel any more, and waits at the front to be sent again."""
        lane = self._lanes[run.queue]
        lane.runs.appendleft(run)
        self.finished(run)

    def back_in_parts(self, run: Run, parts: Sequence[Run]) -> None:
        """RUN does not travel any more; PARTS of it wait at the front, in their order."""
        lane = self._lanes[run.queue]
        lane.runs.extendleft(reversed(parts))
        for runs in (self._unfinished, *(runs for runs, _ in self._flushes)):
            if run in runs:
                runs.remove(run)
                runs.update(parts)
        self.finished(run)

    def move(self, run: Run, queue: Queue) -> None:
        """Have RUN, which waits, wait for QUEUE instead: in front, but behind what has its numbers there."""
        self.drop(run)
        run.queue = queue
        lane = self._lane(queue)
        at = next(
            (at for at, other in enumerate(lane.runs) if other.numbers is None), len(lane.runs)
        )
        lane.runs.insert(at, run)
        self._list(lane)

    def drop(self, run: Run) -> None:
        """Forget that RUN waits."""
        lane = self._lanes[run.queue]
        lane.runs.remove(run)
        self._list(lane)

    def waiting_for(self, queue: Queue) -> Iterator[Run]:
        """Yield the runs that wait for QUEUE, in order."""
        lane = self._lanes.get(queue)
        return iter(lane.runs if lane is not None else ())

    def expired(self, now_ms: int) -> list[Run]:
        """Take the waiting runs whose time to be delivered is over."""
        born_ms = now_ms - self._delivery_timeout_ms
        late = [run for lane in self._lanes.values() for run in lane.runs if run.born_ms <= born_ms]
        for run in late:
            self.drop(run)
        return late

    # --- the end of runs

    def _done(self, run: Run) -> None:
        self._budget.give(run.size_bytes)
        self._unfinished.discard(run)
        if not self._flushes:
            return
        flushes, self._flushes = self._flushes, []
        for runs, flushed in flushes:
            runs.discard(run)
            if runs:
                self._flushes.append((runs, flushed))
            else:
                flushed()

    def flush(self, flushed: Callable[[], None]) -> None:
        """Let everything leave that was added before; call FLUSHED once it has been acknowledged or has failed."""
        runs = set(self._unfinished)
        if not runs:
            flushed()
            return
        for run in runs:
            run.hurried = True
        self._flushes.append((runs, flushed))

    @property
    def message_count(self) -> int:
        """Messages without an acknowledgement."""
        return sum(len(run.messages) for run in self._unfinished)

    def fail_all(self, error: PocketMQError) -> None:
        """Give up everything that is not finished; what travels comes to `finished` all the same."""
        for lane in list(self._lanes.values()):
            lane.runs.clear()
            self._list(lane)
        for run in list(self._unfinished):
            run.fail(error)

    def check(self) -> None:
        """Assert what holds at any time."""
        waiting = [run for lane in self._lanes.values() for run in lane.runs]
        assert len(waiting) == len(set(waiting))
        assert self._unfinished.issuperset(waiting)
        for queue, lane in self._lanes.items():
            assert lane.queue == queue
            assert lane.runs or lane.under_way
            assert all(run.queue == queue and not run.done for run in lane.runs)
            assert not any(run.open for run in list(lane.runs)[:-1])
            assert not self._ordered or lane.under_way <= 1
            if lane.runs and not (self._ordered and lane.under_way):
                assert lane.listed
                assert lane in lane.broker.ring
        for name, broker in self._brokers.items():
            lanes = [lane for lane in self._lanes.values() if lane.queue.broker == name]
            assert broker.under_way == sum(lane.under_way for lane in lanes)
            assert broker.under_way <= self._in_flight_max
