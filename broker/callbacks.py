"""Waiting for what calls back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..proto.errors import PocketMQError


async def ended(begin: Callable[[Callable[[PocketMQError | None], None]], None]) -> None:
    """Call BEGIN with what to call at the end; return then, or raise the error it is called with."""
    ended: asyncio.Future[PocketMQError | None] = asyncio.get_running_loop().create_future()

    def end(error: PocketMQError | None) -> None:
        if not ended.done():  # Who waited may have been cancelled.
            ended.set_result(error)

    begin(end)
    if (error := await ended) is not None:
        raise error
