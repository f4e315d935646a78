"""Calls listeners for messages, and interprets their results.

    result of the listener  meaning
    None, True              processed
    False, an exception     failed: the message is redelivered later, or (if ordered) retried in place
    Retry, Reject           failed, with a delay and a reason, or moved to the dead-letter queue at once; raised or
                            returned

Any other result is a failure. Results are objects of the application, whose methods may raise. No such error leaves
this module.

`Calls` returns a function, of type `ListenerCall` or `AsyncListenerCall`, which workers call again and again. Each time
it takes
up to TURN_MESSAGES messages, or one batch, from a portion. It calls the listener for them, notes its place, and reports
failures. There is one coroutine for all kinds of listeners, called or awaited, with a message or with a list. It never
waits if the listener is an ordinary function. Apart from the listener and the message object, a call costs little more
than two assignments.
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
from .process_queue import Chunk, Failure, WorkerPlace

_REASON_MAX: Final = 1_000
#: The maximum of the field in the request.
_DELAY_LEVEL_MAX: Final = 2**31 - 1
_DEAD: Final = -1

_Kind = TypeVar("_Kind")


class Retry(Exception):
    """Raise or return it in a listener to have a message retried."""

    # Defaults for subclasses that do not call __init__.
    reason: str = ""
    """Why it failed. Stored with a dead letter."""
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
        """Create the result of a listener.

        Args:
            reason: Why it failed. Stored with a dead letter, up to 1,000 characters.
            delay_level: 1 to 18: retry after 1 s to 2 h; 0: longer with each retry.
            messages: Messages of the batch to retry; the others are processed. None: all. If `ordered`, the whole
                batch is retried.
        """
        super().__init__(reason)
        self.reason = reason
        self.delay_level = delay_level
        self.messages = None if messages is None else list(messages)


class Reject(Retry):
    """Raise or return it in a listener to move a message to the dead-letter queue at once."""

    delay_level: int = _DEAD
    """Fixed: the message goes to the dead-letter queue."""

    def __init__(
        self, reason: str = "", *, messages: Iterable[ReceivedMessage] | None = None
    ) -> None:
        super().__init__(reason, delay_level=_DEAD, messages=messages)


def failure_of(result: object) -> Failure | None:
    """Return the failure that RESULT of a listener means; None: the message is processed."""
    if result is None or result is True:
        return None
    if result is False:
        return Failure(0, "the listener returned False")
    name = type(result).__name__
    if _has_type(result, Retry):
        return Failure(_delay_level(result), _text_or(lambda: _reason(result), name))
    if _has_type(result, BaseException):
        return Failure(0, _text_or(lambda: f"{name}: {result}", name), result)
    wrong = _text_or(lambda: repr(result), name)
    return Failure(0, f"the listener returned {wrong}: return None or True"[:_REASON_MAX])


def failed_messages_of(result: object) -> set[ReceivedMessage] | None:
    """Return the messages that RESULT names as failed; None: all that the listener was called with."""
    if not _has_type(result, Retry):
        return None
    try:
        return None if result.messages is None else set(result.messages)
    except BaseException:
        # The attribute of a subclass is not usable. It is better to redeliver a message too often than to lose it.
        return None


def _has_type(result: object, kind: type[_Kind]) -> TypeGuard[_Kind]:
    # `isinstance` reads __class__, which may raise.
    return issubclass(type(result), kind)


def _reason(result: Retry) -> str:
    return "" if result.reason is None else str(result.reason)


def _delay_level(result: Retry) -> int:
    """Return the delay level of RESULT within the limits of a request; 0 if it is not a number."""
    try:
        return max(_DEAD, min(as_int(result.delay_level), _DELAY_LEVEL_MAX))
    except BaseException:  # As in `failed_messages_of`.
        return 0


def _text_or(make: Callable[[], str], name: str) -> str:
    """Return what MAKE returns, cut and escaped for a request; NAME if MAKE raises."""
    try:
        return encodable(make()[:_REASON_MAX])
    except BaseException:  # An error whose text cannot be made is a failure like others.
        return name


#: Messages that a worker processes before it reads the clock and looks for other work.
TURN_MESSAGES: Final = 64

#: Called with a message, or with a list if listener_batch_size is above 1.
Listener: TypeAlias = Callable[[Any], object]


class Job:
    """Work for a worker: the messages of PORTION, or only those of ROW, which are processed again."""

    __slots__ = ("is_retry", "portion", "row", "suspended")

    def __init__(self, portion: Chunk, row: Iterator[int] | None = None) -> None:
        self.portion = portion
        self.is_retry = row is not None
        self.row = portion.row if row is None else row
        #: If ordered: a message failed, so no later message may be processed.
        self.suspended = False


#: Processes messages of a job and notes its place; returns the number of messages, 0 when the row is empty.
ListenerCall: TypeAlias = Callable[[Job, WorkerPlace], int]
AsyncListenerCall: TypeAlias = Callable[[Job, WorkerPlace], Coroutine[Any, Any, int]]
#: Makes the argument of a listener from a batch and the index of the first message.
_Make: TypeAlias = Callable[[FetchedRun, int], object]


def check_listener(listener: object) -> None:
    """Raise ConfigError for a LISTENER that cannot be called with one argument."""
    name = getattr(listener, "__qualname__", None) or type(listener).__qualname__
    if not callable(listener):
        raise ConfigError(
            f"listener is {listener!r:.80} ({type(listener).__name__}): pass a function of one argument, the message",
            field="listener",
        )
    call = getattr(listener, "__call__", None)  # noqa: B004 (an object may have a generator as its call)
    generators = inspect.isgeneratorfunction, inspect.isasyncgenfunction
    if any(is_one(function) for is_one in generators for function in (listener, call)):
        raise ConfigError(
            f"the listener {name} is a generator, whose body would never run: write it without `yield`",
            field="listener",
        )
    try:
        # The wrapper that a decorator has made is called, not the wrapped function.
        signature = inspect.signature(listener, follow_wrapped=False)
    except (TypeError, ValueError):  # Built-in functions have no signature.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(
            f"the listener {name}{signature} cannot be called with one argument, the message: {error}. Change its"
            " parameters.",
            field="listener",
        ) from None


def is_async(listener: Listener) -> bool:
    """Return whether the result of LISTENER has to be awaited."""
    call = getattr(listener, "__call__", None)  # noqa: B004 (an object may have a coroutine as its call)
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)


class Calls:
    """Makes the functions that call LISTENER with a message, or with lists of BATCH_SIZE.

    IN_ORDER: a function returns at the first failure, and the row continues there. ON_PROGRESS is called with the
    portion when a message failed, or was processed again.
    """

    def __init__(
        self,
        listener: Listener,
        batch_size: int,
        *,
        in_order: bool,
        on_progress: Callable[[Chunk], object],
    ) -> None:
        self._listener: Any = listener
        self._batch_size = batch_size
        self._in_order = in_order
        self._on_progress = on_progress

    def function(self) -> ListenerCall:
        """Return the function for a listener that is called."""
        coroutine = self._coroutine_function(awaits=False)

        def call(job: Job, place: WorkerPlace) -> int:
            try:
                coroutine(job, place).send(None)  # It never waits, so one step runs it to its end.
            except StopIteration as end:
                count: int = end.value
                return count
            raise AssertionError("waited for a listener that is not awaited")

        return call

    def async_function(self) -> AsyncListenerCall:
        """Return the function for a listener that is awaited."""
        return self._coroutine_function(awaits=True)

    def _coroutine_function(self, *, awaits: bool) -> AsyncListenerCall:
        listener, take, report = self._listener, self._take, self._report

        async def call(job: Job, place: WorkerPlace) -> int:
            run, is_retry, count = job.portion.run, job.is_retry, 0
            firsts, make, size = take(job, place)
            for index in firsts:
                place.index = index
                count += size
                try:
                    result = listener(make(run, index))
                    if awaits:
                        result = await result
                except BaseException as error:  # After any error the messages are not processed.
                    result = error
                    if awaits and _ends_worker(error):
                        report(job, range(index, index + size), result)
                        raise
                if (result is not None and result is not True) or is_retry:
                    report(job, range(index, index + size), result)
                    if job.suspended:
                        break
                place.index = index + size
            return count

        return call

    def _take(self, job: Job, place: WorkerPlace) -> tuple[Iterable[int], _Make, int]:
        """Return the first index of each call of the listener, the maker of its argument, and the messages per call."""
        make = job.portion.queue.message_type
        if self._batch_size == 1:
            return islice(job.row, TURN_MESSAGES), make, 1
        # Take all indexes at once: other workers take from the row too, and a batch has to be contiguous.
        indexes = list(islice(job.row, self._batch_size))
        if indexes:
            place.count = len(indexes)
        return indexes[:1], lambda run, _: list(map(make, repeat(run), indexes)), len(indexes)

    def _report(self, job: Job, indexes: range, result: object) -> None:
        """Report the messages at INDEXES to their portion: which failed, by RESULT, and which retries succeeded."""
        portion, failure = job.portion, failure_of(result)
        failed = None if self._in_order else failed_messages_of(result)
        make, run = portion.queue.message_type, portion.run
        for index in indexes:
            if failure is not None and (failed is None or make(run, index) in failed):
                portion.results.append((index, failure))
            elif job.is_retry:
                portion.results.append((index, None))
        if failure is not None and self._in_order:
            job.suspended = True
            portion.rewind(indexes[0])
        self._on_progress(portion)


def _ends_worker(error: BaseException) -> bool:
    """Return whether ERROR is to end the worker that awaits the listener, and was not raised by the listener itself."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
