"""How workers call a listener: a spell of messages from one row.

A *spell* takes at most SPELL_MESSAGES from the row, one by one, or one batch; calls the listener, notes where it
stands, and reports what failed. There is one for all kinds of listeners, called or awaited, with a message or with a
list: it is a coroutine, which never waits where the listener is only called. Beside the listener and its message, a
call costs little more than two assignments.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, Final, TypeAlias

from ...proto.errors import ConfigError
from ..received_message import FetchedRun
from .answers import failure_of, named_by
from .process_queue import Portion, WorkerPlace

#: Messages between two looks at the clock and at what else is to do.
SPELL_MESSAGES: Final = 64

#: Called with a message, or with a list if listener_batch_size is above 1.
Listener: TypeAlias = Callable[[Any], object]


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
Spell: TypeAlias = Callable[[Job, WorkerPlace], int]
AsyncSpell: TypeAlias = Callable[[Job, WorkerPlace], Coroutine[Any, Any, int]]
#: Makes what a listener is called with of a run and the index of the first message.
_Make: TypeAlias = Callable[[FetchedRun, int], object]


def check_listener(listener: object) -> None:
    """Refuse a LISTENER that cannot be called with a message, or a list of messages. Raises ConfigError."""
    name = getattr(listener, "__qualname__", None) or type(listener).__qualname__
    if not callable(listener):
        raise ConfigError(
            f"listener is {listener!r:.80} ({type(listener).__name__}): it must be a function of one argument, the"
            " message",
            field="listener",
        )
    call = getattr(listener, "__call__", None)  # noqa: B004 (an object may have a generator as its call)
    generators = inspect.isgeneratorfunction, inspect.isasyncgenfunction
    if any(is_one(function) for is_one in generators for function in (listener, call)):
        raise ConfigError(
            f"the listener {name} is a generator, whose body would never run: handle the message without `yield`",
            field="listener",
        )
    try:
        # What a decorator made is called as it is, and not as what it hides.
        signature = inspect.signature(listener, follow_wrapped=False)
    except (TypeError, ValueError):  # Built in: nobody knows.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(
            f"the listener {name}{signature} cannot be called with one argument, the message: {error}",
            field="listener",
        ) from None


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
        self._listener: Any = listener
        self._batch_size = batch_size
        self._in_order = in_order
        self._tell = tell

    def spell(self) -> Spell:
        """Return the spell that calls, and never waits: it is run to its end by one step."""
        begin = self._spell(awaits=False)

        def spell(job: Job, place: WorkerPlace) -> int:
            try:
                begin(job, place).send(None)
            except StopIteration as end:
                count: int = end.value
                return count
            raise AssertionError("a spell that calls has waited")

        return spell

    def async_spell(self) -> AsyncSpell:
        """Return the spell that awaits."""
        return self._spell(awaits=True)

    def _spell(self, *, awaits: bool) -> AsyncSpell:
        listener, take, report = self._listener, self._take, self._report

        async def spell(job: Job, place: WorkerPlace) -> int:
            run, again, count = job.portion.run, job.again, 0
            firsts, make, size = take(job, place)
            for index in firsts:
                place.index = index
                count += size
                try:
                    said = listener(make(run, index))
                    if awaits:
                        said = await said
                except BaseException as error:  # Whatever it is, the messages are not handled.
                    said = error
                    if awaits and _ends_worker(error):
                        report(job, range(index, index + size), said)
                        raise
                if (said is not None and said is not True) or again:
                    report(job, range(index, index + size), said)
                    if job.suspended:
                        break
                place.index = index + size
            return count

        return spell

    def _take(self, job: Job, place: WorkerPlace) -> tuple[Iterable[int], _Make, int]:
        """Return the indexes at which a listener is called, what it is called with, and of how many messages."""
        make = job.portion.queue.message_type
        if self._batch_size == 1:
            return islice(job.row, SPELL_MESSAGES), make, 1
        # At once: others take from the row too, and what is beside each other shall stay so.
        indexes = list(islice(job.row, self._batch_size))
        if indexes:
            place.count = len(indexes)
        return indexes[:1], lambda run, _: list(map(make, repeat(run), indexes)), len(indexes)

    def _report(self, job: Job, indexes: range, said: object) -> None:
        """Say what became of the messages at INDEXES: the listener SAID that some failed, or they are handled again."""
        portion, failure = job.portion, failure_of(said)
        named = None if self._in_order else named_by(said)
        make, run = portion.queue.message_type, portion.run
        for index in indexes:
            if failure is not None and (named is None or make(run, index) in named):
                portion.outcomes.append((index, failure))
            elif job.again:
                portion.outcomes.append((index, None))
        if failure is not None and self._in_order:
            job.suspended = True
            portion.rewind(indexes[0])
        self._tell(portion)


def _ends_worker(error: BaseException) -> bool:
    """Is ERROR meant for the worker that awaits the listener, rather than raised by the listener?"""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
