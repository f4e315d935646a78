"""The messages of one queue that a push consumer has fetched: portions of batches, and the workers at them.

reader ──► wait_for_space()   waits while the queue holds too much
       ──► put()              cuts a batch into portions, and passes them to the workers
workers ─► settle()           releases finished portions, makes space, wakes the tasks that wait for the end

A *portion* is up to PORTION_MESSAGES messages of one fetched batch. One worker or several take its messages one after
the other from its *row*, an iterator of indexes. A worker that takes a message stores its place with one assignment.
Nothing else is stored for a message that is processed, so the cost per message is low. A sorted map holds the portions
by the queue offset of their first message. The offset of the lowest message that is not finished may be committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Final, NamedTuple, TypeAlias

from sortedcontainers import SortedDict

from ...proto.errors import PocketMQError
from ..consuming.held_queue import HeldQueue
from ..consuming.queue_reader import QueueReader
from ..push_config import PushConfig
from ..queue import Queue
from ..received_message import FetchedRun, ReceivedMessage
from .push_metrics import PushCounts

#: Messages per portion: few enough that space is released soon, many enough to make the cost per message negligible.
PORTION_MESSAGES: Final = 512


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message failed, and when it is redelivered."""

    #: 1 to 18: after 1 s to 2 h; 0: longer with each retry; below 0: to the dead-letter queue at once.
    delay_level: int
    reason: str
    #: The exception of the listener.
    error: BaseException | None = None
    #: Whether the listener is still running, and the consumer does not wait for it any more.
    slow: bool = False


class WorkerPlace:
    """The place of one worker in a portion: the index of the first message that it may not have finished."""

    __slots__ = ("count", "index", "seen", "since_ms")

    def __init__(self, index: int) -> None:
        self.index = index
        #: Messages that it processes at once.
        self.count = 1
        #: The index at the last check, and since when it has not changed.
        self.seen = -1
        self.since_ms = 0


class SlowCall(NamedTuple):
    """A worker that has been at one place for a long time."""

    portion: Chunk
    place: WorkerPlace


class Chunk:
    """The messages of RUN with index BEGIN up to END. After them the queue continues at NEXT_OFFSET.

    A message is *unfinished* if it

        is in the row            no worker has taken it
        is at a worker's place   it is being processed, or it was, and the worker has not continued yet
        is unresolved            it failed, and it was not returned to the broker or processed again yet
        was dropped              it was in the row when the queue was revoked or lost

    Messages that the broker filtered out are finished.
    """

    __slots__ = (
        "abandoned",
        "begin",
        "dropped",
        "dropped_from",
        "end",
        "failed_count",
        "next_offset",
        "places",
        "queue",
        "results",
        "row",
        "run",
        "size_bytes",
        "unresolved",
    )

    def __init__(
        self, queue: ProcessQueue, run: FetchedRun, begin: int, end: int, next_offset: int
    ) -> None:
        self.queue = queue
        self.run = run
        self.begin = begin
        self.end = end
        self.next_offset = next_offset
        #: Indexes of the messages that no worker has taken.
        self.row: Iterator[int] = iter(range(begin, end))
        self.places: dict[WorkerPlace, None] = {}
        #: Reports of workers: index, and why the message failed (None: a retry succeeded).
        self.results: deque[tuple[int, Failure | None]] = deque()
        self.unresolved: dict[int, Failure] = {}
        #: Messages whose listener took too long, so that its result is ignored.
        self.abandoned: set[int] = set()
        self.failed_count = 0
        self.dropped = False
        self.dropped_from = end
        starts = run.columns.starts
        end_bytes = int(starts[end]) if end < len(run) else len(run.data)
        self.size_bytes = end_bytes - int(starts[begin])

    def join(self) -> WorkerPlace:
        """Add a worker, which is about to take from the row; return its place."""
        place = WorkerPlace(self.end - length_hint(self.row))
        self.places[place] = None
        return place

    def leave(self, place: WorkerPlace) -> None:
        """Remove PLACE: its worker has finished the messages that it took, or has reported their failure."""
        del self.places[place]

    def rewind(self, index: int) -> None:
        """Put INDEX and all after it into the row again. Only for a single worker, before it leaves."""
        self.row = iter(range(index, self.end))
        if self.dropped:
            self.drop()

    @property
    def left(self) -> int:
        """Number of messages that no worker has taken."""
        return length_hint(self.row)

    @property
    def unfinished(self) -> int:
        """Number of messages that are not finished. A worker between two messages counts as one."""
        at_work = sum(place.count for place in list(self.places))
        self.collect_results()
        count = self.left + at_work + len(self.unresolved) + self.end - self.dropped_from
        return min(count, self.end - self.begin)

    @property
    def handled(self) -> int:
        """Approximate number of messages that were processed."""
        return max(0, self.end - self.begin - self.unfinished - self.failed_count)

    def lowest(self) -> int:
        """Return the index of the lowest unfinished message; `end` if there is none."""
        lowest = self.end - length_hint(self.row)
        for place in list(self.places):
            index = place.index
            if index < lowest and index not in self.abandoned:
                lowest = index
        self.collect_results()
        if self.unresolved:
            lowest = min(lowest, min(self.unresolved))
        return min(lowest, self.dropped_from)

    def collect_results(self) -> None:
        """Evaluate the reports of workers. Failed messages are added to the failures of the queue."""
        while self.results:
            index, failure = self.results.popleft()
            if index in self.abandoned:
                continue
            if failure is None:
                self.unresolved.pop(index, None)
            else:
                self.fail(index, failure)

    def fail(self, index: int, failure: Failure) -> None:
        """Note that message INDEX failed. It stays unfinished until `resolve`, and is a failure of the queue."""
        self.unresolved[index] = failure
        self.queue.failures.append((self, index))

    def resolve(self, index: int) -> None:
        """Note that the failed message INDEX is finished, because it was returned to the broker or dropped."""
        self.unresolved.pop(index, None)
        self.failed_count += 1

    def abandon(self, place: WorkerPlace, failure: Failure) -> None:
        """Stop waiting for the worker at PLACE: its messages fail with FAILURE, and its later result is ignored."""
        first = place.index
        if first != place.seen:
            return  # It has continued meanwhile.
        for index in range(first, first + place.count):
            self.abandoned.add(index)
            self.fail(index, failure)

    def drop(self) -> None:
        """Remove all messages from the row. They stay unfinished."""
        self.dropped = True
        row = self.row
        self.dropped_from = min(self.dropped_from, next(row, self.end))
        deque(row, maxlen=0)

    def offset_at(self, index: int) -> int:
        """Return the queue offset of message INDEX."""
        return int(self.run.columns.queue_offset[index])


class ProcessQueue:
    """The messages of QUEUE that the consumer has fetched. OFFSET is that of the first unfinished message.

    The consumer's event loop owns it. Workers on other threads only call `join`, `leave` and `rewind`, take from `row`,
    set `WorkerPlace.index`, and append to `results`. This is safe without a lock for two reasons. First, the place of a
    worker only rises, and it is set past the finished messages before the worker takes more. Second, `lowest` reads the
    row first, then the places, then the results, so that it sees a message that moves from one to the next at least
    once. (A call of a built-in iterator, dictionary or deque is one step under the interpreter lock.)
    """

    def __init__(
        self, queue: Queue, offset: int, message_type: type[ReceivedMessage] = ReceivedMessage
    ) -> None:
        self.queue = queue
        #: The class of the messages for listeners.
        self.message_type = message_type
        #: The offset after everything that was put in.
        self.reached = offset
        self.dropped = False
        #: Messages that have failed since this list was last emptied.
        self.failures: list[tuple[Chunk, int]] = []
        #: The portions, by the queue offset of their first messages.
        self._portions: SortedDict = SortedDict()

    def _in_order(self) -> Iterator[Chunk]:
        yield from self._portions.values()

    def put(
        self, run: FetchedRun, begin: int, next_offset: int, portion_messages: int
    ) -> list[Chunk]:
        """Add the messages of RUN from index BEGIN on, cut into portions; return these.

        NEXT_OFFSET is the queue offset after them. Messages that were put in before are omitted.
        """
        begin = max(begin, run.first_at_or_after(self.reached))
        offsets = run.columns.queue_offset
        portions: list[Chunk] = []
        for first in range(begin, len(run), portion_messages):
            end = min(first + portion_messages, len(run))
            end_offset = int(offsets[end]) if end < len(run) else next_offset
            portion = Chunk(self, run, first, end, end_offset)
            self._portions[int(offsets[first])] = portion
            portions.append(portion)
        self.skip_to(next_offset)
        return portions

    def skip_to(self, next_offset: int) -> None:
        """Continue at NEXT_OFFSET. Messages before it that were not put in are filtered out."""
        self.reached = max(self.reached, next_offset)

    def settle(self) -> int:
        """Remove finished portions; return the number of messages in them that were processed."""
        handled = 0
        for offset, portion in list(self._portions.items()):
            if portion.lowest() == portion.end:
                del self._portions[offset]
                handled += portion.end - portion.begin - portion.failed_count
        return handled

    @property
    def handled(self) -> int:
        """Approximate number of processed messages that `settle` has not returned yet."""
        return sum(portion.handled for portion in self._in_order())

    def lowest_unfinished(self) -> int:
        """Return the offset that may be committed: of the lowest unfinished message, or after all messages."""
        for portion in self._in_order():
            index = portion.lowest()
            if index < portion.end:
                return portion.offset_at(index)
        return self.reached

    @property
    def count(self) -> int:
        """Approximate number of messages that are not finished."""
        return sum(portion.unfinished for portion in self._in_order())

    @property
    def size_bytes(self) -> int:
        """Size of the portions that are not finished, in bytes."""
        return sum(portion.size_bytes for portion in self._in_order())

    @property
    def span(self) -> int:
        """Number of queue offsets from the lowest unfinished message to the end of what was fetched."""
        return self.reached - self.lowest_unfinished()

    @property
    def at_work(self) -> int:
        """Number of messages that listeners are processing, without abandoned ones."""
        return sum(
            place.count
            for portion in self._in_order()
            for place in list(portion.places)
            if place.index not in portion.abandoned and place.index < portion.end
        )

    def slow(self, now_ms: int, timeout_ms: int) -> list[SlowCall]:
        """Check the places of the workers; return those that have not changed for at least TIMEOUT_MS."""
        found: list[SlowCall] = []
        for portion in self._in_order():
            for place in list(portion.places):
                index = place.index
                if index != place.seen:
                    place.seen, place.since_ms = index, now_ms
                elif now_ms - place.since_ms >= timeout_ms and index not in portion.abandoned:
                    found.append(SlowCall(portion, place))
        return found

    def drop(self) -> None:
        """Pass no more messages to listeners. Messages that are being processed are not interrupted."""
        self.dropped = True
        for portion in self._in_order():
            portion.drop()


#: Called with new portions.
Take: TypeAlias = "Callable[[QueueIntake, Sequence[Chunk]], None]"
#: Called with an error of a fetch.
Fail: TypeAlias = Callable[[PocketMQError], None]


class QueueIntake:
    """The sink of the reader of one queue, which pauses it at the limits. Not thread-safe: its event loop owns it."""

    reader: QueueReader

    def __init__(
        self,
        held: HeldQueue,
        config: PushConfig,
        message_type: type[ReceivedMessage],
        counts: PushCounts,
        *,
        take: Take,
        fail: Fail,
    ) -> None:
        self.held = held
        self.messages = ProcessQueue(held.queue, 0, message_type)
        #: Whether the offset where reading starts is known.
        self.is_started = False
        #: Whether another member may have the queue, so that nothing can be committed any more.
        self.lost = False
        #: Number of failed messages that are being returned to the broker.
        self.returning = 0
        #: With delivery="at_most_once": lets one commit follow the other.
        self.committing = asyncio.Lock()
        self._config = config
        self._counts = counts
        self._take = take
        self._fail = fail
        self._has_space = asyncio.Event()
        self._idle = asyncio.Event()

    def fail(self, error: PocketMQError) -> None:
        """Report ERROR to the consumer."""
        self._fail(error)

    async def wait_for_space(self) -> None:
        """Return when the queue is below its limits."""
        if self._is_full(count=True):
            self._has_space.clear()
            await self._has_space.wait()

    def _is_full(self, *, count: bool = False) -> bool:
        messages, config, counts = self.messages, self._config, self._counts
        if messages.count > config.queue_messages_max:
            counts.paused_by_messages += count
        elif messages.size_bytes > config.queue_max_bytes:
            counts.paused_by_bytes += count
        elif not config.ordered and messages.span > config.offset_span_max:
            counts.paused_by_span += count
        else:
            return False
        return True

    def started(self, queue: Queue, offset: int) -> None:
        """Start or continue at OFFSET. An offset below those that were read means that the queue was created again."""
        if offset < self.messages.reached:
            self.messages.drop()
            self.messages = ProcessQueue(queue, offset, self.messages.message_type)
        self.messages.skip_to(offset)
        self.is_started = True

    def put(self, queue: Queue, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Add the messages of RUN from index BEGIN on. NEXT_OFFSET is the queue offset after them."""
        size = max(PORTION_MESSAGES, self._config.listener_batch_size)
        if portions := self.messages.put(run, begin, next_offset, size):
            self._take(self, portions)

    def skip(self, queue: Queue, next_offset: int) -> None:
        """Note that the messages that were not put in, before NEXT_OFFSET, are filtered out."""
        self.messages.skip_to(next_offset)

    def settle(self) -> None:
        """Remove finished portions, and wake the reader if there is space, and `until_idle` if nothing is running."""
        self._counts.handled += self.messages.settle()
        if not self._has_space.is_set() and not self._is_full():
            self._has_space.set()
        if self.is_idle:
            self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether no listener is running and no message is being returned to the broker."""
        return not self.returning and not self.messages.at_work

    async def until_idle(self) -> None:
        """Return when `is_idle`. Drop the other messages first, or it may wait without a limit."""
        while not self.is_idle:
            self._idle.clear()
            await self._idle.wait()
