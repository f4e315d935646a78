"""An EchoService behind a carrier, for as long as a test takes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc
import grpc.aio

from pocketmq.proto.rpc import Carrier, Certificate, Limits

from .calling import Caller
from .echo import EchoService
from .kinds import CarrierKind

#: Makes a carrier in the clear of tables, with limits.
Make = Callable[..., Carrier]
#: Serves on a free port, with limits, and connects to it.
Serving = Callable[..., AbstractAsyncContextManager[tuple[EchoService, Caller]]]
#: Serves over TLS with the last of a list of certificates, with limits, and tells the port.
Securing = Callable[..., AbstractAsyncContextManager[tuple[EchoService, int]]]


@asynccontextmanager
async def serve(
    make: Make, limits: Limits | None = None
) -> AsyncIterator[tuple[EchoService, Caller]]:
    """Serve on a free port and connect to it."""
    echo = EchoService()
    carrier = make([echo.methods()], limits)
    port = await carrier.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            yield echo, Caller(channel)
    finally:
        await carrier.stop(0)


@asynccontextmanager
async def secure(
    kind: CarrierKind, shown: list[Certificate], limits: Limits | None = None
) -> AsyncIterator[tuple[EchoService, int]]:
    """Serve over TLS, at each handshake with the last certificate in SHOWN."""
    echo = EchoService()
    carrier = kind.secure([echo.methods()], limits or Limits(), lambda: shown[-1])
    port = await carrier.start("127.0.0.1", 0)
    try:
        yield echo, port
    finally:
        await carrier.stop(0.1)
