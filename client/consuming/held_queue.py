"""A queue that is ours to read: what sharing says of it to reading, and how far its consumer has come in it. Pure.

Sharing says: this queue is yours from now on, give that one back.

    source (who gets which queue)          user (who reads)
    sharing.py    a group's share    ───►  begin(held)         read on at the committed offset
    unshared_queues.py               ◄───  lost(held)          the broker says that it is not ours any more
                                     ───►  end(queue, lost)    stop, finish or drop, commit; then it is let go

For each queue `begin` and `end` alternate; a queue comes again only after its `end` has returned.

A message is *handed out* when the application gets it and *finished* when the application comes back for more (or
commits, or closes without an error). Only what is finished is committed, so that a crash in between delivers it again.
Offsets are those of the next message.

A *stretch* is the reading of one queue from where it began to where it ends: because the queue goes to another member,
or because the application goes elsewhere in it. What is handed out of a stretch that has ended can still be finished;
of one that is void nothing counts any more.
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
    """A queue that is ours to read and to commit."""

    queue: Queue
    #: By which the broker knows it; 0: it is not shared, nobody else is kept from it.
    token: int
    #: The group's offset when it was given; −1: never committed.
    committed: int
    #: The group starts with us: the settings "earliest" and "latest" count more than what is committed.
    from_start: bool = False


class QueueUser(Protocol):
    """Reads the queues that a source gives it. All calls come on the event loop."""

    def begin(self, held: HeldQueue) -> None:
        """Read the queue from now on."""
        ...

    async def end(self, queue: Queue, *, lost: bool) -> None:
        """Stop reading QUEUE, finish or drop what is held of it, and commit; it is let go when this returns.

        LOST: somebody else may have it already: nothing can be committed. Cancelled after rebalance_timeout_ms; then
        the queue goes all the same, and what was not committed comes again there.
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
        """Return by what right QUEUE is read; None: it is not ours."""
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
    metadata: str = ""


class ReadStretch:
    """Reading HELD in one go. The loop writes it, faces look."""

    __slots__ = ("ended", "held", "void")

    def __init__(self, held: HeldQueue) -> None:
        self.held = held
        #: Nothing more of it is handed out.
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
        """End it, and have what is handed out of it not count."""
        self.ended = self.void = True


class ReadPosition(NamedTuple):
    """The next message of a stretch."""

    stretch: ReadStretch
    offset: int


class Batch(NamedTuple):
    """Messages of one queue, and the queue offset behind them."""

    stretch: ReadStretch
    messages: MessageBatch
    next_offset: int

    def offset_at(self, index: int) -> int:
        """Return the queue offset of message INDEX, or what is behind the last one."""
        if index >= len(self.messages):
            return self.next_offset
        return self.messages[index].queue_offset

    def offset_behind(self, count: int) -> int:
        """Return the queue offset behind the first COUNT messages, of which there are as many at least."""
        if count >= len(self.messages):
            return self.next_offset
        return self.messages[count - 1].queue_offset + 1


class Cursor:
    """Where the application stands in the batch that it goes through. Not thread-safe: the face owns it."""

    __slots__ = ("batch", "begin", "end")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        #: Of the messages of the batch: the first that is handed out and not finished, and the first that is not
        #: handed out.
        self.begin = 0
        self.end = 0

    def open(self, batch: Batch) -> None:
        """Begin BATCH; the one before is finished."""
        self.begin = self.end = 0
        # Last: whoever looks from another thread must not find an old place in a new batch.
        self.batch = batch

    def hand_out(self, max_messages: int | None) -> MessageBatch:
        """Return the next messages, at most MAX_MESSAGES; those before are finished."""
        rest = self.rest(max_messages)
        if rest:
            self.begin = self.end
            self.end += len(rest)
        return rest

    def rest(self, max_messages: int | None = None) -> MessageBatch:
        """Return what is not handed out yet, at most MAX_MESSAGES; nothing of a stretch that has ended."""
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
        """Have all that is handed out be finished; return the position behind it."""
        self.begin = self.end
        return self.behind()

    def behind(self) -> ReadPosition | None:
        """Return the position behind what is handed out; None: nothing is."""
        if self.batch is None or not self.end:
            return None
        return ReadPosition(self.batch.stretch, self.batch.offset_behind(self.end))

    def before(self) -> ReadPosition | None:
        """Return the position of what is handed out and not finished, from where it comes again after a failure."""
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
        """Note that the application is done with what stands before POSITION."""
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
        """Have nothing behind OFFSET of QUEUE be finished, nor if it comes back."""
        if queue in self._finished:
            self._finished[queue] = offset
        if queue in self._left:
            self._left[queue] = self._left[queue][0], offset

    def resume(self, held: HeldQueue) -> int | None:
        """Return where to go on with a queue that has come back; None: where it was committed.

        If nobody has committed since we had it last, what we had finished then is finished.
        """
        kept, finished = self._left.pop(held.queue, (frozenset[int](), 0))
        if held.committed not in kept or finished < held.committed:
            return None
        self._finished[held.queue] = finished
        return finished
