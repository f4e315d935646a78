"""What the faces of a client have in common: they are closed at the end of a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class AsyncFace:
    """A client for coroutines, which `async with` starts and closes."""

    async def start(self) -> None:
        """Get ready; `async with` does so."""
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Face:
    """A client for ordinary threads, which `with` closes."""

    def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
