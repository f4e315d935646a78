"""Prefetched messages: batches in the order of their arrival, limited by bytes.

Readers wait while the buffer is full. The limit is checked before a fetch, so the buffer may exceed it by one batch per
queue. A gap of messages that were filtered out is a batch without messages. Not thread-safe: the consumer's event loop
owns it.
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
from ..tasks import Alarm, TaskGroup
from .held_queue import Batch, ReadSpan


@dataclass(slots=True, eq=False)
class Rebalanced:
    """An event for the rebalance listener: queues that were assigned, are revoked, or are lost."""

    kind: str
    queues: list[Queue]
    #: Set when the listener has returned.
    handled: asyncio.Event = field(default_factory=asyncio.Event)


ASSIGNED: Final = "assigned"
REVOKED: Final = "revoked"
LOST: Final = "lost"


@dataclass(slots=True)
class _Entry:
    stretch: ReadSpan
    messages: MessageBatch
    next_offset: int
    size_bytes: int


class Prefetch:
    """Buffers batches of up to LIMIT_BYTES in total, and events and errors for the application."""

    def __init__(self, limit_bytes: int, clock: Clock, tasks: TaskGroup) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._held_bytes = 0
        self._entries: deque[_Entry] = deque()
        self._latest: dict[Queue, _Entry] = {}
        self._errors: deque[tuple[PocketMQError, ReadSpan | None]] = deque()
        self._events: deque[Rebalanced] = deque()
        self._ready = Alarm(clock, tasks)
        self._has_space = asyncio.Event()
        self._has_space.set()
        self._ended = False

    async def wait_for_space(self) -> None:
        """Return when another batch may be put in."""
        await self._has_space.wait()

    def put(self, stretch: ReadSpan, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Add the messages of RUN from index BEGIN on. NEXT_OFFSET is the queue offset after them."""
        self._append(_Entry(stretch, MessageBatch(run, begin), next_offset, len(run.data)))

    def skip(self, stretch: ReadSpan, next_offset: int) -> None:
        """Note that the messages of STRETCH that were not put in, before NEXT_OFFSET, are filtered out."""
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
            self._has_space.set()
        else:
            self._has_space.clear()

    def skipped(self, stretch: ReadSpan) -> int | None:
        """Return the end of the gap that is next in STRETCH; None: a message is next, or nothing is buffered."""
        first = next((entry for entry in self._entries if entry.stretch is stretch), None)
        return None if first is None or first.messages else first.next_offset

    def drop(self, stretch: ReadSpan) -> None:
        """Remove everything of STRETCH."""
        self._errors = deque(one for one in self._errors if one[1] is not stretch)
        kept = deque(entry for entry in self._entries if entry.stretch is not stretch)
        if len(kept) < len(self._entries):
            self._entries = kept
            self._latest.pop(stretch.queue, None)
            self._held_bytes = 0
            self._count(sum(entry.size_bytes for entry in kept))

    def put_back(self, batch: Batch) -> None:
        """Put BATCH, which was taken last, in front again."""
        self._entries.appendleft(_Entry(*batch, 0))
        self._ready.ring()

    def fail(self, error: PocketMQError, stretch: ReadSpan | None = None) -> None:
        """Raise ERROR to the application once, after the buffered batches.

        It is not raised if STRETCH, where it occurred, ends before. Further errors are dropped meanwhile.
        """
        if not self._errors:
            self._errors.append((error, stretch))
        self._ready.ring()

    def announce(self, kind: str, queue: Queue) -> Rebalanced:
        """Add an event of KIND about QUEUE for the listener, ahead of all messages; return the event."""
        if not self._events or self._events[-1].kind != kind:
            self._events.append(Rebalanced(kind, []))
        self._events[-1].queues.append(queue)
        self._ready.ring()
        return self._events[-1]

    def end(self) -> None:
        """Return nothing more from `take`."""
        self._ended = True
        self._ready.ring()

    async def take(self, timeout_ms: int | None) -> Batch | Rebalanced | None:
        """Take the next event, or else the oldest batch. Raises an error when there is neither.

        Return None after TIMEOUT_MS (None: wait without a limit), or after `end`.
        """
        deadline_ms = None if timeout_ms is None else self._clock.now_ms() + timeout_ms
        while self._ended or not (self._events or self._entries or self._errors):
            if self._ended:
                return None
            if deadline_ms is None:
                await self._ready.wait()
            elif self._clock.now_ms() < deadline_ms:
                await self._ready.wait_until(deadline_ms)
            else:
                return None
        if self._events:
            return self._events.popleft()
        if not self._entries:
            raise self._errors.popleft()[0]
        entry = self._entries.popleft()
        queue = entry.stretch.queue
        if self._latest.get(queue) is entry:
            del self._latest[queue]
        self._count(-entry.size_bytes)
        return Batch(entry.stretch, entry.messages, entry.next_offset)


class PrefetchSink:
    """Puts what the reader of STRETCH fetches into a Prefetch. STARTED is called with the offset of the first fetch."""

    def __init__(
        self, prefetch: Prefetch, stretch: ReadSpan, started: Callable[[ReadSpan, int], None]
    ) -> None:
        self._prefetch = prefetch
        self._stretch = stretch
        self._started = started
        self._has_started = False

    async def wait_for_space(self) -> None:
        """Return when there is space for another batch."""
        await self._prefetch.wait_for_space()

    def started(self, queue: Queue, offset: int) -> None:
        """Note the OFFSET at which reading starts, or continues after a jump."""
        if self._has_started:
            self._prefetch.skip(self._stretch, offset)
        else:
            self._has_started = True
            self._started(self._stretch, offset)

    def put(self, queue: Queue, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Add the messages of RUN from index BEGIN on. NEXT_OFFSET is the queue offset after them."""
        if not self._stretch.ended:
            self._prefetch.put(self._stretch, run, begin, next_offset)

    def skip(self, queue: Queue, next_offset: int) -> None:
        """Note that the messages that were not put in, before NEXT_OFFSET, are filtered out."""
        if not self._stretch.ended:
            self._prefetch.skip(self._stretch, next_offset)

    def fail(self, error: PocketMQError) -> None:
        """Raise ERROR to the application."""
        self._prefetch.fail(error, self._stretch)
