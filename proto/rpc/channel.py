"""A channel to one server over HTTP/2, in plaintext or TLS. It connects on the first call, and again after a loss.

    async with Http2Channel("127.0.0.1:8081") as channel:
        ask = channel.unary_unary(path, Request.SerializeToString, Reply.FromString)
        reply = await ask(request, timeout=5.0)

All calls share one connection and wait while it is being made. If connecting fails, they fail with UNAVAILABLE and the
next call tries again. After GOAWAY or a loss, the next call makes a new connection. `channels.Channel` describes the
calls. Not thread-safe: a channel belongs to the event loop that first uses it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

from .channels import (
    CallFailed,
    ChannelClosed,
    Deserialize,
    HandshakeFailed,
    Metadata,
    Serialize,
    StatusCode,
)
from .client_calls import (
    CLOSED,
    ClientCall,
    ClientStreamCall,
    ClientUnaryCall,
    Status,
    decoded,
    too_large,
)
from .client_link import ClientLink, disagrees_on_tls, reason_of, too_many
from .hpack import Field, flaw_of
from .limits import ChannelLimits
from .messages import with_prefix

logger = logging.getLogger(__name__)

#: When a channel is closed, it waits this long for the server to read what is left.
_CLOSE_S: Final = 1.0
#: The default user agent of a channel.
USER_AGENT: Final = "python-http2"
#: grpc-timeout has up to eight digits.
_TIMEOUT_MS_MAX: Final = 99_999_999


class Http2Channel:
    """A channel to ADDRESS, "host:port". It is a `channels.Channel`."""

    def __init__(
        self,
        address: str,
        limits: ChannelLimits | None = None,
        user_agent: str = USER_AGENT,
        tls: ssl.SSLContext | None = None,
        metadata: Metadata | Callable[[], Metadata] = (),
    ) -> None:
        """METADATA is sent with each call: a constant, or a function that is called for each call."""
        self.address = address
        self._asked = metadata if callable(metadata) else None
        self._metadata = () if callable(metadata) else tuple(map(_field, metadata))
        self._tls = tls
        self._user_agent = user_agent
        self._limits = limits or ChannelLimits()
        self._link: ClientLink | None = None
        #: Connections that are not closed. All except `_link` are about to end.
        self._links: set[ClientLink] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[ClientCall] = []
        self._closed = False

    def unary_unary(
        self, path: str, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> _UnaryMethod:
        return _UnaryMethod(self, path, request_serializer, response_deserializer)

    def stream_stream(
        self, path: str, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> _StreamMethod:
        return _StreamMethod(self, path, request_serializer, response_deserializer)

    def fields(self, path: str) -> list[Field]:
        """Return the fields of the request head for PATH that are always the same."""
        return [
            (":method", "POST"),
            (":scheme", "https" if self._tls else "http"),
            (":path", path),
            (":authority", self.address),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", self._user_agent),
            *self._metadata,
        ]

    def asked_fields(self) -> list[Field]:
        """Return the further fields of the request head for a call that starts now."""
        return [] if self._asked is None else [_field(entry) for entry in self._asked()]

    @property
    def limits(self) -> ChannelLimits:
        """The channel's limits."""
        return self._limits

    def start(self, call: ClientCall) -> None:
        """Start CALL as soon as there is a connection. Raises ChannelClosed."""
        if self._closed:
            raise ChannelClosed
        link = self._link
        if link is not None and link.is_usable:
            link.begin(call)
            return
        if len(self._waiting) >= self._limits.waiting_max:
            call.end(too_many(self._limits))
            return
        self._waiting.append(call)
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(
                self._connect(), name=f"connect {self.address}"
            )

    async def _connect(self) -> None:
        link, reason, kind = None, "", CallFailed
        try:
            link = await self._reach()
        except OSError as error:
            reason = reason_of(error)
            if disagrees_on_tls(error):
                kind = HandshakeFailed
        finally:
            self._connecting = None
        waiting, self._waiting = self._waiting, []
        if link is None:
            for call in waiting:
                call.end(Status(StatusCode.UNAVAILABLE, f"failed to connect: {reason}", (), kind))
            return
        self._link = link
        self._links.add(link)
        link.closed.add_done_callback(lambda _: self._links.discard(link))
        self._restart(waiting)

    async def _reach(self) -> ClientLink:
        """Return a new connection; raise OSError if none can be made."""
        limits = self._limits
        try:
            async with asyncio.timeout(limits.connect_ms / 1000):
                link = await ClientLink.open(self.address, limits, self._leaving, self._tls)
        except TimeoutError:
            raise ConnectionError(f"no answer within {limits.connect_ms} ms") from None
        except OSError:
            raise
        except ValueError as error:
            raise ConnectionError(str(error)) from error
        except Exception as bug:  # Calls must not wait for a connection that failed.
            logger.exception("connecting failed address=%s", self.address)
            raise ConnectionError(f"internal error: {bug}") from bug
        if not link.is_usable:  # Another try would not help the calls that wait now.
            raise ConnectionError("the server accepts no calls")
        return link

    def _restart(self, calls: list[ClientCall]) -> None:
        for call in calls:
            if call.status is None:
                self.start(call)

    def _leaving(self, link: ClientLink) -> None:
        """Use a new connection for new calls, and for calls that LINK has not started."""
        if self._link is link:
            self._link = None
        waiting = link.take_waiting()
        if not self._closed:
            self._restart(waiting)

    async def close(self, grace: float | None = None) -> None:
        """End all calls, and close."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.end(CLOSED)
        links = list(self._links)
        for link in links:
            link.close()
        ends = [link.closed for link in links]
        if ends:
            await asyncio.wait(ends, timeout=_CLOSE_S)
        for link in list(self._links):
            link.abort()

    async def __aenter__(self) -> Http2Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Method:
    """A method at PATH of CHANNEL's server."""

    def __init__(
        self, channel: Http2Channel, path: str, serialize: Serialize, deserialize: Deserialize
    ) -> None:
        self._channel = channel
        self._fields = channel.fields(path)
        self._serialize = serialize
        self._deserialize = deserialize

    def _head(self, timeout: float | None, metadata: Metadata) -> list[Field]:
        """Return the fields of a call. Raises ValueError for invalid metadata."""
        fields = [*self._fields, *self._channel.asked_fields()]
        if timeout is not None:
            fields = [*fields, ("grpc-timeout", f"{_timeout_ms(timeout)}m")]
        if metadata:
            fields = [*fields, *map(_field, metadata)]
        return fields


class _UnaryMethod(_Method):
    """A unary method. It is a `channels.UnaryMethod`."""

    async def __call__(
        self, request: Any, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> Any:
        channel = self._channel
        data = self._serialize(request)
        if len(data) > channel.limits.message_bytes_max:
            raise too_large(len(data), channel.limits).failure()
        call = ClientUnaryCall(
            self._head(timeout, metadata), with_prefix(data), channel.limits, timeout
        )
        channel.start(call)
        return decoded(self._deserialize, await call.answer())


class _StreamMethod(_Method):
    """A bidirectional method. It is a `channels.StreamMethod`."""

    def __call__(
        self, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> ClientStreamCall:
        call = ClientStreamCall(
            self._head(timeout, metadata),
            self._serialize,
            self._deserialize,
            self._channel.limits,
            timeout,
        )
        self._channel.start(call)
        return call


def _timeout_ms(timeout_s: float) -> int:
    return min(max(int(timeout_s * 1000), 1), _TIMEOUT_MS_MAX)


def _field(entry: tuple[str, str | bytes]) -> Field:
    name, value = entry
    if isinstance(value, bytes):
        value = b64encode(value).rstrip(b"=").decode()
    flaw = flaw_of((name, value))
    if flaw is not None or name.startswith(":"):
        raise ValueError(flaw or f"{name[:64]!r} is not a valid name of metadata")
    return name, value


def connect(
    address: str,
    *,
    limits: ChannelLimits | None = None,
    user_agent: str = USER_AGENT,
    tls: ssl.SSLContext | None = None,
) -> Http2Channel:
    """Return a channel to ADDRESS, "host:port", for `async with`. It connects when it is first called.

    TLS is the context of handshakes (`Certificate.client_context`); None: plaintext.
    """
    return Http2Channel(address, limits, user_agent, tls)
