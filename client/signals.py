"""How SIGTERM and Ctrl-C end a program that uses clients in its main thread.

    where the main thread is                      SIGTERM                          Ctrl-C
    run(), wait() or endless iteration            it returns                       the same
    elsewhere in a `with` or `async with` block   SystemExit(143) ends the block   left to Python: KeyboardInterrupt

Before `run`, `wait` or an iteration returns, the delivered messages are finished. A pull consumer that you poll also
finishes them, and its next poll raises. A second signal does not wait: it raises SystemExit or KeyboardInterrupt at
once.

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

#: The exit code that shells report for a program that SIGTERM has ended.
EXIT_CODE: Final = 128 + signal.SIGTERM


def _never() -> bool:
    return False


class Signals:
    """The signals that one client handles. The main thread owns it."""

    def __init__(self, finish: Callable[[], bool] = _never) -> None:
        """FINISH is called at a signal. It lets the present call of the client end, or returns False if it cannot."""
        self._finish = finish
        #: The signal that was received; None: none.
        self.received: int | None = None
        self._leaving = False
        self._owes_exit = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def enter(self) -> None:
        """Handle SIGTERM from now on, until the end of the block `leaving`."""
        self._note_task()
        _SIGTERM.add(self)

    def _note_task(self) -> None:
        """Remember the current event loop and task, if any."""
        with suppress(RuntimeError):
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Do not interrupt this block, in which the client is closed; exit after it if there was a signal."""
        self._leaving = True
        try:
            yield
        finally:
            _SIGTERM.remove(self)
        if self._owes_exit:
            raise SystemExit(EXIT_CODE) from None

    @contextmanager
    def returning(self) -> Iterator[None]:
        """Handle Ctrl-C too within this block. `finish` has to end the block."""
        self._note_task()
        for watch in (_SIGTERM, _SIGINT):
            watch.add(self)
        try:
            yield
        finally:
            for watch in (_SIGTERM, _SIGINT):
                watch.remove(self)

    def check(self) -> None:
        """Raise SystemExit or KeyboardInterrupt if a signal was received."""
        if self.received is not None:
            _exit(self.received)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The running event loop of the block, on which signals have to be handled; None: no loop is running."""
        return self._loop if self._loop is not None and self._loop.is_running() else None

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that runs the block."""
        return self._task

    def finish(self, number: int) -> bool:
        """Let the block end by itself after signal NUMBER; return False if it cannot, or after an earlier signal."""
        if self.received is not None:
            return False
        if not self._leaving and not self._finish():
            return False
        self.received = number
        self._owes_exit = self._leaving
        return True

    def interrupt(self, number: int) -> None:
        """End the block at once after signal NUMBER: cancel its task, or raise."""
        if self.received is None and self._task is not None:
            self._owes_exit = True
            self._task.cancel()
            self.received = number
        else:
            self.received = number
            _exit(number)


def _exit(number: int) -> NoReturn:
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(EXIT_CODE)


class _Watch:
    """The handler of one signal. It is installed while there are blocks that handle the signal."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        #: The blocks, the innermost last.
        self._blocks: list[Signals] = []
        self._before: Any = None
        self._process = 0

    def add(self, one: Signals) -> None:
        """Add a block, unless the program has its own handler, or this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(self._number)
        if handler != self._handle:
            if not _is_pythons(handler):
                return
            self._before, self._process = handler, os.getpid()
            signal.signal(self._number, self._handle)
        self._blocks.append(one)

    def remove(self, one: Signals) -> None:
        """Remove a block; after the last one, restore the handler that was there before."""
        if one in self._blocks:
            self._blocks.reverse()
            self._blocks.remove(one)
            self._blocks.reverse()
        if (
            not self._blocks
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(self._number) == self._handle
        ):
            signal.signal(self._number, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._blocks or os.getpid() != self._process:
            self._as_before(number, frame)
        elif loops := {one.loop for one in self._blocks if one.loop is not None}:
            for loop in loops:
                loop.call_soon_threadsafe(self._end_tasks, loop)
        else:
            self._end_one([one for one in self._blocks if one.task is None])

    def _end_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        mine = [one for one in self._blocks if one.loop is loop]
        for task in {one.task for one in mine}:
            self._end_one([one for one in mine if one.task is task])

    def _end_one(self, nested: list[Signals]) -> None:
        """End the innermost block that can end by itself; if there is none, interrupt the innermost."""
        if not any(one.finish(self._number) for one in reversed(nested)) and nested:
            nested[-1].interrupt(self._number)

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        if callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _is_pythons(handler: Any) -> bool:
    """Return whether HANDLER is a default of Python. `asyncio.run` installs its own handler for Ctrl-C."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return isinstance(handler, partial) and handler.func.__module__ == "asyncio.runners"


_SIGTERM: Final = _Watch(signal.SIGTERM)
_SIGINT: Final = _Watch(signal.SIGINT)
