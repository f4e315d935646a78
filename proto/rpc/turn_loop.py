"""The end of a turn of the event loop, at which the work that its reads brought is done together.

`at_turn_end` calls a function there. On a loop of asyncio this is its next turn, so that all reads of a turn come
first. A request that came alone would wait for nothing then. `TurnLoop` knows how many events a turn has: if a read is
the only one, the functions are called right after it, and its answer is written at once. That saves two turns.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Final, TypeAlias

Function: TypeAlias = Callable[[], object]


class _Selector(selectors.DefaultSelector):
    """The selector of the platform; it notes how many events it returned last."""

    event_count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout)
        self.event_count = len(events)
        return events


class _Reading:
    """A read, as a context. If it is the only event of its turn, the turn ends with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, selector: _Selector) -> None:
        self._loop = loop
        self._selector = selector
        self._is_only = False
        self._functions: list[Function] = []

    def __enter__(self) -> None:
        self._is_only = self._selector.event_count == 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_only = False  # What the functions themselves add is for the next turn.
        if self._functions:
            functions, self._functions = self._functions, []
            for function in functions:
                self._call(function)

    def call(self, function: Function) -> None:
        if self._is_only:
            self._functions.append(function)
        else:
            self._loop.call_soon(function)

    def _call(self, function: Function) -> None:
        try:
            function()
        except (SystemExit, KeyboardInterrupt):
            raise
        except (
            BaseException
        ) as error:  # As in a turn of its own: the others are called all the same.
            message = f"Exception in callback {function!r:.200}"
            self._loop.call_exception_handler({"message": message, "exception": error})


class TurnLoop(asyncio.SelectorEventLoop):
    """A loop of asyncio that ends a turn right after its only read."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        self.reading: Final = _Reading(self, selector)


_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


def reading(loop: asyncio.AbstractEventLoop) -> AbstractContextManager[None]:
    """Return the context in which the server processes one read on LOOP. Contexts are not nested."""
    return loop.reading if isinstance(loop, TurnLoop) else _NOTHING


def at_turn_end(function: Function) -> None:
    """Call FUNCTION once, at the end of the present turn of the running loop."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, TurnLoop):
        loop.reading.call(function)
    else:
        loop.call_soon(function)
