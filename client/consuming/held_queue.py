"""A queue that the consumer holds: how sharing passes it to reading, and how far its consumer has read it. Pure.

Sharing calls `begin` for a queue that the consumer may read, and `end` for one that it must release.

    source (who gets which queue)          user (who reads)
    sharing.py    a group's share    ───►  begin(held)         read on at the committed offset
    sharing.py, unshared queues      ◄───  lost(held)          the broker says that the consumer lost it
                                     ───►  end(queue, lost)    stop, finish or drop, commit; then it is let go

For each queue `begin` and `end` alternate; `begin` is called again only after `end` has returned.

A message is *delivered* when the application gets it and *finished* when the application asks for more (or
commits, or closes without an error). Only what is finished is committed, so that a crash in between delivers it again.
Offsets are those of the next message.

A *stretch* is the reading of one queue from where it began to where it ends: because the queue goes to another member,
or because the application seeks. Messages delivered from a stretch that has ended can still be finished; those of a
void stretch do not count any more.

The buffer contains messages fetched ahead of the application: batches in the order of their arrival, limited by bytes.
Readers wait while it is full. It still accepts a batch that makes it overflow, so it may exceed the limit by one batch
per queue. Messages that a filter skipped are a batch without messages, one for each gap. Not thread-safe: the
consumer's event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ...proto.clock import Clock
from ...proto.errors import PocketMQError
from ..message_batch import NO_MESSAGES, MessageBatch
from ..queue import Queue
from ..received_message import FetchedRun, ReceivedMessage
from ..tasks import Alarm, Tasks


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """A queue that the consumer may read and commit."""

    queue: Queue
    #: The lease's token at the broker; 0: the queue is not shared, other consumers may read it, too.
    token: int
    #: The group's offset when it was given; −1: never committed.
    committed: int
    #: This consumer starts the group: the settings "earliest" and "latest" come before what is committed.
    from_start: bool = False


class QueueUser(Protocol):
    """Reads the queues that a source gives it. All calls come on the event loop."""

    def begin(self, held: HeldQueue) -> None:
        """Read the queue from now on."""
        ...

    async def end(self, queue: Queue, *, lost: bool) -> None:
        """Stop reading QUEUE, finish or drop what is held of it, and commit; it is let go when this returns.

        LOST: another member may hold it already: nothing can be committed. Cancelled after rebalance_timeout_ms; then
        the queue is released all the same, and messages that were not committed are redelivered to its next holder.
        """
        ...

    def fail(self, error: PocketMQError) -> None:
        """Have the application meet ERROR: it was refused, and what is held ends."""
        ...


class QueueSource(Protocol):
    """Gives queues to a user."""

    def start(self) -> None:
        """Begin."""
        ...

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return the lease by which QUEUE is read; None: the consumer does not hold it."""
        ...

    def lost(self, held: HeldQueue) -> None:
        """Hear that the broker does not know HELD any more. Of an old right nothing happens."""
        ...

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        """Hear that the broker has answered a fetch of HELD that was sent at SENT_MS: its lease lasts from there."""
        ...

    def doubt(self, held: HeldQueue) -> None:
        """Hear that the connection broke by which HELD was read: its broker may not know of it any more."""
        ...

    def look_again(self) -> None:
        """Look for changes of the queues soon: an error suggests one."""
        ...

    async def close(self) -> None:
        """Have every queue ended, and let go of all."""
        ...


class OffsetAndMetadata(NamedTuple):
    """What is committed of a queue: the offset of the next message, and the text that goes with it; "": none does."""

    offset: int
    """Offset of the next message to read."""
    metadata: str = ""
    """Text that is committed with the offset; empty: none."""


class ReadStretch:
    """One stretch of reading HELD. The event loop writes it, the consumers' API reads it."""

    __slots__ = ("ended", "held", "void")

    def __init__(self, held: HeldQueue) -> None:
        self.held = held
        #: No more of it is delivered.
        self.ended = False
        #: Nothing of it is finished any more.
        self.void = False

    @property
    def queue(self) -> Queue:
        return self.held.queue

    def end(self) -> None:
        """Hand nothing more of it out."""
        self.ended = True

    def annul(self) -> None:
        """End it; messages delivered from it do not count any more."""
        self.ended = self.void = True


class ReadPosition(NamedTuple):
    """The next message of a stretch."""

    stretch: ReadStretch
    offset: int


class Batch(NamedTuple):
    """Messages of one queue, and the queue offset after them."""

    stretch: ReadStretch
    messages: MessageBatch
    next_offset: int

    def offset_at(self, index: int) -> int:
        """Return the queue offset of message INDEX, or what is behind the last one."""
        if index >= len(self.messages):
            return self.next_offset
        return self.messages[index].queue_offset

    def offset_behind(self, count: int) -> int:
        """Return the queue offset after the first COUNT messages; there are at least as many."""
        if count >= len(self.messages):
            return self.next_offset
        return self.messages[count - 1].queue_offset + 1


class Cursor:
    """The application's position in its current batch. Not thread-safe: the consumer's API owns it."""

    __slots__ = ("batch", "begin", "end")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        #: Indexes in the batch: of the first message that is delivered and not finished, and of the first that is not
        #: delivered.
        self.begin = 0
        self.end = 0

    def open(self, batch: Batch) -> None:
        """Begin BATCH; the one before is finished."""
        self.begin = self.end = 0
        # Last: another thread that reads this must not find an old position in a new batch.
        self.batch = batch

    def hand_out(self, max_messages: int | None) -> MessageBatch:
        """Return the next messages, at most MAX_MESSAGES; those before are finished."""
        rest = self.rest(max_messages)
        if rest:
            self.begin = self.end
            self.end += len(rest)
        return rest

    def rest(self, max_messages: int | None = None) -> MessageBatch:
        """Return what is not delivered yet, up to MAX_MESSAGES; nothing of a stretch that has ended."""
        if self.batch is None or self.batch.stretch.ended:
            return NO_MESSAGES
        messages = self.batch.messages
        if max_messages is None:
            return messages[self.end :]
        return messages[self.end : self.end + max_messages]

    def one_by_one(self) -> Iterator[ReceivedMessage]:
        """Hand out what is left, each message when it is asked for, which finishes the one before."""
        if self.batch is None:
            return
        stretch = self.batch.stretch
        for message in self.rest():
            if stretch.ended:
                return
            self.begin = self.end
            self.end += 1
            yield message

    def finish(self) -> ReadPosition | None:
        """Finish all that is delivered; return the position after it."""
        self.begin = self.end
        return self.behind()

    def behind(self) -> ReadPosition | None:
        """Return the position after what is delivered; None: nothing is."""
        if self.batch is None or not self.end:
            return None
        return ReadPosition(self.batch.stretch, self.batch.offset_behind(self.end))

    def before(self) -> ReadPosition | None:
        """Return the position of what is delivered and not finished: a failure redelivers from there."""
        if self.batch is None or not self.end:
            return None
        return ReadPosition(self.batch.stretch, self.batch.offset_at(self.begin))


class Positions:
    """What is finished, by queue. Not thread-safe: the consumer's event loop owns it."""

    def __init__(self) -> None:
        self._finished: dict[Queue, int] = {}
        #: Of queues that went: what may have been kept then, and up to where they were finished.
        self._left: dict[Queue, tuple[frozenset[int], int]] = {}

    def finish(self, position: ReadPosition | None) -> None:
        """Note that the application has finished what is before POSITION."""
        if position is not None and not position.stretch.void:
            self._finished[position.stretch.queue] = position.offset

    def finished(self) -> dict[Queue, int]:
        """Return up to where each queue is finished."""
        return dict(self._finished)

    def leave(self, queue: Queue, kept: frozenset[int], begun: int | None) -> None:
        """Forget QUEUE but for what was finished of it, if nothing was: where it was BEGUN. What is committed of it is
        one of KEPT."""
        finished = self._finished.pop(queue, begun)
        if finished is not None:
            self._left[queue] = kept, finished

    def go_back(self, queue: Queue, offset: int) -> None:
        """Forget that messages of QUEUE from OFFSET on were finished, also if the queue returns."""
        if queue in self._finished:
            self._finished[queue] = offset
        if queue in self._left:
            self._left[queue] = self._left[queue][0], offset

    def resume(self, held: HeldQueue) -> int | None:
        """Return where to continue in a queue that has returned; None: at its committed offset.

        If no other member has committed since the consumer last held it, what it had finished then is still finished.
        """
        kept, finished = self._left.pop(held.queue, (frozenset[int](), 0))
        if held.committed not in kept or finished < held.committed:
            return None
        self._finished[held.queue] = finished
        return finished


# ---------------------------------------------------------------- messages fetched ahead of the application


@dataclass(slots=True, eq=False)
class Rebalanced:
    """What a rebalance listener is to hear: queues that came, that go, or that are lost already."""

    kind: str
    queues: list[Queue]
    told: asyncio.Event = field(default_factory=asyncio.Event)


ASSIGNED: Final = "assigned"
REVOKED: Final = "revoked"
LOST: Final = "lost"


@dataclass(slots=True)
class _Entry:
    stretch: ReadStretch
    messages: MessageBatch
    next_offset: int
    size_bytes: int


class Prefetch:
    """Holds runs up to LIMIT_BYTES."""

    def __init__(self, limit_bytes: int, clock: Clock, tasks: Tasks) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._held_bytes = 0
        self._entries: deque[_Entry] = deque()
        self._latest: dict[Queue, _Entry] = {}
        self._errors: deque[tuple[PocketMQError, ReadStretch | None]] = deque()
        self._news: deque[Rebalanced] = deque()
        self._ready = Alarm(clock, tasks)
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False

    async def room(self) -> None:
        """Return once another run may be put in."""
        await self._room.wait()

    def put(self, stretch: ReadStretch, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Take in the messages of RUN from index BEGIN; NEXT_OFFSET is behind them."""
        self._append(_Entry(stretch, MessageBatch(run, begin), next_offset, len(run.data)))

    def skip(self, stretch: ReadStretch, next_offset: int) -> None:
        """Note that nothing more is wanted before NEXT_OFFSET."""
        latest = self._latest.get(stretch.queue)
        if latest is not None and latest.stretch is stretch:
            latest.next_offset = next_offset
        else:
            self._append(_Entry(stretch, NO_MESSAGES, next_offset, 0))

    def _append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._latest[entry.stretch.queue] = entry
        self._count(entry.size_bytes)
        self._ready.ring()

    def _count(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        if self._held_bytes < self._limit_bytes:
            self._room.set()
        else:
            self._room.clear()

    def skipped(self, stretch: ReadStretch) -> int | None:
        """Return up to where a filter skipped what is next of STRETCH; None: a message is next, or nothing is here."""
        first = next((entry for entry in self._entries if entry.stretch is stretch), None)
        return None if first is None or first.messages else first.next_offset

    def drop(self, stretch: ReadStretch) -> None:
        """Take out what is here of STRETCH."""
        self._errors = deque(one for one in self._errors if one[1] is not stretch)
        kept = deque(entry for entry in self._entries if entry.stretch is not stretch)
        if len(kept) < len(self._entries):
            self._entries = kept
            self._latest.pop(stretch.queue, None)
            self._held_bytes = 0
            self._count(sum(entry.size_bytes for entry in kept))

    def put_back(self, batch: Batch) -> None:
        """Have BATCH, which was taken last, be the next one."""
        self._entries.appendleft(_Entry(*batch, 0))
        self._ready.ring()

    def fail(self, error: PocketMQError, stretch: ReadStretch | None = None) -> None:
        """Have the application meet ERROR, once, after the runs that are here, unless STRETCH, which met it, ends."""
        if not self._errors:
            self._errors.append((error, stretch))
        self._ready.ring()

    def tell(self, kind: str, queue: Queue) -> Rebalanced:
        """Have a listener hear, before anything else comes, that QUEUE came or goes; return what it will hear."""
        if not self._news or self._news[-1].kind != kind:
            self._news.append(Rebalanced(kind, []))
        self._news[-1].queues.append(queue)
        self._ready.ring()
        return self._news[-1]

    def end(self) -> None:
        """Give nothing more to who takes."""
        self._ended = True
        self._ready.ring()

    async def take(self, timeout_ms: int | None) -> Batch | Rebalanced | None:
        """Return the oldest run's messages, or None if none comes within TIMEOUT_MS (None: wait on), or at the end.

        News come first, errors last: they are raised.
        """
        deadline_ms = None if timeout_ms is None else self._clock.now_ms() + timeout_ms
        while self._ended or not (self._news or self._entries or self._errors):
            if self._ended:
                return None
            if deadline_ms is None:
                await self._ready.wait()
            elif self._clock.now_ms() < deadline_ms:
                await self._ready.wait_until(deadline_ms)
            else:
                return None
        if self._news:
            return self._news.popleft()
        if not self._entries:
            raise self._errors.popleft()[0]
        entry = self._entries.popleft()
        queue = entry.stretch.queue
        if self._latest.get(queue) is entry:
            del self._latest[queue]
        self._count(-entry.size_bytes)
        return Batch(entry.stretch, entry.messages, entry.next_offset)


class PrefetchSink:
    """What the reader of STRETCH puts its runs into; STARTED hears where it began."""

    def __init__(
        self, prefetch: Prefetch, stretch: ReadStretch, started: Callable[[ReadStretch, int], None]
    ) -> None:
        self._prefetch = prefetch
        self._stretch = stretch
        self._started = started
        self._has_started = False

    async def room(self) -> None:
        """Return once there is space for another batch."""
        await self._prefetch.room()

    def started(self, queue: Queue, offset: int) -> None:
        """Take the offset at which reading begins; called again when it continues elsewhere."""
        if self._has_started:
            self._prefetch.skip(self._stretch, offset)
        else:
            self._has_started = True
            self._started(self._stretch, offset)

    def put(self, queue: Queue, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Take in the messages of RUN from index BEGIN; NEXT_OFFSET is behind them."""
        if not self._stretch.ended:
            self._prefetch.put(self._stretch, run, begin, next_offset)

    def skip(self, queue: Queue, next_offset: int) -> None:
        """Hear that the filter wants nothing of what is before NEXT_OFFSET and was not put in."""
        if not self._stretch.ended:
            self._prefetch.skip(self._stretch, next_offset)

    def fail(self, error: PocketMQError) -> None:
        """Have the application meet ERROR."""
        self._prefetch.fail(error, self._stretch)
