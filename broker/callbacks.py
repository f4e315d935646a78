"""Await functions that call back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..proto.errors import PocketMQError


async def ended(begin: Callable[[Callable[[PocketMQError | None], None]], None]) -> None:
    """Call BEGIN with a callback. Return when it is called with None; raise the error that it is called with."""
    ended: asyncio.Future[PocketMQError | None] = asyncio.get_running_loop().create_future()

    def end(error: PocketMQError | None) -> None:
        if not ended.done():  # The caller may have been cancelled.
            ended.set_result(error)

    begin(end)
    if (error := await ended) is not None:
        raise error
