"""What SIGTERM and Ctrl-C do to a program that uses clients in its main thread.

    where the main thread is                      SIGTERM                          Ctrl-C
    run(), wait() or endless iteration            it returns                       the same
    elsewhere in a `with` or `async with` block   SystemExit(143) ends the block   left to Python: KeyboardInterrupt

A client that returns first finishes the messages that it delivered. So does a pull consumer that you poll, and its next
poll raises. A second signal does not wait: it raises SystemExit or KeyboardInterrupt at once.

The handler is installed during such a block, and only if the program has no handler. Afterwards the previous state is
restored. In other threads and in forked processes nothing changes. In a block of asyncio the signal cancels the task,
and the end of the block raises SystemExit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Final, NoReturn

#: What a shell sees of a program that SIGTERM has ended.
EXIT_CODE: Final = 128 + signal.SIGTERM


def _never() -> bool:
    return False


class Signals:
    """Those that one client hears. The main thread owns it."""

    def __init__(self, finish: Callable[[], bool] = _never) -> None:
        """FINISH ends what the client is in the midst of; it returns False if there is nothing that ends by itself."""
        self._finish = finish
        #: The signal that was heard; None: none.
        self.told: int | None = None
        self._leaving = False
        self._owes_exit = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def enter(self) -> None:
        """Hear SIGTERM from now on, until the block is left."""
        self._note_task()
        _SIGTERM.add(self)

    def _note_task(self) -> None:
        """Remember in which task we are, if in any."""
        with suppress(RuntimeError):
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Let the end of the client, within this block, not be broken off; then exit, if that is what was asked for."""
        self._leaving = True
        try:
            yield
        finally:
            _SIGTERM.remove(self)
        if self._owes_exit:
            raise SystemExit(EXIT_CODE) from None

    @contextmanager
    def returning(self) -> Iterator[None]:
        """Hear Ctrl-C too within this block, which `finish` ends."""
        self._note_task()
        for watch in (_SIGTERM, _SIGINT):
            watch.add(self)
        try:
            yield
        finally:
            for watch in (_SIGTERM, _SIGINT):
                watch.remove(self)

    def check(self) -> None:
        """Raise what was put off until now."""
        if self.told is not None:
            _exit(self.told)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The running loop that it has to be told on."""
        return self._loop if self._loop is not None and self._loop.is_running() else None

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that is in the block."""
        return self._task

    def ends(self, number: int) -> bool:
        """End by itself, if it can and was not told before; return whether it will."""
        if self.told is not None:
            return False
        if not self._leaving and not self._finish():
            return False
        self.told = number
        self._owes_exit = self._leaving
        return True

    def break_off(self, number: int) -> None:
        """End the block, whatever it is in the midst of."""
        if self.told is None and self._task is not None:
            self._owes_exit = True
            self._task.cancel()
            self.told = number
        else:
            self.told = number
            _exit(number)


def _exit(number: int) -> NoReturn:
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(EXIT_CODE)


class _Watch:
    """Handles one signal while somebody wants to hear it."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self._heard_by: list[Signals] = []
        self._before: Any = None
        self._process = 0

    def add(self, one: Signals) -> None:
        """Have ONE hear it, unless the program has a handler, or this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(self._number)
        if handler != self._handle:
            if not _is_pythons(handler):
                return
            self._before, self._process = handler, os.getpid()
            signal.signal(self._number, self._handle)
        self._heard_by.append(one)

    def remove(self, one: Signals) -> None:
        """Remove ONE; after the last one everything is as it was before."""
        if one in self._heard_by:
            self._heard_by.reverse()
            self._heard_by.remove(one)
            self._heard_by.reverse()
        if (
            not self._heard_by
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(self._number) == self._handle
        ):
            signal.signal(self._number, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._heard_by or os.getpid() != self._process:
            self._as_before(number, frame)
        elif loops := {one.loop for one in self._heard_by if one.loop is not None}:
            for loop in loops:
                loop.call_soon_threadsafe(self._tell_tasks, loop)
        else:
            self._tell([one for one in self._heard_by if one.task is None])

    def _tell_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        mine = [one for one in self._heard_by if one.loop is loop]
        for task in {one.task for one in mine}:
            self._tell([one for one in mine if one.task is task])

    def _tell(self, nested: list[Signals]) -> None:
        """Tell the innermost that ends by itself; if none does, the innermost."""
        if not any(one.ends(self._number) for one in reversed(nested)) and nested:
            nested[-1].break_off(self._number)

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        if callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _is_pythons(handler: Any) -> bool:
    """Is HANDLER what Python has without the program's doing? asyncio.run puts its own in for Ctrl-C."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return isinstance(handler, partial) and handler.func.__module__ == "asyncio.runners"


_SIGTERM: Final = _Watch(signal.SIGTERM)
_SIGINT: Final = _Watch(signal.SIGINT)
