"""The parts of a batch: the messages of one call, with the result that the caller waits for.

A caller waits for one result for all its messages (`JointPart`, from `send` of a coroutine and `send_many`), or for a
future each (`SinglesPart`, from `send` of threads). The parts of a batch get its receipts, or its error.
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
    """Messages of one topic, all for the same queue or all for any, of one sender: they travel in one batch."""

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
        """OUTCOME gets the Receipts of MESSAGES, of together SIZE_BYTES; the Receipt, if it is a SINGLE one."""
        self.messages = messages
        self.size_bytes = size_bytes
        self._outcome = outcome
        self._single = single

    def acknowledge(self, receipts: BatchReceipts, first: int) -> None:
        """Tell the sender that its messages have the RECEIPTS from FIRST on."""
        if self._outcome.done():
            return
        if self._single:
            self._outcome.set_result(receipts.receipt(first))
        else:
            self._outcome.set_result(Receipts([(receipts, first, len(self.messages))]))

    def refuse(self, error: BaseException) -> None:
        """Tell the sender that ERROR came."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def cut(self, at: int) -> tuple[JointPart, JointPart]:
        """Return two parts, of the messages before AT and from there on."""
        first, second = self.shares([range(at), range(at, len(self.messages))])
        return first, second

    def shares(self, several: Sequence[Sequence[int]]) -> list[JointPart]:
        """Return a part for each of SEVERAL rows of indexes, which together are all messages."""
        assert not self._single
        messages, whole = self.messages, CombinedResult(self._outcome)
        shares: list[JointPart] = []
        for indexes in several:
            taken = (
                messages.taken(indexes)
                if isinstance(messages, Bodies)
                else [messages[index] for index in indexes]
            )
            shares.append(JointPart(taken, records_size(taken), whole.part(indexes)))
        whole.no_more_parts()
        return shares


class SinglesPart:
    """Single messages of one topic, each with a future of its own; all of them say where they go, or none."""

    __slots__ = ("_futures", "ends", "messages")

    def __init__(
        self, messages: Sequence[Message], ends: Sequence[int], futures: Sequence[SendFuture]
    ) -> None:
        """ENDS: where the first begins, then where each ends, in bytes."""
        self.messages = messages
        self.ends = ends
        self._futures = futures

    @classmethod
    def of(cls, futures: Sequence[SendFuture]) -> SinglesPart:
        """Return the messages that FUTURES have."""
        messages = [message_of(future) for future in futures]
        sizes = [future.size_bytes for future in futures]
        return cls(messages, list(accumulate(sizes, initial=0)), futures)

    @property
    def size_bytes(self) -> int:
        """The bytes of all."""
        return self.ends[-1] - self.ends[0]

    @property
    def senders(self) -> int:
        """How many senders wait for its result: one per message."""
        return len(self.messages)

    def part(self, begin: int, end: int) -> SinglesPart:
        """Return the messages from BEGIN up to END."""
        if begin == 0 and end == len(self.messages):
            return self
        return SinglesPart(
            self.messages[begin:end], self.ends[begin : end + 1], self._futures[begin:end]
        )

    def taken(self, indexes: Sequence[int]) -> SinglesPart:
        """Return the messages with INDEXES."""
        ends, messages, futures = self.ends, self.messages, self._futures
        sizes = [ends[index + 1] - ends[index] for index in indexes]
        return SinglesPart(
            [messages[index] for index in indexes],
            list(accumulate(sizes, initial=0)),
            [futures[index] for index in indexes],
        )

    def acknowledge(self, receipts: BatchReceipts, first: int) -> None:
        """Tell the senders that their messages have the RECEIPTS from FIRST on."""
        acknowledge_all(self._futures, receipts, first)

    def refuse(self, error: BaseException) -> None:
        """Tell the senders that ERROR came."""
        for future in self._futures:
            future.refuse(error)

    def cut(self, at: int) -> tuple[SinglesPart, SinglesPart]:
        """Return two rows, of the messages before AT and from there on."""
        return self.part(0, at), self.part(at, len(self.messages))


Part: TypeAlias = JointPart | SinglesPart
