"""Where an acknowledgement goes: futures of single messages that cost little, and who waits for which part of a run.

A `SendFuture` is a `concurrent.futures.Future` in all that its users see, also to `concurrent.futures.wait` and
`asyncio.wrap_future`; its lock, its condition and its list of callbacks are made when somebody first asks for them, and
its receipt when it is looked at. So a message that nobody waits for costs a quarter of a microsecond here.

Thread contract: the client's event loop settles; any thread may ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeAlias

from ..message import Message
from .receipt import Receipt, Receipts, RunReceipts

_FINISHED: Final = "FINISHED"
#: Makes the conditions of futures: two threads may ask for one's at once.
_making = threading.Lock()


class _Watch:
    """What a future needs once somebody waits for it."""

    __slots__ = ("callbacks", "condition", "waiters")

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.waiters: list[Any] = []
        self.callbacks: list[Callable[[Any], object]] = []


class SendFuture(Future[Receipt]):
    """The receipt of one message, or why there is none. It cannot be cancelled."""

    # These are what Future's own methods work with; all but _state are made on demand.
    _state = "RUNNING"
    _exception: BaseException | None = None
    _watch: _Watch | None = None
    _receipts: RunReceipts
    _index: int
    #: What was sent, until it is settled, and its bytes: so that a row of messages is a row of these, and the collector
    #: of garbage has no third object a message to look at.
    message: Message | None = None
    size_bytes: int = 0

    __init__ = object.__init__  # Future's would make the lock

    def _watched(self) -> _Watch:
        watch = self._watch
        if watch is None:
            with _making:
                watch = self._watch
                if watch is None:
                    watch = self._watch = _Watch()
        return watch

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._watched().condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._watched().waiters

    @property
    def _done_callbacks(self) -> list[Callable[[Any], object]]:
        return self._watched().callbacks

    @property
    def _result(self) -> Receipt:  # type: ignore[override]
        return self._receipts.receipt(self._index)

    def done(self) -> bool:
        return self._state is _FINISHED

    def result(self, timeout: float | None = None) -> Receipt:
        if self._state is _FINISHED and self._exception is None:
            return self._receipts.receipt(self._index)
        return super().result(timeout)

    def cancel(self) -> bool:
        """Return False: what was taken is sent."""
        return False

    def acknowledge(self, receipts: RunReceipts, index: int) -> None:
        """Have the receipt with INDEX in RECEIPTS as the result."""
        acknowledge_all((self,), receipts, index)

    def refuse(self, error: BaseException) -> None:
        """Raise ERROR to those who ask."""
        self._exception = error
        self.message = None
        # Who asks from here on sees the end; who asked before is told below.
        self._state = _FINISHED
        if self._watch is not None:
            self._tell(self._watch)

    def set_result(self, result: Receipt) -> None:
        raise AssertionError("a SendFuture is settled by acknowledge or refuse")

    def set_exception(self, exception: BaseException | None) -> None:
        assert exception is not None
        self.refuse(exception)

    def _tell(self, watch: _Watch) -> None:
        with watch.condition:
            for waiter in watch.waiters:
                if self._exception is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            watch.condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]  # Future's own, missing in the stubs


def message_of(future: SendFuture) -> Message:
    """Return the message of FUTURE, which is not settled yet."""
    message = future.message
    assert message is not None, "it was settled"
    return message


def acknowledge_all(futures: Sequence[SendFuture], receipts: RunReceipts, first: int) -> None:
    """Give FUTURES their receipts, which are those of RECEIPTS from FIRST on."""
    for index, future in enumerate(futures, first):
        future._receipts = receipts
        future._index = index
        future.message = None
        future._state = _FINISHED
        if future._watch is not None:
            future._tell(future._watch)


class Outcome(Protocol):
    """Where an acknowledgement or an error goes: an asyncio or a concurrent future, or a part of a larger one."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


#: Returns an outcome for the messages from FIRST up to END of a sending that tells others before the given one.
Watch: TypeAlias = Callable[[int, int, Outcome], Outcome]


class One:
    """Waits for the receipt of one message."""

    __slots__ = ("_outcome",)
    count = 1
    senders = 1

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def acknowledge(self, receipts: RunReceipts, first: int) -> None:
        if not self._outcome.done():
            self._outcome.set_result(receipts.receipt(first))

    def refuse(self, error: BaseException) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def cut(self, at: int) -> tuple[Waiter, Waiter]:
        raise AssertionError("one message is not cut")


class Many:
    """Waits for the receipts of COUNT messages of one sender together."""

    __slots__ = ("_outcome", "count")
    senders = 1

    def __init__(self, count: int, outcome: Outcome) -> None:
        self.count = count
        self._outcome = outcome

    def acknowledge(self, receipts: RunReceipts, first: int) -> None:
        if not self._outcome.done():
            self._outcome.set_result(Receipts([(receipts, first, self.count)]))

    def refuse(self, error: BaseException) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def cut(self, at: int) -> tuple[Waiter, Waiter]:
        """Return two that wait for the messages before AT and from there on."""
        whole = Gathered(self._outcome)
        parts = Many(at, whole.part()), Many(self.count - at, whole.part())
        whole.no_more_parts()
        return parts


class Row:
    """Waits for the receipts of single messages that follow each other."""

    __slots__ = ("_futures", "count")

    def __init__(self, futures: Sequence[SendFuture]) -> None:
        self.count = len(futures)
        self._futures = futures

    @property
    def senders(self) -> int:
        return self.count

    def acknowledge(self, receipts: RunReceipts, first: int) -> None:
        acknowledge_all(self._futures, receipts, first)

    def refuse(self, error: BaseException) -> None:
        for future in self._futures:
            future.refuse(error)

    def cut(self, at: int) -> tuple[Waiter, Waiter]:
        """Return two that wait for the messages before AT and from there on."""
        return Row(self._futures[:at]), Row(self._futures[at:])


#: Waits for `count` messages, of `senders` senders, that follow each other in a run.
Waiter: TypeAlias = One | Many | Row


class Gathered:
    """One outcome for messages that travel in several runs: their receipts in order, or the first error at the end."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._parts: list[Receipts | None] = []
        self._missing = 0
        self._complete = False
        self._error: BaseException | None = None

    def part(self) -> _Part:
        """Return the outcome for the next run."""
        self._parts.append(None)
        self._missing += 1
        return _Part(self, len(self._parts) - 1)

    def no_more_parts(self, error: BaseException | None = None) -> None:
        """All runs are known; ERROR says why messages after them will not be sent."""
        self._complete = True
        self._error = self._error or error
        self._tell()

    def settle(self, index: int, receipts: Receipts | None, error: BaseException | None) -> None:
        """Take what became of part INDEX."""
        self._parts[index] = receipts
        self._error = self._error or error
        self._missing -= 1
        self._tell()

    def _tell(self) -> None:
        if self._missing or not self._complete or self._outcome.done():
            return
        if self._error is not None:
            self._outcome.set_exception(self._error)
        else:
            self._outcome.set_result(Receipts.joined(part for part in self._parts if part))


class _Part:
    """The outcome of one run of a gathered sending."""

    __slots__ = ("_done", "_index", "_whole")

    def __init__(self, whole: Gathered, index: int) -> None:
        self._whole = whole
        self._index = index
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Receipts, /) -> None:
        self._done = True
        self._whole.settle(self._index, result, None)

    def set_exception(self, exception: BaseException, /) -> None:
        self._done = True
        self._whole.settle(self._index, None, exception)
