"""Messages of one sender that go to several queues, each to its own choice; their receipts come in order again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..message import Message
from ..queue import Queue
from ..routes import Route
from .bodies import Bodies
from .outcome import Outcome
from .queue_choice import QueueChoice, queue_for
from .receipt import Receipts, RunReceipts
from .run import record_size

#: Messages for one queue, their bytes, and what waits for them.
Share: TypeAlias = tuple[Queue, Sequence[Message], int, Outcome]


def spread(
    messages: Sequence[Message], route: Route, choice: QueueChoice, outcome: Outcome
) -> list[Share]:
    """Choose a queue for each of MESSAGES; return each queue's share. OUTCOME gets the receipts of all, or an error."""
    by_queue: dict[Queue, list[int]] = {}
    sizes: list[int] = []
    for index, message in enumerate(messages):
        by_queue.setdefault(queue_for(message, route, choice), []).append(index)
        sizes.append(record_size(message))
    whole = _Whole(outcome, len(messages), len(by_queue))
    return [
        (
            queue,
            _taken(messages, indexes),
            sum(map(sizes.__getitem__, indexes)),
            _Part(whole, indexes),
        )
        for queue, indexes in by_queue.items()
    ]


def _taken(messages: Sequence[Message], indexes: Sequence[int]) -> Sequence[Message]:
    if isinstance(messages, Bodies):
        return messages.taken(indexes)
    return [messages[index] for index in indexes]


class _Whole:
    """Waits for PARTS, which together have COUNT messages."""

    def __init__(self, outcome: Outcome, count: int, parts: int) -> None:
        self._outcome = outcome
        self._missing = parts
        self._error: BaseException | None = None
        self._singles: list[tuple[RunReceipts, int, int] | None] = [None] * count

    def settle(
        self, indexes: Sequence[int], receipts: Receipts | None, error: BaseException | None
    ) -> None:
        """Take what became of the messages with INDEXES."""
        self._missing -= 1
        self._error = self._error or error
        for index, single in zip(indexes, receipts.singles() if receipts else (), strict=False):
            self._singles[index] = single
        if self._missing or self._outcome.done():
            return
        if self._error is not None:
            self._outcome.set_exception(self._error)
        else:
            self._outcome.set_result(Receipts([single for single in self._singles if single]))


class _Part:
    """The outcome of one queue's share."""

    __slots__ = ("_done", "_indexes", "_whole")

    def __init__(self, whole: _Whole, indexes: Sequence[int]) -> None:
        self._whole = whole
        self._indexes = indexes
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Receipts, /) -> None:
        self._done = True
        self._whole.settle(self._indexes, result, None)

    def set_exception(self, exception: BaseException, /) -> None:
        self._done = True
        self._whole.settle(self._indexes, None, exception)
