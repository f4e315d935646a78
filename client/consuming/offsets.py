"""How far a consumer has come in each queue: handed out, finished, committed. Pure.

A message is *handed out* when the application gets it and *finished* when the application comes back for more (or
commits, or closes without an error). Only what is finished is committed, so that a crash in between delivers it again.
Offsets are those of the next message.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import length_hint
from typing import NamedTuple

from ..queue import Queue
from ..received_message import ReceivedMessage


class Position(NamedTuple):
    """The next message of a queue."""

    queue: Queue
    offset: int


class Batch(NamedTuple):
    """Messages of one queue, and the queue offset behind them."""

    queue: Queue
    messages: list[ReceivedMessage]
    next_offset: int


class Cursor:
    """Where the application stands in the batch that it goes through. Not thread-safe: the face owns it."""

    __slots__ = ("_batch", "first", "last", "rest")

    def __init__(self) -> None:
        self._batch: Batch | None = None
        #: What is not handed out yet.
        self.rest: Iterator[ReceivedMessage] = iter(())
        #: The first and the last message that are handed out and not finished.
        self.first: ReceivedMessage | None = None
        self.last: ReceivedMessage | None = None

    def open(self, batch: Batch) -> None:
        """Begin BATCH; the one before is finished."""
        self._batch = batch
        self.rest = iter(batch.messages)
        self.first = self.last = None

    def hand_out(self, max_messages: int | None) -> list[ReceivedMessage]:
        """Return the next messages, at most MAX_MESSAGES; those before are finished."""
        messages = list(islice(self.rest, max_messages))
        if messages:
            self.first, self.last = messages[0], messages[-1]
        return messages

    def behind(self) -> Position | None:
        """Return the position behind what is handed out; None: nothing is."""
        if self._batch is None or self.last is None:
            return None
        if not length_hint(self.rest):
            return Position(self._batch.queue, self._batch.next_offset)
        return Position(self._batch.queue, self.last.queue_offset + 1)

    def before(self) -> Position | None:
        """Return the position of what is handed out, from where it comes again if the application fails."""
        if self._batch is None or self.first is None:
            return None
        return Position(self._batch.queue, self.first.queue_offset)


class Positions:
    """What is finished, by queue. Not thread-safe: the consumer's event loop owns it."""

    def __init__(self) -> None:
        self._finished: dict[Queue, int] = {}

    def finish(self, position: Position | None) -> None:
        """Note that the application is done with what stands before POSITION."""
        if position is not None:
            self._finished[position.queue] = position.offset

    def finished(self) -> dict[Queue, int]:
        """Return up to where each queue is finished."""
        return dict(self._finished)
