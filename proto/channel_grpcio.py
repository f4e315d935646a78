"""A client's channel on `grpc.aio`: the only module of a client that imports grpc, which takes a tenth of a second.

What grpc.aio raises becomes what `channels.py` says. grpc.aio breaks a stream that two tasks write to at once, and
sometimes says only that a stream has ended and not how, which is asked for here then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio

from .channels import (
    EOF,
    CallFailed,
    ChannelClosed,
    Deserialize,
    Metadata,
    Serialize,
    StatusCode,
)

_GRPC_EOF: Final[object] = getattr(grpc.aio, "EOF")  # noqa: B009 (the stubs lack it)
#: One message, in either direction: beyond a fetch, which brings at least one record of up to 4 MiB and 64 KiB.
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Bounds one attempt to connect, whatever its name says.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


def _code(code: grpc.StatusCode) -> StatusCode:
    return StatusCode[code.name]


def _failure(error: grpc.aio.AioRpcError) -> CallFailed:
    trailing: Any = error.trailing_metadata()
    return CallFailed(_code(error.code()), error.details() or "", tuple(trailing or ()))


class GrpcioChannel:
    """A channel to ADDRESS, "host:port". It is a `channels.Channel`."""

    def __init__(self, address: str) -> None:
        self._channel: Any = grpc.aio.insecure_channel(address, options=_OPTIONS)

    def unary_unary(
        self, path: str, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> _UnaryMethod:
        return _UnaryMethod(
            self._channel.unary_unary(path, request_serializer, response_deserializer)
        )

    def stream_stream(
        self, path: str, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> _BidiMethod:
        return _BidiMethod(
            self._channel.stream_stream(path, request_serializer, response_deserializer)
        )

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    async def __aenter__(self) -> GrpcioChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _UnaryMethod:
    """A unary method. It is a `channels.UnaryMethod`."""

    def __init__(self, method: Any) -> None:
        self._method = method

    async def __call__(
        self, request: Any, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> Any:
        try:
            return await self._method(request, timeout=timeout, metadata=metadata or None)
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from None
        except grpc.aio.UsageError:
            raise ChannelClosed from None


class _BidiMethod:
    """A bidirectional method. It is a `channels.StreamMethod`."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __call__(self, *, timeout: float | None = None, metadata: Metadata = ()) -> _BidiCall:
        try:
            return _BidiCall(self._method(timeout=timeout, metadata=metadata or None))
        except grpc.aio.UsageError:
            raise ChannelClosed from None


class _BidiCall:
    """A stream. It is a `channels.StreamCall`."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def wait_for_connection(self) -> None:
        try:
            await self._call.wait_for_connection()
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from None

    async def write(self, message: Any) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from None

    async def done_writing(self) -> None:
        await self._call.done_writing()

    async def read(self) -> Any:
        try:
            message = await self._call.read()
            if message is not _GRPC_EOF:
                return message
            code = await self._call.code()
            if code is grpc.StatusCode.OK:
                return EOF
            trailing = tuple(await self._call.trailing_metadata() or ())
            raise CallFailed(_code(code), await self._call.details() or "", trailing)
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from None

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    def cancel(self) -> bool:
        return bool(self._call.cancel())

    def done(self) -> bool:
        return bool(self._call.done())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.add_done_callback(lambda _: callback(self))

    async def code(self) -> StatusCode:
        return _code(await self._call.code())

    async def details(self) -> str | None:
        details: str | None = await self._call.details()
        return details
