"""One connection of a client to its server over HTTP/2.

All data written in one turn of the event loop is sent in one write. A server that is silent during calls is probed with
PING. After its GOAWAY, open calls continue and new ones use another connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import ssl
from collections import deque
from collections.abc import Callable
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any, Final

from .channels import StatusCode
from .client_calls import CLOSED, ClientCall, Status
from .connection import ClientConnection
from .frames import ErrorCode
from .incoming import (
    ClientEvent,
    ConnectionEnded,
    DataReceived,
    Drained,
    GoAwayReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from .limits import ChannelLimits
from .listening import PORT_MAX

logger = logging.getLogger(__name__)

#: Bytes of one read.
READ_BYTES: Final = 256 * 1024
#: When this much waits in the transport, bodies wait in their streams instead.
WRITE_BYTES: Final = 256 * 1024
_ALIVE: Final = b"alive?  "
#: The first byte of TLS records that a server may begin with: alerts, handshakes.
_TLS_RECORDS: Final = (0x15, 0x16)
#: Plain words for those errors of OpenSSL that an operator can fix.
_TLS_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "the server speaks plaintext at this port: connect without TLS",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server requires a client certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the server does not trust the client certificate: unknown authority",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client certificate has expired",
}
#: After this time without an answer, another address of the name is tried in parallel (RFC 8305 §5).
_NEXT_ADDRESS_S: Final = 0.25


class ClientLink(asyncio.BufferedProtocol):
    """A connection to a server. The event loop owns it."""

    def __init__(
        self, limits: ChannelLimits, leaving: Callable[[ClientLink], None], *, is_secure: bool
    ) -> None:
        """LEAVING is called when new calls must use another connection. IS_SECURE: the connection uses TLS."""
        self._limits = limits
        self._leaving = leaving
        self._loop = asyncio.get_running_loop()
        self._http2 = ClientConnection(limits.connection, self._now_ms())
        self._is_secure = is_secure
        self._has_heard = False
        self._transport: Any = None
        self._view = memoryview(bytearray(READ_BYTES))
        self._calls: dict[int, ClientCall] = {}
        #: Calls for which the server has no stream yet.
        self._waiting: deque[ClientCall] = deque()
        self._is_handling = False
        self._is_dirty = False
        self._told_leaving = False
        self._heard_ms = self._now_ms()
        #: Was a PING sent since the server last sent anything?
        self._asked = False
        self._look_later = self._loop.call_later(limits.keepalive_ms / 1000, self._look)
        #: The reason of the end, if this side knows it better than the socket.
        self._reason = ""
        self._ready: asyncio.Future[None] = self._loop.create_future()
        #: Done when the connection has ended.
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        address: str,
        limits: ChannelLimits,
        leaving: Callable[[ClientLink], None],
        tls: ssl.SSLContext | None = None,
    ) -> ClientLink:
        """Return a connection to ADDRESS, "host:port", once its settings have arrived. Raises OSError, ValueError."""
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) <= PORT_MAX):
            raise ValueError(f"{address[:60]!r} is not host:port")
        host = host.strip("[]")
        loop = asyncio.get_running_loop()
        # If the parallel attempts are cancelled, a socket can stay open. Only asyncio's own loops support them: with
        # uvloop, one address is tried after the other.
        race: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop) and not _is_address(host):
            race["happy_eyeballs_delay"] = _NEXT_ADDRESS_S
        transport, link = await loop.create_connection(
            lambda: cls(limits, leaving, is_secure=tls is not None),
            host,
            int(port),
            ssl=tls,
            **race,
        )
        try:
            await link._ready
        except BaseException:
            transport.abort()
            raise
        return link

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        # Without it, small messages wait 40 ms for an acknowledgement of the peer.
        self._transport.get_extra_info("socket").setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        # A memoryview: asyncio's TLS reads each record into a slice of it. Slices of a bytearray are copies.
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._on_bytes(bytes(self._view[:nbytes]))
        except Exception as bug:  # An unexpected error ends only its own connection.
            self._fail(bug)

    def _fail(self, bug: Exception) -> None:
        logger.error("connection failed", exc_info=bug)
        self._reason = "internal error"
        self._transport.abort()

    def pause_writing(self) -> None:
        self._http2.pause()

    def resume_writing(self) -> None:
        self._http2.resume()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look_later.cancel()
        reason = self._reason or (reason_of(exc) if exc is not None else "the server closed it")
        said_nothing = exc is None or isinstance(exc, ConnectionResetError)
        if said_nothing and not (self._ready.done() or self._is_secure or self._has_heard):
            reason += " without an answer: does it accept only TLS?"
        if not self._ready.done():
            # A server that requires another certificate says so after this side has finished the handshake (TLS 1.3).
            told = exc if isinstance(exc, ssl.SSLError) else ConnectionError(reason)
            self._ready.set_exception(told)
        self._tell_leaving()
        self._end_all(Status(StatusCode.UNAVAILABLE, f"the connection was lost: {reason}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _on_bytes(self, data: bytes) -> None:
        now_ms = self._now_ms()
        self._heard_ms, self._has_heard = now_ms, True
        if not (self._is_secure or self._ready.done()) and data[0] in _TLS_RECORDS:
            self._refused_plaintext()
            return
        if self._asked:
            self._asked = False
            self._look_in(self._limits.keepalive_ms)
        self._is_handling = True
        try:
            self._handle(self._http2.receive(data, now_ms))
        finally:
            self._is_handling = False
        if not self._ready.done() and self._http2.is_ready:
            self._ready.set_result(None)
        self.flush()

    def _handle(self, events: list[ClientEvent]) -> None:
        for event in events:
            kind = type(event)
            if kind is GoAwayReceived or kind is ConnectionEnded:
                self._on_end(event)
                continue
            call = self._calls.get(getattr(event, "stream_id", 0))
            if call is not None:
                self._tell(call, event)
        if self._waiting:
            self._open_waiting()

    def _tell(self, call: ClientCall, event: ClientEvent) -> None:
        """Pass EVENT to CALL. A call that it ends is forgotten first, because there is nothing to reset."""
        match event:
            case DataReceived():
                self._http2.earn()
                if event.ended:
                    del self._calls[event.stream_id]
                call.on_data(event.data, ended=event.ended)
            case ResponseReceived():
                if event.ended:
                    del self._calls[event.stream_id]
                call.on_head(event.status, event.fields, ended=event.ended)
            case TrailersReceived():
                del self._calls[event.stream_id]
                call.on_trailers(event.fields)
            case StreamReset():
                if event.by_peer:
                    del self._calls[event.stream_id]
                    call.on_reset(event.code)
                elif not self._http2.ended:  # Else all of them end alike.
                    del self._calls[event.stream_id]
                    call.end(Status(StatusCode.INTERNAL, "the answer violates HTTP/2"))
            case Drained():
                call.on_drained()

    def _on_end(self, event: ClientEvent) -> None:
        """Make new calls use another connection: the server sent GOAWAY, or violated HTTP/2."""
        if isinstance(event, GoAwayReceived):
            if event.code == ErrorCode.INADEQUATE_SECURITY and not self._ready.done():
                self._refused_plaintext()
            self._reason = event.reason or f"GOAWAY with code {event.code}"
        elif isinstance(event, ConnectionEnded):
            self._reason = f"the server violates HTTP/2: {event.reason}"
            self._end_all(Status(StatusCode.UNAVAILABLE, self._reason))
        self._tell_leaving()

    def _refused_plaintext(self) -> None:
        """End the connection: the server accepts only TLS."""
        self._ready.set_exception(
            ssl.SSLError(1, "the server accepts no plaintext at this port: connect with TLS")
        )
        self._transport.abort()

    def _end_all(self, status: Status) -> None:
        calls, self._calls = self._calls, {}
        waiting, self._waiting = self._waiting, deque()
        for call in (*calls.values(), *waiting):
            call.end(status)

    def _tell_leaving(self) -> None:
        if not self._told_leaving:
            self._told_leaving = True
            self._leaving(self)

    def schedule_flush(self) -> None:
        """Flush at the end of this turn of the loop."""
        if not (self._is_handling or self._is_dirty):
            self._is_dirty = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        try:
            self.flush()
        except Exception as bug:  # As in `buffer_updated`.
            self._fail(bug)

    def flush(self) -> None:
        """Write all pending bytes to the transport, as far as it accepts them."""
        self._is_dirty = False
        http2, transport = self._http2, self._transport
        while not transport.is_closing():
            data = http2.take()
            if data:
                transport.write(data)
            events = http2.events()
            if events:
                self._handle(events)
            elif not http2.has_more:
                break
        if http2.ended or (http2.is_going_away and not self._calls):
            transport.close()

    @property
    def is_usable(self) -> bool:
        """Can calls start on this connection?"""
        return not (self._told_leaving or self._http2.is_going_away or self._transport.is_closing())

    def begin(self, call: ClientCall) -> None:
        """Start CALL, or let it wait until the server accepts one more."""
        if self._http2.can_open:
            self._open(call)
        elif len(self._waiting) < self._limits.waiting_max:
            self._waiting.append(call)
        else:
            call.end(too_many(self._limits))

    def _open(self, call: ClientCall) -> None:
        stream_id = self._http2.open(call.fields, call.body)
        self._calls[stream_id] = call
        call.begin(self, stream_id)
        self.schedule_flush()

    def _open_waiting(self) -> None:
        while self._waiting and self._http2.can_open:
            call = self._waiting.popleft()
            if call.status is None:
                self._open(call)

    def take_waiting(self) -> list[ClientCall]:
        """Return the calls that have not started, for use on another connection."""
        waiting, self._waiting = self._waiting, deque()
        return [call for call in waiting if call.status is None]

    def send(self, stream_id: int, data: bytes) -> bool:
        """Write DATA of a request's body; return whether all of the stream was sent. If not, `on_drained` follows."""
        self._http2.send_data(stream_id, data)
        self.schedule_flush()
        if not self._http2.queued_of(stream_id):
            return True
        self._http2.tell_below(stream_id, 1)
        return False

    def queued_of(self, stream_id: int) -> int:
        """Bytes of STREAM_ID that wait for a window."""
        return self._http2.queued_of(stream_id)

    def send_end(self, stream_id: int) -> None:
        """End the request after its body."""
        self._http2.send_end(stream_id)
        self.schedule_flush()

    def hold(self, stream_id: int) -> None:
        """Stop the server from sending more on STREAM_ID than it already may."""
        self._http2.hold(stream_id)

    def release(self, stream_id: int) -> None:
        """Undo `hold`."""
        self._http2.release(stream_id)
        self.schedule_flush()

    def forget(self, stream_id: int, code: ErrorCode) -> None:
        """Reset STREAM_ID with CODE, if the server has not ended it."""
        if self._calls.pop(stream_id, None) is not None:
            self._http2.reset(stream_id, code)
            if self._waiting:
                self._open_waiting()
            self.schedule_flush()

    def _look_in(self, wait_ms: int) -> None:
        self._look_later.cancel()
        self._look_later = self._loop.call_later(wait_ms / 1000, self._look)

    def _look(self) -> None:
        limits = self._limits
        silent_ms = self._now_ms() - self._heard_ms
        if self._asked:
            self._reason = f"the server was silent for {silent_ms} ms"
            self._transport.abort()
        elif silent_ms < limits.keepalive_ms:
            self._look_in(limits.keepalive_ms - silent_ms)
        elif self._calls:
            self._asked = True
            self._http2.ping(_ALIVE)
            self.flush()
            self._look_in(limits.keepalive_timeout_ms)
        else:
            self._look_in(limits.keepalive_ms)

    def close(self) -> None:
        """End all calls, send GOAWAY, and close. `closed` is set when that is done."""
        for call in (*self._calls.values(), *self._waiting):
            call.end(CLOSED)
        self._http2.end(ErrorCode.NO_ERROR, "closed by the client")
        self._http2.events()
        self.flush()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()


def _is_address(host: str) -> bool:
    """Is HOST an IP address (and not a name)?"""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def too_many(limits: ChannelLimits) -> Status:
    """Return the status of a call beyond the channel's limit."""
    return Status(
        StatusCode.RESOURCE_EXHAUSTED,
        f"{limits.waiting_max} calls already wait for this server (the limit): send fewer at once",
    )


def disagrees_on_tls(error: Exception) -> bool:
    """Will a retry fail with ERROR again, because the TLS settings of the two sides do not fit?"""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)


def reason_of(error: Exception) -> str:
    """Return the reason of ERROR: that of TLS, or that of the operating system if asyncio wraps it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None) or ""
        return (
            f"TLS failed: {_TLS_REASONS.get(reason) or reason.lower().replace('_', ' ') or error}"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error) or type(error).__name__
