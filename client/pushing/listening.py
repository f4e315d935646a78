"""What a listener may say of a message, and how workers call it: a spell of messages from one row.

    None, True              handled
    False, an exception     failed: it comes again later, or (in order) at once
    Retry, Reject           the same, with a delay and a reason, or to the dead letters at once; raised or returned

A *spell* takes at most SPELL_MESSAGES from the row, one by one or by the batch, calls the listener, notes where it
stands, and reports what failed. There is one kind a listener: called or awaited, with a message or with a batch.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from ..received_message import ReceivedMessage
from .process_queue import Failure, Place, Portion

#: Messages between two looks at the clock and at what else is to do.
SPELL_MESSAGES: Final = 64
_REASON_MAX: Final = 1_000

#: Called with a message, or with a list if listener_batch_size is above 1.
Listener: TypeAlias = Callable[[Any], object]


class Retry(Exception):
    """Says that a message shall come again; raise it in a listener, or return it."""

    def __init__(
        self,
        reason: str = "",
        *,
        delay_level: int = 0,
        messages: Iterable[ReceivedMessage] | None = None,
    ) -> None:
        """DELAY_LEVEL 1 to 18: after 1 s to 2 h; 0: longer with each retry. REASON stays with it once it is dead.

        MESSAGES: only these of a batch; the others are handled. In order, the batch comes again as a whole.
        """
        super().__init__(reason)
        self.reason = reason
        self.delay_level = delay_level
        self.messages = None if messages is None else list(messages)


class Reject(Retry):
    """Says that a message shall go to the group's dead letters at once; raise it in a listener, or return it."""

    def __init__(
        self, reason: str = "", *, messages: Iterable[ReceivedMessage] | None = None
    ) -> None:
        super().__init__(reason, delay_level=-1, messages=messages)


class Job:
    """Work in PORTION: its row, or the messages of another ROW of it that shall be handled AGAIN."""

    __slots__ = ("again", "portion", "row", "suspended")

    def __init__(self, portion: Portion, row: Iterator[int] | None = None) -> None:
        self.portion = portion
        self.again = row is not None
        self.row = portion.row if row is None else row
        #: In order: a message failed, and nothing behind it may be handled.
        self.suspended = False


#: Works in a job from a place; returns how many messages it took, 0 once the row is empty.
Spell: TypeAlias = Callable[[Job, Place], int]
AsyncSpell: TypeAlias = Callable[[Job, Place], Awaitable[int]]


def is_async(listener: Listener) -> bool:
    """Must what LISTENER returns be awaited?"""
    call = getattr(listener, "__call__", None)  # noqa: B004 (an object may have a coroutine as its call)
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)


class Calls:
    """Makes the spells of LISTENER for batches of BATCH_SIZE; TELL is called when a message failed.

    IN_ORDER: a spell ends at the first failure, and the row goes back to it.
    """

    def __init__(
        self,
        listener: Listener,
        batch_size: int,
        *,
        in_order: bool,
        tell: Callable[[Portion], object],
    ) -> None:
        self._listener = listener
        self._batch_size = batch_size
        self._in_order = in_order
        self._tell = tell

    def spell(self) -> Spell:
        """Return the spell that calls."""
        return self._one_by_one() if self._batch_size == 1 else self._by_batches()

    def async_spell(self) -> AsyncSpell:
        """Return the spell that awaits."""
        return self._one_by_one_awaited() if self._batch_size == 1 else self._by_batches_awaited()

    def _one_by_one(self) -> Spell:
        listener, report = self._listener, self._report

        def spell(job: Job, place: Place) -> int:
            count = 0
            run, again = job.portion.run, job.again
            make = job.portion.queue.message_type
            for index in islice(job.row, SPELL_MESSAGES):
                place.index = index
                count += 1
                try:
                    said = listener(make(run, index))
                except (
                    BaseException
                ) as error:  # Whatever it is, the message is not handled, and the next one waits.
                    said = error
                if (said is not None and said is not True) or again:
                    report(job, (index,), (), said)
                    if job.suspended:
                        break
                place.index = index + 1
            return count

        return spell

    def _one_by_one_awaited(self) -> AsyncSpell:
        listener: Any = self._listener
        report = self._report

        async def spell(job: Job, place: Place) -> int:
            count = 0
            run, again = job.portion.run, job.again
            make = job.portion.queue.message_type
            for index in islice(job.row, SPELL_MESSAGES):
                place.index = index
                count += 1
                try:
                    said = await listener(make(run, index))
                except asyncio.CancelledError as error:
                    report(job, (index,), (), error)
                    raise
                except (
                    Exception
                ) as error:  # Whatever it is, the message is not handled, and the next one waits.
                    said = error
                if (said is not None and said is not True) or again:
                    report(job, (index,), (), said)
                    if job.suspended:
                        break
                place.index = index + 1
            return count

        return spell

    def _by_batches(self) -> Spell:
        listener = self._listener

        def spell(job: Job, place: Place) -> int:
            indexes = self._take(job, place)
            if indexes:
                messages = _messages(job, indexes)
                try:
                    said = listener(messages)
                except BaseException as error:  # As above.
                    said = error
                self._finish(job, place, (indexes, messages), said)
            return len(indexes)

        return spell

    def _by_batches_awaited(self) -> AsyncSpell:
        listener: Any = self._listener

        async def spell(job: Job, place: Place) -> int:
            indexes = self._take(job, place)
            if indexes:
                messages = _messages(job, indexes)
                try:
                    said = await listener(messages)
                except asyncio.CancelledError as error:
                    self._report(job, indexes, messages, error)
                    raise
                except Exception as error:  # As above.
                    said = error
                self._finish(job, place, (indexes, messages), said)
            return len(indexes)

        return spell

    def _take(self, job: Job, place: Place) -> list[int]:
        indexes = list(islice(job.row, self._batch_size))
        if indexes:
            place.count = len(indexes)
            place.index = indexes[0]
        return indexes

    def _finish(
        self, job: Job, place: Place, batch: tuple[list[int], list[ReceivedMessage]], said: object
    ) -> None:
        indexes, messages = batch
        if (said is not None and said is not True) or job.again:
            self._report(job, indexes, messages, said)
            if job.suspended:
                return
        place.index = indexes[-1] + 1

    def _report(
        self,
        job: Job,
        indexes: Sequence[int],
        messages: Sequence[ReceivedMessage],
        said: object,
    ) -> None:
        """Say what became of the MESSAGES at INDEXES: the listener SAID that some failed, or they are handled again."""
        portion, failure = job.portion, failure_of(said)
        failed = set(indexes)
        if isinstance(said, Retry) and said.messages is not None and not self._in_order:
            named = {id(message) for message in said.messages}
            failed = {index for index, m in zip(indexes, messages, strict=True) if id(m) in named}
        for index in indexes:
            if failure is not None and index in failed:
                portion.outcomes.append((index, failure))
            elif job.again:
                portion.outcomes.append((index, None))
        if failure is not None and self._in_order:
            job.suspended = True
            portion.rewind(indexes[0])
        self._tell(portion)


def _messages(job: Job, indexes: Sequence[int]) -> list[ReceivedMessage]:
    make, run = job.portion.queue.message_type, job.portion.run
    return [make(run, index) for index in indexes]


def failure_of(said: object) -> Failure | None:
    """Return what a listener SAID as a failure; None: the message is handled."""
    if said is None or said is True:
        return None
    if isinstance(said, Retry):
        return Failure(said.delay_level, said.reason[:_REASON_MAX])
    if isinstance(said, BaseException):
        return Failure(0, f"{type(said).__name__}: {said}"[:_REASON_MAX], said)
    if said is False:
        return Failure(0, "the listener returned False")
    return Failure(
        0, f"the listener returned {said!r}, which means nothing: None or True"[:_REASON_MAX]
    )
