"""Our own carrier with an EchoService, for tests that abuse it, and what must be left of an abuse: nothing."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final

from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.rpc import Limits
from pocketmq.proto.rpc.connection import ServerConnection
from pocketmq.proto.rpc.conversation import ServerConversation
from pocketmq.proto.rpc.messages import MessageReader
from pocketmq.proto.rpc.server_calls import ServerStreamCall, ServerUnaryCall
from pocketmq.proto.rpc.streams import Http2Stream

from ..carriers.echo import REPLY, RUN, EchoService
from .peer import Peer

#: What a connection, or a call on it, is to the server.
_OWNED: Final = (
    ServerConnection,
    ServerConversation,
    Http2Stream,
    ServerUnaryCall,
    ServerStreamCall,
    MessageReader,
)
_TURNS: Final = 20_000

LATER: Final = RUN(topic="later").SerializeToString()
PLAIN: Final = RUN(run_id=1).SerializeToString()


class Stage:
    """A carrier that is served, and its handlers."""

    def __init__(self, carrier: Http2Carrier, echo: EchoService, port: int) -> None:
        self.carrier = carrier
        self.echo = echo
        self.port = port

    @contextmanager
    def standing_clock(self) -> Iterator[None]:
        """No time passes for the server, however slow the machine is: time gives nothing back."""
        carrier, loops = self.carrier, self.carrier.now_ms
        stands_ms = loops()
        carrier.now_ms = carrier.served.now_ms = lambda: stands_ms
        try:
            yield
        finally:
            carrier.now_ms = carrier.served.now_ms = loops

    async def until_arrived(self, calls: int) -> None:
        """Return when handlers have got CALLS calls."""
        await turns(lambda: len(self.echo.calls) >= calls)

    async def serves_others(self) -> None:
        """Assert that another connection is served."""
        async with Peer.open(self.port) as honest:
            answer = await honest.answer(honest.call("/test.Echo/Plain", PLAIN))
            assert [REPLY.FromString(one).run_id for one in answer.messages] == [1]

    async def is_empty(self) -> None:
        """Assert that no connection is left, no call, no task, and nothing half sent; tests hold no call either."""
        await turns(lambda: self.carrier.connections == 0)
        assert self.carrier.served.half_sent == 0
        await turns(lambda: len(asyncio.all_tasks()) == 1)
        # The thread that inflates has answered before it lets go of what it worked on.
        await turns(lambda: self.owned() == {})

    def owned(self) -> dict[str, int]:
        """Return how many objects the server has of those that belong to connections."""
        for kept in (self.echo.calls, self.echo.streams, self.echo.receivers):
            kept.clear()
        gc.collect()
        found = (type(one).__name__ for one in gc.get_objects() if isinstance(one, _OWNED))
        return dict(Counter(found))


async def turns(condition: Callable[[], bool]) -> None:
    """Return when turns of the loop have made CONDITION true."""
    for _ in range(_TURNS):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not become true")


@asynccontextmanager
async def staged(
    limits: Limits | None = None, *, half_sent_ms: int = 10_000, **options: Any
) -> AsyncIterator[Stage]:
    """Serve on a free port; at the end there is nothing left of what came."""
    echo = EchoService()
    carrier = Http2Carrier([echo.methods()], limits=limits, **options)
    carrier.connection_limits = replace(carrier.connection_limits, half_sent_ms=half_sent_ms)
    port = await carrier.start("127.0.0.1", 0)
    gc.freeze()  # What is there already is not looked through again and again.
    stage = Stage(carrier, echo, port)
    try:
        yield stage
        await stage.serves_others()
        await stage.is_empty()
    finally:
        gc.unfreeze()
        await carrier.stop(0)
