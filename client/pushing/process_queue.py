"""What a push consumer holds of one queue: portions of runs, who is at work in them, what is not finished.

reader ──► room()   waits while the queue holds too much
       ──► put()    cuts a run into portions, and hands them on to the workers
workers ─► settle() lets go of what is finished, makes room, tells who waits for the end

A *portion* is some hundred messages of one fetched run. Workers take its messages one after the other from one row, a
single worker or several at once, and whoever takes a message says where he stands by one assignment: nothing else is
kept of a message that is handled, so that bookkeeping costs no more than that. A sorted map holds the portions by the
queue offset of their first message; what may be committed is the offset of the lowest message that is not finished.

A message is *unfinished* when it
    is in the row              nobody has taken it
    is where a worker stands   it is being handled, or was, and the worker has not gone on
    is unresolved              it failed, and has not been sent back yet (or handled by another try)
    was dropped                it was in the row when the queue was taken away
What a filter at the broker stepped over is finished.

Thread contract: the consumer's event loop owns it. Workers on other threads call only `join`, `leave` and `rewind`,
take from `row`, set `WorkerPlace.index`, and append to `outcomes`. Two orders make that safe without a lock: a worker's
places only rise, and are set behind what it finished before it takes more; and `lowest` looks at the row first, then at
the places, then at the outcomes, so that a message on its way from one to the next is seen at least once. (One call
of a built-in iterator, dictionary or deque is one step under the interpreter's lock.)

What a push consumer counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import length_hint
from typing import Final, NamedTuple, TypeAlias

from sortedcontainers import SortedDict

from ...proto.errors import PocketMQError
from ..consuming.held_queue import HeldQueue
from ..consuming.parts import CONSUMER_PREFIX, COUNTERS, Counts
from ..consuming.queue_reader import QueueReader
from ..metrics import Exposition
from ..push_config import PushConfig
from ..queue import Queue
from ..received_message import FetchedRun, ReceivedMessage

#: Messages of a portion: few enough that a queue soon has room again, many enough to cost nothing each.
PORTION_MESSAGES: Final = 512


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message is not handled: with what delay it shall come again, and what the listener said."""

    #: 1 to 18: 1 s to 2 h; 0: longer with each retry; below 0: to the dead letters at once.
    delay_level: int
    reason: str
    #: What the listener raised.
    error: BaseException | None = None
    #: Its listener runs still, and is not waited for.
    slow: bool = False


class WorkerPlace:
    """Where one worker stands in a portion: at the first message that it may not have finished."""

    __slots__ = ("count", "index", "seen", "since_ms")

    def __init__(self, index: int) -> None:
        self.index = index
        #: Messages that it handles at once.
        self.count = 1
        #: Where it stood when it was last looked at, and since when it does.
        self.seen = -1
        self.since_ms = 0


class Slow(NamedTuple):
    """A worker that stands at one place for long."""

    portion: Portion
    place: WorkerPlace


class Portion:
    """Messages BEGIN to END of RUN; behind them the queue goes on at NEXT_OFFSET."""

    __slots__ = (
        "begin",
        "dropped",
        "dropped_from",
        "end",
        "failed_count",
        "given_up",
        "next_offset",
        "outcomes",
        "places",
        "queue",
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
        #: Indexes that nobody has taken.
        self.row: Iterator[int] = iter(range(begin, end))
        self.places: dict[WorkerPlace, None] = {}
        #: What workers report: (index, why it failed; None: another try succeeded).
        self.outcomes: deque[tuple[int, Failure | None]] = deque()
        self.unresolved: dict[int, Failure] = {}
        #: Messages whose listener is not waited for any more: what it says in the end is not heard.
        self.given_up: set[int] = set()
        self.failed_count = 0
        self.dropped = False
        self.dropped_from = end
        starts = run.columns.starts
        behind = int(starts[end]) if end < len(run) else len(run.data)
        self.size_bytes = behind - int(starts[begin])

    def join(self) -> WorkerPlace:
        """Return the place of a worker that is about to take from the row."""
        place = WorkerPlace(self.end - length_hint(self.row))
        self.places[place] = None
        return place

    def leave(self, place: WorkerPlace) -> None:
        """Forget PLACE: its worker has finished what it took, or reported it."""
        del self.places[place]

    def rewind(self, index: int) -> None:
        """Have INDEX and all behind it taken again: of a worker that is alone here, before it leaves."""
        self.row = iter(range(index, self.end))
        if self.dropped:
            self.drop()

    @property
    def left(self) -> int:
        """How many messages nobody has taken."""
        return length_hint(self.row)

    @property
    def unfinished(self) -> int:
        """How many messages are not finished; a worker between two messages counts as one."""
        at_work = sum(place.count for place in list(self.places))
        self.hear()
        count = self.left + at_work + len(self.unresolved) + self.end - self.dropped_from
        return min(count, self.end - self.begin)

    @property
    def handled(self) -> int:
        """How many messages were handled, about."""
        return max(0, self.end - self.begin - self.unfinished - self.failed_count)

    def lowest(self) -> int:
        """Return the index of the lowest unfinished message; END: there is none."""
        lowest = self.end - length_hint(self.row)
        for place in list(self.places):
            index = place.index
            if index < lowest and index not in self.given_up:
                lowest = index
        self.hear()
        if self.unresolved:
            lowest = min(lowest, min(self.unresolved))
        return min(lowest, self.dropped_from)

    def hear(self) -> None:
        """Take in what workers reported; the queue notes what has failed."""
        while self.outcomes:
            index, failure = self.outcomes.popleft()
            if index in self.given_up:
                continue
            if failure is None:
                self.unresolved.pop(index, None)
            else:
                self.fail(index, failure)

    def fail(self, index: int, failure: Failure) -> None:
        """Keep message INDEX unfinished until `resolve`, and have the queue tell of it."""
        self.unresolved[index] = failure
        self.queue.failures.append((self, index))

    def resolve(self, index: int) -> None:
        """Message INDEX needs nothing more: it was sent back, or given up for good."""
        self.unresolved.pop(index, None)
        self.failed_count += 1

    def give_up(self, place: WorkerPlace, failure: Failure) -> None:
        """Wait no more for the worker at PLACE: what it handles has failed with FAILURE, whatever it says later."""
        first = place.index
        if first != place.seen:
            return  # It has gone on meanwhile.
        for index in range(first, first + place.count):
            self.given_up.add(index)
            self.fail(index, failure)

    def drop(self) -> None:
        """Take all that is left out of the row; it stays unfinished."""
        self.dropped = True
        row = self.row
        self.dropped_from = min(self.dropped_from, next(row, self.end))
        deque(row, maxlen=0)

    def offset_at(self, index: int) -> int:
        """Return the queue offset of message INDEX."""
        return int(self.run.columns.queue_offset[index])


class ProcessQueue:
    """What is held of QUEUE, whose first message not finished is at OFFSET."""

    def __init__(
        self, queue: Queue, offset: int, message_type: type[ReceivedMessage] = ReceivedMessage
    ) -> None:
        self.queue = queue
        #: What listeners are handed.
        self.message_type = message_type
        #: Behind everything that was put in.
        self.reached = offset
        self.dropped = False
        #: What has failed since this was last emptied.
        self.failures: list[tuple[Portion, int]] = []
        #: By the queue offset of their first messages.
        self._portions: SortedDict = SortedDict()

    def _in_order(self) -> Iterator[Portion]:
        yield from self._portions.values()

    def put(
        self, run: FetchedRun, begin: int, next_offset: int, portion_messages: int
    ) -> list[Portion]:
        """Take in the messages of RUN from index BEGIN, cut into portions; behind them stands NEXT_OFFSET.

        What is held already, or was, is left out.
        """
        begin = max(begin, run.first_at_or_after(self.reached))
        offsets = run.columns.queue_offset
        portions: list[Portion] = []
        for first in range(begin, len(run), portion_messages):
            end = min(first + portion_messages, len(run))
            behind = int(offsets[end]) if end < len(run) else next_offset
            portion = Portion(self, run, first, end, behind)
            self._portions[int(offsets[first])] = portion
            portions.append(portion)
        self.pass_over(next_offset)
        return portions

    def pass_over(self, next_offset: int) -> None:
        """Go on at NEXT_OFFSET: what lies before and was not put in is not wanted."""
        self.reached = max(self.reached, next_offset)

    def settle(self) -> int:
        """Let go of portions that are finished; return how many messages in them were handled."""
        handled = 0
        for offset, portion in list(self._portions.items()):
            if portion.lowest() == portion.end:
                del self._portions[offset]
                handled += portion.end - portion.begin - portion.failed_count
        return handled

    @property
    def handled(self) -> int:
        """How many messages were handled that `settle` has not counted yet, about."""
        return sum(portion.handled for portion in self._in_order())

    def lowest_unfinished(self) -> int:
        """Return the queue offset that may be committed: of the lowest unfinished message, or behind all."""
        for portion in self._in_order():
            index = portion.lowest()
            if index < portion.end:
                return portion.offset_at(index)
        return self.reached

    @property
    def count(self) -> int:
        """How many messages are not finished, about."""
        return sum(portion.unfinished for portion in self._in_order())

    @property
    def size_bytes(self) -> int:
        """Bytes of the portions that are not finished."""
        return sum(portion.size_bytes for portion in self._in_order())

    @property
    def span(self) -> int:
        """How far the lowest unfinished message lies behind what was fetched last, in queue offsets."""
        return self.reached - self.lowest_unfinished()

    @property
    def at_work(self) -> int:
        """How many messages are with listeners that are waited for."""
        return sum(
            place.count
            for portion in self._in_order()
            for place in list(portion.places)
            if place.index not in portion.given_up and place.index < portion.end
        )

    def slow(self, now_ms: int, timeout_ms: int) -> list[Slow]:
        """Note where the workers stand; return those that have stood in one place for TIMEOUT_MS and longer."""
        found: list[Slow] = []
        for portion in self._in_order():
            for place in list(portion.places):
                index = place.index
                if index != place.seen:
                    place.seen, place.since_ms = index, now_ms
                elif now_ms - place.since_ms >= timeout_ms and index not in portion.given_up:
                    found.append(Slow(portion, place))
        return found

    def drop(self) -> None:
        """Hand out nothing more; what is being handled goes on."""
        self.dropped = True
        for portion in self._in_order():
            portion.drop()


#: Takes portions that came in.
Take: TypeAlias = "Callable[[QueueIntake, Sequence[Portion]], None]"
#: Takes an error that fetching met.
Fail: TypeAlias = Callable[[PocketMQError], None]


class QueueIntake:
    """What is held of one queue, and why it is not read on. Not thread-safe: its event loop owns it."""

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
        #: Nothing is known of the offset before.
        self.begun = False
        #: Somebody else may have the queue: nothing of what is here is of use any more.
        self.lost = False
        #: Failed messages that are on their way back to the broker.
        self.giving_back = 0
        #: Commits before delivery follow each other.
        self.committing = asyncio.Lock()
        self._config = config
        self._counts = counts
        self._take = take
        self._fail = fail
        self._room = asyncio.Event()
        self._quiet = asyncio.Event()

    def fail(self, error: PocketMQError) -> None:
        """Have the consumer hear of ERROR."""
        self._fail(error)

    async def room(self) -> None:
        """Return once the queue may be read on."""
        if self._is_full(count=True):
            self._room.clear()
            await self._room.wait()

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
        """Begin at OFFSET; where that lies behind what was read, the queue was made anew."""
        if offset < self.messages.reached:
            self.messages.drop()
            self.messages = ProcessQueue(queue, offset, self.messages.message_type)
        self.messages.pass_over(offset)
        self.begun = True

    def put(self, queue: Queue, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Take in the messages of RUN from index BEGIN; NEXT_OFFSET is behind them."""
        size = max(PORTION_MESSAGES, self._config.listener_batch_size)
        if portions := self.messages.put(run, begin, next_offset, size):
            self._take(self, portions)

    def skip(self, queue: Queue, next_offset: int) -> None:
        """The filter wants nothing of what is before NEXT_OFFSET and was not put in."""
        self.messages.pass_over(next_offset)

    def settle(self) -> None:
        """Let go of what is finished; read on if there is room; tell who waits."""
        self._counts.handled += self.messages.settle()
        if not self._room.is_set() and not self._is_full():
            self._room.set()
        if self.is_quiet:
            self._quiet.set()

    @property
    def is_quiet(self) -> bool:
        """Is nothing under way: no listener at work, no message on its way back?"""
        return not self.giving_back and not self.messages.at_work

    async def quiet(self) -> None:
        """Return once nothing is under way; what is not handed out is dropped before."""
        while not self.is_quiet:
            self._quiet.clear()
            await self._quiet.wait()


# ---------------------------------------------------------------- what a push consumer counts


@dataclass(slots=True)
class PushCounts:
    """Numbers that only grow. Not thread-safe: the client's event loop owns them."""

    #: Messages that a listener took, or that were handled when they came again.
    handled: int = 0
    #: Outcomes that were failures; a message that fails twice counts twice.
    failed: int = 0
    sent_back: int = 0
    dead: int = 0
    #: Failed messages of which nothing more was made: broadcasting, or at most once.
    dropped: int = 0
    #: Messages whose listener took longer than consume_timeout_ms.
    slow: int = 0
    #: How often a queue was not read on because of messages, bytes or span.
    paused_by_messages: int = 0
    paused_by_bytes: int = 0
    paused_by_span: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushMetrics:
    """A push consumer at one moment."""

    handled: int
    """Messages that the listener processed, and messages that were processed when redelivered."""
    failed: int
    """Failures of the listener. A message that fails twice counts twice."""
    sent_back: int
    """Messages returned for a retry."""
    dead: int
    """Messages moved to the dead-letter queue."""
    dropped: int
    """Failed messages that are not retried: broadcasting, or at most once."""
    slow: int
    """Messages whose listener took longer than `consume_timeout_ms`."""
    paused_by_messages: int
    """Pauses of fetching, because `queue_messages_max` was reached."""
    paused_by_bytes: int
    """Pauses of fetching, because `queue_max_bytes` was reached."""
    paused_by_span: int
    """Pauses of fetching, because `offset_span_max` was reached."""
    held: int
    """Messages that are fetched and not processed yet."""
    held_bytes: int
    """Bytes of these messages."""
    in_process: int
    """Messages that listeners are processing."""
    listener_ms_bounds: tuple[float, ...]
    """Upper limits of the buckets of the listener's time, in milliseconds."""
    listener_ms_counts: tuple[int, ...]
    """Messages per bucket; the last bucket has those above all limits."""
    listener_ms_sum: float
    """Sum of the listener's time in milliseconds."""
    lag: dict[Queue, int]
    """Messages that are stored and not processed yet, by queue."""
    counts: Counts = field(default_factory=Counts)
    """Counters of fetches, commits and rebalances."""

    def text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics for Prometheus, each with LABELS, for example {"client": "billing-1"}.

        The lag has a sample for each queue that is held.
        """
        lines = Exposition(CONSUMER_PREFIX, labels)
        lines.add("counter", COUNTERS, self.counts)
        lines.add("counter", _PUSH_COUNTERS, self)
        lines.add("gauge", _PUSH_GAUGES, self)
        lines.add_by_queue("lag_messages", "Messages stored and not finished.", self.lag)
        bounds = [bound / 1_000 for bound in self.listener_ms_bounds]
        what, total = "Time of the listener for a message.", self.listener_ms_sum / 1_000
        lines.add_histogram("listener_seconds", what, bounds, self.listener_ms_counts, total)
        return lines.text


#: Field, name, what it counts.
_PUSH_COUNTERS: Final = (
    ("handled", "handled_messages_total", "Messages that the listener has handled."),
    ("failed", "failures_total", "Outcomes of the listener that were failures."),
    ("sent_back", "sent_back_messages_total", "Failed messages that come again."),
    ("dead", "dead_messages_total", "Failed messages that lie in the dead letters."),
    ("dropped", "dropped_messages_total", "Failed messages of which nothing more was made."),
    ("slow", "slow_messages_total", "Messages whose listener took too long."),
    ("paused_by_messages", "paused_by_messages_total", "Reading held back: messages of a queue."),
    ("paused_by_bytes", "paused_by_bytes_total", "Reading held back: bytes of a queue."),
    ("paused_by_span", "paused_by_span_total", "Reading held back: span of queue offsets."),
)
_PUSH_GAUGES: Final = (
    ("held", "held_messages", "Messages fetched and not finished."),
    ("held_bytes", "held_bytes", "Bytes of the messages fetched and not finished."),
    ("in_process", "in_process_messages", "Messages that listeners are at."),
)
