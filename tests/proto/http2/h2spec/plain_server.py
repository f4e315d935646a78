"""The HTTP/2 core behind a server of plain HTTP: every request is answered once it is whole.

h2spec speaks no gRPC. It wants an answer with a body at the request's end, and would take an earlier refusal for a
mistake. It also takes it that a frame has 16 KiB at most, whatever the server says.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from pocketmq.proto.rpc.connection import ServerConnection
from pocketmq.proto.rpc.hpack import literal
from pocketmq.proto.rpc.incoming import (
    ConnectionEnded,
    DataReceived,
    Event,
    RequestReceived,
    RequestTooLarge,
)
from pocketmq.proto.rpc.limits import ConnectionLimits

_HEAD: Final = literal(":status", "200") + literal("content-type", "text/plain")
_BODY: Final = b"PocketMQ"
_LIMITS: Final = ConnectionLimits(frame_bytes_max=16_384)


class _Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._http2 = ServerConnection(_LIMITS, self._now_ms())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._write()

    def data_received(self, data: bytes) -> None:
        ended = False
        for event in self._http2.receive(data, self._now_ms()):
            ended = ended or isinstance(event, ConnectionEnded)
            stream = _asked(event)
            if stream is not None:
                self._http2.send_headers(stream, _HEAD)
                self._http2.send_data(stream, _BODY)
                self._http2.send_end(stream, None)
        self._write()
        if ended:
            self._transport.close()

    def _write(self) -> None:
        while data := self._http2.take():
            self._transport.write(data)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


def _asked(event: Event) -> int | None:
    """Return the stream whose request EVENT completes."""
    match event:
        case (
            RequestReceived(stream, _, ended=True)
            | RequestTooLarge(stream, ended=True)
            | DataReceived(stream, _, ended=True)
        ):
            return stream
    return None


@asynccontextmanager
async def plain_server(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serve on a free port, over TLS if there is a context for it."""
    loop = asyncio.get_running_loop()
    async with await loop.create_server(_Answering, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]
