"""What `with` blocks of the client have in common: its faces are closed at their end, transactions decided."""

from __future__ import annotations

import atexit
import logging
import os
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
