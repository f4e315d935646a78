"""A queue that the consumer holds: how sharing passes it to reading, and how far its consumer has read it. Pure.

Sharing calls `begin` for a queue that the consumer may read, and `end` for one that it must release.

    source (who gets which queue)          user (who reads)
    sharing.py           a group's share  ───►  begin(held)         read on at the committed offset
    unshared_queues.py   all, or chosen   ◄───  lost(held)          the broker says that the consumer lost it
                                          ───►  end(queue, lost)    stop, finish or drop, commit; then it is released

For each queue `begin` and `end` alternate; `begin` is called again only after `end` has returned.

A message is *delivered* when the application gets it and *finished* when the application asks for more (or
commits, or closes without an error). Only finished messages are committed, so that a crash in between delivers them
again. Offsets are those of the next message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...proto.errors import PocketMQError
from ..message_batch import NO_MESSAGES, MessageBatch
from ..queue import Queue
from ..received_message import ReceivedMessage


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
    """The reading of HELD from where it began to where it ends: the queue moves, or the application seeks.

    Messages delivered from a stretch that has ended can still be finished; those of a void stretch do not count any
    more. The event loop writes it, the consumers' API reads it.
    """

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
        """Return the queue offset of message INDEX, or what is after the last one."""
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
        """Deliver what is left, each message when it is asked for, which finishes the one before."""
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
