"""The `with` blocks of clients, which close the client at their end, and the closing of clients at exit."""

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
    """Base class for objects of an `async with` block."""

    @abstractmethod
    async def _leave(self, error: BaseException | None) -> None:
        """Leave the block. ERROR: the exception that was raised in it, or None."""

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
        """Start the client. `async with` calls it."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self


class AsyncSignalledClient(AsyncStartedClient):
    """A client for coroutines. SIGTERM ends its `async with` block."""

    _signals: Signals

    async def __aenter__(self) -> Self:
        await self.start()
        self._signals.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._signals.leaving():
            await self._leave(error)


class Block(ABC):
    """Base class for objects of a `with` block."""

    @abstractmethod
    def _leave(self, error: BaseException | None) -> None:
        """Leave the block. ERROR: the exception that was raised in it, or None."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)


class Client(Block):
    """A client for threads, which `with` closes."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def _leave(self, error: BaseException | None) -> None:
        self.close()


class SignalledClient(Client):
    """A client for threads. SIGTERM ends its `with` block. It is closed at exit if it was not closed before."""

    _signals: Signals

    def _opened(self) -> None:
        """Close the client at exit if it is still open then."""
        _open[self] = os.getpid()
        _close_with_multiprocessing()

    def _ended(self) -> None:
        _open.pop(self, None)

    def _close_at_exit(self) -> None:
        """Close the client at exit, as after an error in its block."""
        self._leave(SystemExit())

    def __enter__(self) -> Self:
        self._signals.enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._signals.leaving():
            self._leave(error)


#: The open clients in the order of opening, with the id of the process that opened them.
_open: dict[SignalledClient, int] = {}


@atexit.register
def _close_all() -> None:
    for client, process in reversed(_open.copy().items()):
        # A forked process has the client, but not the thread of its event loop.
        if process == os.getpid():
            try:
                client._close_at_exit()
            except Exception as error:  # Close the other clients too.
                facts = Facts(client=type(client).__name__, reason=repr(error))
                logger.warning("client not closed at exit %s", facts)


#: Id of the process in which the finalizer is registered.
_registered_in = 0


def _close_with_multiprocessing() -> None:
    """Register a finalizer in a process of multiprocessing, which does not run the functions of `atexit`."""
    global _registered_in
    util = sys.modules.get("multiprocessing.util")
    if util is None or _registered_in == os.getpid():
        return
    if sys.modules["multiprocessing"].parent_process() is not None:
        _registered_in = os.getpid()
        util.Finalize(None, _close_all, exitpriority=0)
