"""The hand-written part of transactions and atomic commits for threads."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Generic, Protocol, Self, TypeVar

from ..lifecycle import Block
from ..loop_thread import LoopThread


class _Core(Protocol):
    async def begin(self) -> None: ...
    async def finish(self, error: BaseException | None) -> None: ...


Core = TypeVar("Core", bound=_Core)
Value = TypeVar("Value")


class ThreadBlock(Block, Generic[Core]):
    """A `with` block that runs an `async with` block, the core, on the clients' event loop."""

    def __init__(self, core: Core, portal: LoopThread) -> None:
        """Use the methods of the producer instead."""
        self._core = core
        self._portal = portal

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self._portal.run(work)

    def __enter__(self) -> Self:
        self._run(self._core.begin())
        return self

    def _leave(self, error: BaseException | None) -> None:
        self._run(self._core.finish(error))
