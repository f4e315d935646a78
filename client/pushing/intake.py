"""One queue of a push consumer: what is read of it comes in here, and is held until it is finished.

reader ──► room()   waits while the queue holds too much
       ──► put()    cuts a run into portions, and hands them on to the workers
workers ─► settle() lets go of what is finished, makes room, tells who waits for the end
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...proto.errors import PocketMQError
from ..consuming.held_queue import HeldQueue
from ..consuming.queue_reader import QueueReader
from ..queue import Queue
from ..received_message import FetchedRun, ReceivedMessage
from .config import PushConfig
from .metrics import PushCounts
from .process_queue import PORTION_MESSAGES, Portion, ProcessQueue

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

    # ------------------------------------------------------------ as a sink

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
        elif messages.size_bytes > config.queue_bytes_max:
            counts.paused_by_bytes += count
        elif not config.ordered and messages.span > config.queue_span_max:
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

    # ------------------------------------------------------------ towards the end

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
