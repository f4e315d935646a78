"""What the blocks of a producer (transactions, atomic commits) do by hand for ordinary threads."""

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
    """A `with` block that runs the block for coroutines on the clients' loop."""

    def __init__(self, core: Core, portal: LoopThread) -> None:
        """Producers make it."""
        self._core = core
        self._portal = portal

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self._portal.run(work)

    def __enter__(self) -> Self:
        self._run(self._core.begin())
        return self

    def _leave(self, error: BaseException | None) -> None:
        self._run(self._core.finish(error))
