"""What comes to the accumulator: rows of single messages, and the place where they go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ..message import Message
from ..queue import Queue
from .outcome import SendFuture, message_of


class Place(NamedTuple):
    """Where messages go. PINNED: to this very queue, wherever else there may be room."""

    queue: Queue
    pinned: bool


class MessageRow:
    """Single messages, one after the other, with their futures. `ends` begins with 0: where each ends, in bytes."""

    __slots__ = ("ends", "futures", "messages")

    def __init__(
        self, messages: Sequence[Message], ends: Sequence[int], futures: Sequence[SendFuture]
    ) -> None:
        self.messages = messages
        self.ends = ends
        self.futures = futures

    @classmethod
    def of(cls, futures: Sequence[SendFuture]) -> MessageRow:
        """Return the messages that FUTURES have."""
        messages = [message_of(future) for future in futures]
        sizes = [future.size_bytes for future in futures]
        return cls(messages, list(accumulate(sizes, initial=0)), futures)

    def __len__(self) -> int:
        return len(self.messages)

    def taken(self, indexes: Sequence[int]) -> MessageRow:
        """Return the messages with INDEXES."""
        ends, messages, futures = self.ends, self.messages, self.futures
        sizes = [ends[index + 1] - ends[index] for index in indexes]
        return MessageRow(
            [messages[index] for index in indexes],
            list(accumulate(sizes, initial=0)),
            [futures[index] for index in indexes],
        )

    def fail(self, begin: int, error: BaseException) -> int:
        """Tell the senders from BEGIN on that ERROR came; return how many bytes they took."""
        for future in self.futures[begin:]:
            future.refuse(error)
        return self.ends[-1] - self.ends[begin]
