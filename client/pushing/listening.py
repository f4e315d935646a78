"""The call of a listener by a worker, a spell of messages from one row, and what the listener may say of them.

    None, True              handled
    False, an exception     failed: it is redelivered later, or (in order) at once
    Retry, Reject           the same, with a delay and a reason, or to the dead letters at once; raised or returned

Whatever else it says is a failure. The classes of what is said are the application's own, and may raise when they are
asked for words: nothing of that leaves this module.

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
from operator import index as as_int
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

from ...proto.errors import ConfigError
from ..consuming.sending_back import encodable
from ..received_message import FetchedRun, ReceivedMessage
from .process_queue import Failure, Portion, WorkerPlace

_REASON_MAX: Final = 1_000
#: As a request can carry it.
_DELAY_LEVEL_MAX: Final = 2**31 - 1
_DEAD: Final = -1

_Kind = TypeVar("_Kind")


class Retry(Exception):
    """Says that a message is redelivered; raise it in a listener, or return it."""

    # What holds for subclasses that do not call __init__.
    reason: str = ""
    """Why it failed. A dead letter has it."""
    delay_level: int = 0
    """Delay level of the retry, 1 to 18 (1 s to 2 h); 0: longer with each retry."""
    messages: list[ReceivedMessage] | None = None
    """Messages of the batch to retry; the others are processed. None: all. If `ordered`, the whole
    batch is retried.
    """

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

    delay_level: int = _DEAD
    """Fixed: the message goes to the dead-letter queue."""

    def __init__(
        self, reason: str = "", *, messages: Iterable[ReceivedMessage] | None = None
    ) -> None:
        super().__init__(reason, delay_level=_DEAD, messages=messages)


def failure_of(said: object) -> Failure | None:
    """Return what a listener SAID as a failure; None: the message is handled."""
    if said is None or said is True:
        return None
    if said is False:
        return Failure(0, "the listener returned False")
    name = type(said).__name__
    if _is_a(said, Retry):
        return Failure(_delay_level(said), _words(lambda: _reason(said), name))
    if _is_a(said, BaseException):
        return Failure(0, _words(lambda: f"{name}: {said}", name), said)
    odd = _words(lambda: repr(said), name)
    return Failure(
        0, f"the listener returned {odd}, which means nothing: None or True"[:_REASON_MAX]
    )


def named_by(said: object) -> set[ReceivedMessage] | None:
    """Return the messages that SAID names as those that failed; None: all that the listener was called with."""
    if not _is_a(said, Retry):
        return None
    try:
        return None if said.messages is None else set(said.messages)
    except BaseException:
        # A subclass says what nobody understands: better once too often than lost.
        return None


def _is_a(said: object, kind: type[_Kind]) -> TypeGuard[_Kind]:
    # By its type alone: an object may raise when it is asked for its __class__.
    return issubclass(type(said), kind)


def _reason(said: Retry) -> str:
    return "" if said.reason is None else str(said.reason)


def _delay_level(said: Retry) -> int:
    """Return the delay level of SAID as a request can carry it; what is no number: longer with each retry."""
    try:
        return max(_DEAD, min(as_int(said.delay_level), _DELAY_LEVEL_MAX))
    except BaseException:  # As in `named_by`.
        return 0


def _words(speak: Callable[[], str], name: str) -> str:
    """Return what SPEAK says, cut and fit for a request; NAME if it cannot."""
    try:
        return encodable(speak()[:_REASON_MAX])
    except BaseException:  # Errors that cannot be put into words are failures like others.
        return name


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
        #: In order: a message failed, and nothing after it may be handled.
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
        # At once: others take from the row too, and neighbours shall stay together.
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
