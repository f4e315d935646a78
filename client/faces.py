"""What `with` blocks of the client have in common: its faces are closed at their end, transactions decided."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class AsyncBlock(ABC):
    """What is used in an `async with` block."""

    @abstractmethod
    async def _leave(self, error: BaseException | None) -> None:
        """End the block, which ERROR broke off; None: nothing did."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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


class Block(ABC):
    """What is used in a `with` block."""

    @abstractmethod
    def _leave(self, error: BaseException | None) -> None:
        """End the block, which ERROR broke off; None: nothing did."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(error)


class Face(Block):
    """A client for ordinary threads, which `with` closes."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def _leave(self, error: BaseException | None) -> None:
        self.close()
