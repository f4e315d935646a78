"""The parts of a batch: the messages of one call, with the result that the caller waits for.

`JointPart` has one result for all its messages (`send` of coroutines, and `send_many`). `SinglesPart` has one future
per message (`send` of threads). All parts of a batch get the receipts of the batch, or its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from ..message import Message
from .bodies import Bodies, records_size
from .receipt import (
    BatchReceipts,
    CombinedResult,
    Receipts,
    SendFuture,
    SendOutcome,
    acknowledge_all,
    message_of,
)


class JointPart:
    """Messages of one sender and topic that are sent in one batch: all for the same queue, or all for any queue."""

    __slots__ = ("_outcome", "_single", "messages", "size_bytes")
    senders = 1

    def __init__(
        self,
        messages: Sequence[Message],
        size_bytes: int,
        outcome: SendOutcome,
        *,
        single: bool = False,
    ) -> None:
        """`outcome` gets the Receipts of MESSAGES. SIZE_BYTES is the size of all.

        SINGLE: there is one message, and `outcome` gets its Receipt instead.
        """
        self.messages = messages
        self.size_bytes = size_bytes
        self._outcome = outcome
        self._single = single

    def acknowledge(self, receipts: BatchReceipts, first: int) -> None:
        """Give the sender its receipts: those of RECEIPTS from index FIRST on."""
        if self._outcome.done():
            return
        if self._single:
            self._outcome.set_result(receipts.receipt(first))
        else:
            self._outcome.set_result(Receipts([(receipts, first, len(self.messages))]))

    def fail(self, error: BaseException) -> None:
        """Raise ERROR to the sender."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def cut(self, at: int) -> tuple[JointPart, JointPart]:
        """Return two parts: the messages before index AT, and the others."""
        first, second = self.shares([range(at), range(at, len(self.messages))])
        return first, second

    def shares(self, several: Sequence[Sequence[int]]) -> list[JointPart]:
        """Return one part for each list of indexes in SEVERAL. Each message has to be in exactly one list."""
        assert not self._single
        messages, whole = self.messages, CombinedResult(self._outcome)
        shares: list[JointPart] = []
        for indexes in several:
            selected = (
                messages.select(indexes)
                if isinstance(messages, Bodies)
                else [messages[index] for index in indexes]
            )
            shares.append(JointPart(selected, records_size(selected), whole.part(indexes)))
        whole.no_more_parts()
        return shares


class SinglesPart:
    """Single messages of one topic, each with its own future. Either all of them name their place, or none does."""

    __slots__ = ("_futures", "ends", "messages")

    def __init__(
        self, messages: Sequence[Message], ends: Sequence[int], futures: Sequence[SendFuture]
    ) -> None:
        """ENDS: the byte position where the first message begins, then where each message ends."""
        self.messages = messages
        self.ends = ends
        self._futures = futures

    @classmethod
    def of(cls, futures: Sequence[SendFuture]) -> SinglesPart:
        """Return the part of the messages that FUTURES contain."""
        messages = [message_of(future) for future in futures]
        sizes = [future.size_bytes for future in futures]
        return cls(messages, list(accumulate(sizes, initial=0)), futures)

    @property
    def size_bytes(self) -> int:
        """The size of all messages."""
        return self.ends[-1] - self.ends[0]

    @property
    def senders(self) -> int:
        """Number of senders that wait for its result: one per message."""
        return len(self.messages)

    def part(self, begin: int, end: int) -> SinglesPart:
        """Return the messages from BEGIN up to END."""
        if begin == 0 and end == len(self.messages):
            return self
        return SinglesPart(
            self.messages[begin:end], self.ends[begin : end + 1], self._futures[begin:end]
        )

    def select(self, indexes: Sequence[int]) -> SinglesPart:
        """Return the messages with INDEXES."""
        ends, messages, futures = self.ends, self.messages, self._futures
        sizes = [ends[index + 1] - ends[index] for index in indexes]
        return SinglesPart(
            [messages[index] for index in indexes],
            list(accumulate(sizes, initial=0)),
            [futures[index] for index in indexes],
        )

    def acknowledge(self, receipts: BatchReceipts, first: int) -> None:
        """Give the senders their receipts: those of RECEIPTS from index FIRST on."""
        acknowledge_all(self._futures, receipts, first)

    def fail(self, error: BaseException) -> None:
        """Raise ERROR to all senders."""
        for future in self._futures:
            future.fail(error)

    def cut(self, at: int) -> tuple[SinglesPart, SinglesPart]:
        """Return two parts: the messages before index AT, and the others."""
        return self.part(0, at), self.part(at, len(self.messages))


Part: TypeAlias = JointPart | SinglesPart
