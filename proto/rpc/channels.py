"""The interface of channels: calls and how they end, independent of the transport.

    channel = connect("127.0.0.1:8081")
    ask = channel.unary_unary("/package.Service/Method", Request.SerializeToString, Reply.FromString)
    reply = await ask(request, timeout=5.0)               # seconds

Names and signatures follow grpc.aio, as far as they are used here; `channel.py` implements them over HTTP/2. Errors:
`CallFailed`; asyncio.InvalidStateError for a write to a stream that has ended; CancelledError for a read from a stream
that this side cancelled.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

#: Pairs of keys in lower case and values. The values of keys in "-bin" are bytes.
Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
#: Converts a message to its bytes, and back.
Serialize: TypeAlias = Callable[[Any], bytes]
Deserialize: TypeAlias = Callable[[bytes], Any]


class StatusCode(enum.Enum):
    """How a call ended (gRPC's status codes)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class End(enum.Enum):
    """The type of `EOF`."""

    EOF = "eof"


#: The result of a read after a stream has ended without an error.
EOF: Final = End.EOF


class CallFailed(Exception):
    """A call has ended with a status that is not OK."""

    def __init__(self, code: StatusCode, details: str, trailing: Metadata = ()) -> None:
        super().__init__(code, details, trailing)
        self._code = code
        self._details = details
        self._trailing = trailing

    def __str__(self) -> str:
        return f"{self._code.name}: {self._details}"

    def code(self) -> StatusCode:
        """Return the status."""
        return self._code

    def details(self) -> str:
        """Return the server's message, or the reason why this side ended the call."""
        return self._details

    def trailing_metadata(self) -> Metadata:
        """Return the trailing metadata of the response."""
        return self._trailing


class HandshakeFailed(CallFailed):
    """The server and this side did not agree on TLS. A retry does not help; change the settings of one of them."""


class ChannelClosed(CallFailed):
    """The channel was closed before or during the call."""

    def __init__(self) -> None:
        super().__init__(StatusCode.CANCELLED, "the channel was closed")


class UnaryMethod(Protocol):
    """A unary method of a server."""

    def __call__(
        self, request: Any, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> Awaitable[Any]:
        """Return the answer to REQUEST, or give up after TIMEOUT seconds. Raises CallFailed."""
        ...


class StreamCall(Protocol):
    """An open stream in both directions. One task writes and one reads."""

    async def wait_for_connection(self) -> None:
        """Return once the server is connected; raise CallFailed if that fails."""
        ...

    async def write(self, message: Any) -> None:
        """Send MESSAGE; return when the server's windows have allowed it. Raises InvalidStateError, CallFailed."""
        ...

    def write_nowait(self, message: Any) -> bool:
        """Write MESSAGE if it can leave at once, and return whether it was written.

        Raises InvalidStateError, CallFailed. There must be no other writer.
        """
        ...

    async def done_writing(self) -> None:
        """End the request: no message follows."""
        ...

    async def read(self) -> Any:
        """Return the next message, or `EOF`. Raises CallFailed."""
        ...

    def deliver_to(self, take: Callable[[Any], None] | None) -> None:
        """Call TAKE with each message as it arrives, after those already received. None: messages wait for `read`.

        `read` reports the end.
        """
        ...

    def __aiter__(self) -> AsyncIterator[Any]:
        """Yield what `read` returns until the end."""
        ...

    def cancel(self) -> bool:
        """Cancel the stream; return False if it has ended."""
        ...

    def done(self) -> bool:
        """Has it ended?"""
        ...

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call CALLBACK with the call when it ends; at once if it has."""
        ...

    async def code(self) -> Any:
        """Return the status, once it has ended."""
        ...

    async def details(self) -> str | None:
        """Return the text of the status, once the stream has ended."""
        ...

    async def trailing_metadata(self) -> Any:
        """Wait for the end of the call and return its trailing metadata: pairs, like those of `CallFailed`."""
        ...


class StreamMethod(Protocol):
    """A bidirectional method of a server."""

    def __call__(self, *, timeout: float | None = None, metadata: Metadata = ()) -> StreamCall:
        """Open a stream. Raises ChannelClosed."""
        ...


class Channel(Protocol):
    """A connection to one server. It connects on first use, and on the first use after a loss."""

    def unary_unary(
        self, path: str, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> UnaryMethod:
        """Return the unary method at PATH."""
        ...

    def stream_stream(
        self, path: str, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> StreamMethod:
        """Return the bidirectional method at PATH."""
        ...

    async def close(self, grace: float | None = None) -> None:
        """End all calls, and close. GRACE is None."""
        ...

    async def __aenter__(self) -> Channel:
        """Return it."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        ...


#: Returns a channel to an address, "host:port".
Dial: TypeAlias = Callable[[str], Channel]
