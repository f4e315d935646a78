"""The `with` blocks of clients, which close a client at their end, and what closes it at exit."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from abc import ABC, abstractmethod
from typing import Self

from ..proto.facts import Facts
from .signals import Signals

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


class AsyncClient(AsyncBlock):
    """A client for coroutines, which `async with` closes."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    async def _leave(self, error: BaseException | None) -> None:
        await self.close()


class AsyncStartedClient(AsyncClient):
    """A client for coroutines, which `async with` starts and closes."""

    @abstractmethod
    async def start(self) -> None:
        """Get ready; `async with` does so."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self


class AsyncSignalledClient(AsyncStartedClient):
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


class Client(Block):
    """A client for ordinary threads, which `with` closes."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def _leave(self, error: BaseException | None) -> None:
        self.close()


class SignalledClient(Client):
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
_open: dict[SignalledClient, int] = {}


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
