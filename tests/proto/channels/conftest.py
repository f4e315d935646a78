"""The channel under test, to each carrier in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from pocketmq.proto.rpc import Limits
from pocketmq.proto.rpc.channel import Http2Channel

from ..carriers.echo import EchoService
from ..carriers.kinds import CARRIERS, CarrierKind

#: Serves on a free port, with limits, and dials it.
Dialling = Callable[..., AbstractAsyncContextManager[tuple[EchoService, Http2Channel]]]


@pytest.fixture(params=CARRIERS, ids=lambda kind: f"{kind.name} server")
def kind(request: pytest.FixtureRequest) -> CarrierKind:
    found: CarrierKind = request.param
    return found


@pytest.fixture
def dialling(kind: CarrierKind) -> Dialling:
    """Return what serves an EchoService and opens a channel to it."""

    @asynccontextmanager
    async def serve(
        limits: Limits | None = None,
    ) -> AsyncIterator[tuple[EchoService, Http2Channel]]:
        echo = EchoService()
        carrier = kind.plain([echo.methods()], limits=limits or Limits())
        port = await carrier.start("127.0.0.1", 0)
        try:
            async with Http2Channel(f"127.0.0.1:{port}") as channel:
                yield echo, channel
        finally:
            await carrier.stop(0)

    return serve
