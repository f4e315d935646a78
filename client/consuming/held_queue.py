"""A queue that the consumer holds: how a source passes it to its user, and how far the consumer has read it. No I/O.

The source calls `begin` for a queue that the consumer may read, and `end` for one that it must release.

    source (assigns queues)                user (reads queues)
    sharing.py           the assignment   ───►  begin(held)         read from the committed offset on
    unshared_queues.py   all, or chosen   ◄───  lost(held)          the broker replied that the consumer lost it
                                          ───►  end(queue, lost)    stop, finish or drop, commit; then it is released

For each queue `begin` and `end` alternate; `begin` is called again only after `end` has returned.

A message is *delivered* when the application gets it. It is *finished* when the application asks for more, commits, or
closes without an error. Only finished messages are committed, so that a crash before that redelivers them. An offset is
always that of the next message.
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
    #: The token of its lease at the broker; 0: the queue is not shared, and other consumers may read it too.
    token: int
    #: The committed offset of the group when the queue was assigned; −1: never committed.
    committed: int
    #: Whether start="earliest" and "latest" take precedence over the committed offset: this consumer is the first
    #: member of its group, or the queue is not shared.
    from_start: bool = False


class QueueUser(Protocol):
    """Reads the queues that a source assigns to it. All calls are made on the event loop."""

    def begin(self, held: HeldQueue) -> None:
        """Start to read the queue."""
        ...

    async def end(self, queue: Queue, *, lost: bool) -> None:
        """Stop reading QUEUE, finish or drop its messages, and commit. It is released when this returns.

        LOST: another member may hold the queue already, so nothing can be committed. The call is cancelled after
        rebalance_timeout_ms. Then the queue is released nevertheless, and the next owner gets the messages that were
        not committed.
        """
        ...

    def fail(self, error: PocketMQError) -> None:
        """Raise ERROR to the application: the group refused this consumer."""
        ...


class QueueSource(Protocol):
    """Assigns queues to a user."""

    def start(self) -> None:
        """Start to assign queues."""
        ...

    def held(self, queue: Queue) -> HeldQueue | None:
        """Return QUEUE with its lease; None: the consumer does not hold it."""
        ...

    def lost(self, held: HeldQueue) -> None:
        """Note that the broker does not know HELD any more. Ignored if the consumer has a newer lease."""
        ...

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        """Note that the broker has answered a fetch of HELD. Its lease counts from SENT_MS, when the fetch was sent."""
        ...

    def doubt(self, held: HeldQueue) -> None:
        """Note that the connection to the broker of HELD broke: the broker may not know the lease any more."""
        ...

    def look_again(self) -> None:
        """Look for new and removed queues soon, because an error suggests a change."""
        ...

    async def close(self) -> None:
        """Call `end` for each queue, and release all."""
        ...


class OffsetAndMetadata(NamedTuple):
    """The committed offset of a queue, with its metadata."""

    offset: int
    """Offset of the next message to read."""
    metadata: str = ""
    """Text that was committed with the offset; empty: none."""


class ReadSpan:
    """One continuous reading of a held queue. It ends when the queue is revoked or lost, or when the application seeks.

    Messages that were delivered from an ended stretch can still be finished. After `annul` they cannot. The event loop
    writes it; the API classes read it, perhaps in another thread.
    """

    __slots__ = ("ended", "held", "void")

    def __init__(self, held: HeldQueue) -> None:
        self.held = held
        #: Whether no more messages of it are delivered.
        self.ended = False
        #: Whether its messages cannot be finished any more.
        self.void = False

    @property
    def queue(self) -> Queue:
        return self.held.queue

    def end(self) -> None:
        """Deliver no more of it."""
        self.ended = True

    def annul(self) -> None:
        """End it, so that messages delivered from it cannot be finished any more."""
        self.ended = self.void = True


class ReadPosition(NamedTuple):
    """The offset of the next message of a stretch."""

    stretch: ReadSpan
    offset: int


class Batch(NamedTuple):
    """Messages of one queue, and the queue offset after the last of them."""

    stretch: ReadSpan
    messages: MessageBatch
    next_offset: int

    def offset_at(self, index: int) -> int:
        """Return the queue offset of message INDEX, or the one after the last message."""
        if index >= len(self.messages):
            return self.next_offset
        return self.messages[index].queue_offset

    def offset_after(self, count: int) -> int:
        """Return the queue offset after the first COUNT messages, which the batch must have."""
        if count >= len(self.messages):
            return self.next_offset
        return self.messages[count - 1].queue_offset + 1


class Cursor:
    """The application's position in its current batch. Not thread-safe: the consumer's API owns it."""

    __slots__ = ("batch", "begin", "end")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        #: Index in the batch of the first message that is delivered and not finished. `end`: of the first message that
        #: is not delivered.
        self.begin = 0
        self.end = 0

    def open(self, batch: Batch) -> None:
        """Start BATCH; the batch before it is finished."""
        self.begin = self.end = 0
        # This is the last step, so that no other thread finds an old position in the new batch.
        self.batch = batch

    def deliver(self, max_messages: int | None) -> MessageBatch:
        """Return the next messages, up to MAX_MESSAGES; those before them are finished."""
        rest = self.rest(max_messages)
        if rest:
            self.begin = self.end
            self.end += len(rest)
        return rest

    def rest(self, max_messages: int | None = None) -> MessageBatch:
        """Return the messages that are not delivered yet, up to MAX_MESSAGES. Empty if the stretch has ended."""
        if self.batch is None or self.batch.stretch.ended:
            return NO_MESSAGES
        messages = self.batch.messages
        if max_messages is None:
            return messages[self.end :]
        return messages[self.end : self.end + max_messages]

    def one_by_one(self) -> Iterator[ReceivedMessage]:
        """Deliver the rest one message at a time. Asking for a message finishes the one before it."""
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
        """Finish all messages that are delivered; return the position after them."""
        self.begin = self.end
        return self.after_delivered()

    def after_delivered(self) -> ReadPosition | None:
        """Return the position after the delivered messages; None: there are none."""
        if self.batch is None or not self.end:
            return None
        return ReadPosition(self.batch.stretch, self.batch.offset_after(self.end))

    def before_unfinished(self) -> ReadPosition | None:
        """Return the position of the first message that is delivered and not finished; None: nothing is delivered.

        After a failure, messages are redelivered from there.
        """
        if self.batch is None or not self.end:
            return None
        return ReadPosition(self.batch.stretch, self.batch.offset_at(self.begin))


class Positions:
    """Up to where each queue is finished. Not thread-safe: the consumer's event loop owns it."""

    def __init__(self) -> None:
        self._finished: dict[Queue, int] = {}
        #: Queues that the consumer held before: the offsets that may be committed, and up to where they were finished.
        self._left: dict[Queue, tuple[frozenset[int], int]] = {}

    def finish(self, position: ReadPosition | None) -> None:
        """Note that the application has finished the messages before POSITION."""
        if position is not None and not position.stretch.void:
            self._finished[position.stretch.queue] = position.offset

    def finished(self) -> dict[Queue, int]:
        """Return up to where each queue is finished."""
        return dict(self._finished)

    def leave(self, queue: Queue, kept: frozenset[int], started: int | None) -> None:
        """Note that the consumer does not hold QUEUE any more, in case it is assigned again.

        KEPT: the offsets that may be committed for it. STARTED: where reading started, used if nothing is finished.
        """
        finished = self._finished.pop(queue, started)
        if finished is not None:
            self._left[queue] = kept, finished

    def go_back(self, queue: Queue, offset: int) -> None:
        """Forget that messages of QUEUE from OFFSET on were finished, also if the queue is assigned again."""
        if queue in self._finished:
            self._finished[queue] = offset
        if queue in self._left:
            self._left[queue] = self._left[queue][0], offset

    def resume(self, held: HeldQueue) -> int | None:
        """Return where to continue in a queue that is assigned again; None: at its committed offset.

        If no other member has committed since this consumer held it, messages that were finished then still are.
        """
        kept, finished = self._left.pop(held.queue, (frozenset[int](), 0))
        if held.committed not in kept or finished < held.committed:
            return None
        self._finished[held.queue] = finished
        return finished
