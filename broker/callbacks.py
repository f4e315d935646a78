"""Functions that call back with None or an error: await one, or call several one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from ..proto.errors import PocketMQError

#: Called with None once something is done or safe, or with the error.
Safe: TypeAlias = Callable[[PocketMQError | None], None]
#: Begins something that calls back.
Step: TypeAlias = Callable[[Safe], None]


def in_turn(done: Safe, *steps: Step) -> None:
    """Call STEPS one after the other. Call DONE with None after the last one, or with the first error."""
    if not steps:
        done(None)
        return
    steps[0](lambda error: in_turn(done, *steps[1:]) if error is None else done(error))


async def ended(begin: Step) -> None:
    """Call BEGIN with a callback. Return when it is called with None; raise the error that it is called with."""
    ended: asyncio.Future[PocketMQError | None] = asyncio.get_running_loop().create_future()

    def end(error: PocketMQError | None) -> None:
        if not ended.done():  # The caller may have been cancelled.
            ended.set_result(error)

    begin(end)
    if (error := await ended) is not None:
        raise error
