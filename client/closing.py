"""What `with` blocks of the client have in common: its faces are closed at their end, transactions decided.

Signals: what SIGTERM and Ctrl-C do to a program that uses clients in its main thread.

    where the main thread is                      SIGTERM                          Ctrl-C
    run(), wait() or endless iteration            it returns                       the same
    elsewhere in a `with` or `async with` block   SystemExit(143) ends the block   left to Python: KeyboardInterrupt

What returns finishes first what it has begun: messages that were handed out. A pull consumer that was polled finishes
them too, and its next poll raises. A second signal does not wait: it raises SystemExit or KeyboardInterrupt at once.

A handler is there while such a block is, and only where the program has none of its own; then what was there before is
restored. In other threads, and in processes forked meanwhile, nothing changes. Within a block a task of asyncio is
cancelled instead of raised in, and the block turns that into SystemExit.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Final, NoReturn, Self

from ..proto.facts import Facts

logger = logging.getLogger(__name__)


class AsyncBlock(ABC):
    """What is used in an `async with` block."""

    @abstractmethod
    async def _leave(self, error: BaseException | None) -> None:
        """End the block, which ERROR broke off; None: nothing did."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave(error)


class AsyncFace(AsyncBlock):
    """A client for coroutines, which `async with` closes."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    async def _leave(self, error: BaseException | None) -> None:
        await self.close()


class AsyncStartedFace(AsyncFace):
    """A client for coroutines, which `async with` starts and closes."""

    @abstractmethod
    async def start(self) -> None:
        """Get ready; `async with` does so."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self


class AsyncSignalledFace(AsyncStartedFace):
    """A client for coroutines, whose `async with` block SIGTERM ends."""

    _signals: Signals

    async def __aenter__(self) -> Self:
        await self.start()
        self._signals.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._signals.leaving():
            await self._leave(error)


class Block(ABC):
    """What is used in a `with` block."""

    @abstractmethod
    def _leave(self, error: BaseException | None) -> None:
        """End the block, which ERROR broke off; None: nothing did."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)


class Face(Block):
    """A client for ordinary threads, which `with` closes."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def _leave(self, error: BaseException | None) -> None:
        self.close()


class SignalledFace(Face):
    """A client for ordinary threads, whose `with` block SIGTERM ends, and which closes at the latest at exit."""

    _signals: Signals

    def _opened(self) -> None:
        """Have it closed at exit, if nobody does so before."""
        _open[self] = os.getpid()
        _close_with_multiprocessing()

    def _ended(self) -> None:
        _open.pop(self, None)

    def _close_at_exit(self) -> None:
        """Close: the program ends, whatever it was in the midst of."""
        self._leave(SystemExit())

    def __enter__(self) -> Self:
        self._signals.enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._signals.leaving():
            self._leave(error)


#: What is to be closed, by the process that opened it, in the order of opening.
_open: dict[SignalledFace, int] = {}


@atexit.register
def _close_all() -> None:
    for face, process in reversed(_open.copy().items()):
        # A forked process has the client, but not the thread that it runs on.
        if process == os.getpid():
            try:
                face._close_at_exit()
            except Exception as error:  # The edge: the others are to be closed too.
                facts = Facts(client=type(face).__name__, reason=repr(error))
                logger.warning("client not closed well at exit %s", facts)


#: The process in which multiprocessing was told.
_told_in = 0


def _close_with_multiprocessing() -> None:
    """Have what is open closed at the end of a process that multiprocessing has forked: `atexit` is passed over there,
    but not multiprocessing's own finalizers.
    """
    global _told_in
    util = sys.modules.get("multiprocessing.util")
    if util is None or _told_in == os.getpid():
        return
    if sys.modules["multiprocessing"].parent_process() is not None:
        _told_in = os.getpid()
        util.Finalize(None, _close_all, exitpriority=0)


# ---------------------------------------------------------------- signals


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

    # ------------------------------------------------------------ for the client

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

    # ------------------------------------------------------------ for the handlers

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
        """Have ONE hear it no more; behind the last one everything is as it was before."""
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
