"""Messages fetched ahead of the application: batches in the order of their arrival, limited by bytes.

Readers wait while the buffer is full. It still accepts a batch that makes it overflow, so it may exceed the limit by
one batch per queue. Messages that a filter skipped are a batch without messages, one for each gap. Not thread-safe: the
consumer's event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ...proto.clock import Clock
from ...proto.errors import PocketMQError
from ..message_batch import NO_MESSAGES, MessageBatch
from ..queue import Queue
from ..received_message import FetchedRun
from ..tasks import Alarm, Tasks
from .held_queue import Batch, ReadStretch


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
        """Take in the messages of RUN from index BEGIN; NEXT_OFFSET is after them."""
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
        """Take in the messages of RUN from index BEGIN; NEXT_OFFSET is after them."""
        if not self._stretch.ended:
            self._prefetch.put(self._stretch, run, begin, next_offset)

    def skip(self, queue: Queue, next_offset: int) -> None:
        """Hear that the filter wants nothing of what is before NEXT_OFFSET and was not put in."""
        if not self._stretch.ended:
            self._prefetch.skip(self._stretch, next_offset)

    def fail(self, error: PocketMQError) -> None:
        """Have the application meet ERROR."""
        self._prefetch.fail(error, self._stretch)
