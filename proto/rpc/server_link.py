"""One connection of a server: first byte, TLS, HTTP/2 or a plain HTTP request, and time limits.

    0x16       a TLS handshake, and then one of the others
    'PR'       HTTP/2
    'G', 'H', 'PO'   plain HTTP requests: answered by the server's page
    else       another protocol, if the server speaks one (other_protocol.py); otherwise closed

All responses to one read are sent in one write. A peer that does not read its responses is not read from either.
Bytes pass through `TlsTransport` (tls_transport.py), and silent peers are closed (keepalive.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any, Final, Protocol

from .carrier import ConnectionFigures
from .connection import ServerConnection
from .conversation import NO_CALLS, ServerConversation
from .deadlines import Deadline, Deadlines
from .frames import ErrorCode, goaway, settings
from .http1_requests import HttpRefused, RequestReader, head_of
from .incoming import PingAnswered
from .keepalive import Keepalive
from .limits import ConnectionLimits, Limits
from .listening import address_of
from .other_protocol import SILENT_MS, OtherConversation, OtherProtocol
from .pages import BUSY, HttpResponse, PageCalls, PageRequest
from .served import Served
from .tls_transport import TlsTransport

logger = logging.getLogger(__name__)


def loop_ms() -> int:
    """Return the running loop's time, the clock of servers and their connections."""
    return int(asyncio.get_running_loop().time() * 1000)


class LinkOwner(Protocol):
    """The shared state of all connections. Its event loop, LOOP, owns it and them."""

    loop: asyncio.AbstractEventLoop
    #: The context of one read.
    reading: AbstractContextManager[None]
    limits: Limits
    connection_limits: ConnectionLimits
    served: Served
    #: The other protocol of the port, if it has one.
    other: OtherProtocol | None
    deadlines: Deadlines
    #: Is there a certificate to show?
    is_secure: bool
    #: Is plaintext refused?
    secure_only: bool
    #: All connections read into this buffer, and empty it at once. VIEW is the beginning of LARGE_VIEW.
    view: memoryview
    large_view: memoryview
    #: Returns the loop's time.
    now_ms: Callable[[], int]

    def age_ms(self) -> int:
        """Return the maximum age of a new connection; 0: no limit."""
        ...

    async def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of a new handshake; None if there is none."""
        ...

    def handshake_failed(self, peer: str, error: ssl.SSLError) -> None:
        """Note a failed TLS handshake with PEER."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> Any:
        """Run WORK as a task. A stop cancels it."""
        ...

    def closed(self, number: int, reason: str) -> None:
        """Forget connection NUMBER, which has ended for REASON."""
        ...


#: Time limit for the first bytes, and for the head of a plain request.
FIRST_BYTES_MS: Final = 10_000
#: Time limit for the rest of the output after the end.
LAST_BYTES_MS: Final = 10_000
#: Interval between checks of time limits.
CHECK_MS: Final = 1_000
#: Maximum time between the two GOAWAY frames of an end: calls already under way arrive meanwhile.
REFUSE_MS: Final = 1_000
#: When this many bytes wait in the transport, bodies wait in their streams, and the peer is not read.
WRITE_BYTES: Final = 256 * 1024
#: Bytes that a peer may send after the end; they are discarded.
_DISCARDED_BYTES_MAX: Final = 1024 * 1024
#: From this many bytes per event on, more is read at once: bodies are large. With many small calls, larger reads would
#: delay other connections.
LARGE_BYTES: Final = 2 * 1024
#: Maximum silence between two requests for pages.
IDLE_MS: Final = 60_000
_TLS: Final = 0x16
_HTTP2: Final = b"PR"
_HTTP: Final = (b"G", b"H", b"PO")
#: Answers to plaintext where TLS is required, by its first bytes; and to TLS where there is none: these bytes are not
#: TLS, so that every client notices.
_NO_PLAINTEXT: Final = {
    _HTTP2: settings({}) + goaway(0, ErrorCode.INADEQUATE_SECURITY, "this port accepts only TLS"),
    **dict.fromkeys(_HTTP, b"HTTP/1.1 400 Bad Request\r\n\r\nthis port accepts only TLS\n"),
}
_NO_TLS: Final = b"HTTP/1.1 400 Bad Request\r\n\r\nthis port takes plaintext alone\n"
_ALIVE: Final = b"alive?  "
_LEAVING: Final = b"leaving "


class ServerLink(asyncio.BufferedProtocol):
    """A connection from its first byte to its last. The server's event loop owns it."""

    def __init__(self, server: LinkOwner, number: int) -> None:
        """NUMBER is its id; 0: the server has reached its limit of connections."""
        self._server, self._number = server, number
        self._transport: Any = None
        self._wire: TlsTransport
        self._take: Callable[[bytes], None] = self._on_first_bytes
        self._first = b""
        self._http2: ServerConnection | None = None
        self._other: OtherConversation | None = None
        self.conversation: ServerConversation | None = None
        self._is_handling = self._is_dirty = self._brings_much = False
        self._limit: Deadline | None = None
        self._check: Deadline | None = None
        self._check_at_ms = 0
        self._keepalive: Keepalive | None = None
        self._age: Deadline | None = None
        self._is_leaving = False
        self._http1: RequestReader
        #: Prepares the response to a plain request, or sends events. Meanwhile no further request is read.
        self._answering: asyncio.Task[None] | None = None
        #: Does so much output wait that nothing is read?
        self._is_full = False
        self._sends_body = False
        self._body_pages: PageCalls
        self._discarded = 0
        self._leaving_because = ""
        #: The reason of its end, one of a few constants.
        self.end_reason = "closed by the peer"
        self.peer = ""
        self._opened_ms = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._wire = TlsTransport(transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        # asyncio does so only for some sockets. Without it, small answers wait 40 ms for an acknowledgement.
        self._transport.get_extra_info("socket").setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        host, port, *_ = self._transport.get_extra_info("peername") or ("", 0)
        self.peer = address_of(host.removeprefix("::ffff:"), port)
        self._opened_ms = self._server.now_ms()
        if self._number:
            self._limit_to(FIRST_BYTES_MS, "no data")
        else:
            self.abort("refused")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.large_view if self._brings_much else self._server.view

    def buffer_updated(self, nbytes: int) -> None:
        self._wire.bytes_read += nbytes
        data = bytes(self._server.large_view[:nbytes])
        try:
            self._on_bytes(data)
        except Exception:  # An unexpected error ends only its own connection.
            logger.exception("connection failed peer=%s", self.peer)
            self.abort("failed")

    def pause_writing(self) -> None:
        self._is_full = True
        if self._http2 is not None:
            self._http2.pause()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._http2 is not None:
            self._http2.resume()
            self.flush()
        if self._transport.is_closing():
            return
        if self._take != self._on_http1:
            self._transport.resume_reading()
        elif self._answering is None:
            self._take_next_request()

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in filter(None, (self._limit, self._check, self._age)):
            deadline.cancel()
        if self._keepalive is not None:
            self._keepalive.stop()
        if self.conversation is not None:
            self.conversation.lost()
        if self._other is not None:
            self._other.lost()
        self._let_body_go()
        if self._answering is not None:
            self._answering.cancel()
        self._server.closed(self._number, self.end_reason)

    def _on_first_bytes(self, data: bytes) -> None:
        self._first += data
        kind = self._first[0]
        if self._first == b"P":
            return  # Part of HTTP/2's preface, or of a POST.
        if self._server.secure_only and kind != _TLS and not self._wire.is_secure:
            logger.debug("plaintext refused peer=%s", self.peer)
            reasons = [
                _NO_PLAINTEXT[kind] for kind in _NO_PLAINTEXT if self._first.startswith(kind)
            ]
            self._refuse(b"".join(reasons), "plaintext")
        elif self._first.startswith(_HTTP2):
            self._speak_http2()
        elif self._first.startswith(_HTTP) and self._server.served.pages is not None:
            self._take = self._on_http1
            self._http1 = RequestReader(self.peer, secure=self._wire.is_secure)
            first, self._first = self._first, b""
            self._on_http1(first)
        elif kind == _TLS and not self._wire.is_secure and self._server.is_secure:
            self._transport.pause_reading()
            self._limit_to(self._server.limits.handshake_timeout_ms, "slow handshake")
            self._server.spawn(self._secure())
        elif kind == _TLS and not self._wire.is_secure:
            self._refuse(_NO_TLS, "TLS, which is not served")
        elif self._server.other is not None and kind == self._server.other.first_byte:
            self._speak_other(self._server.other)
        else:
            logger.debug("connection of unknown protocol first_byte=%d", kind)
            self.abort("neither HTTP nor TLS")

    def _refuse(self, answer: bytes, reason: str) -> None:
        """Send ANSWER, and close for REASON."""
        self._transport.write(answer)
        self._linger(reason)

    async def _secure(self) -> None:
        """Start TLS. The certificate may have to be loaded first."""
        context = await self._server.tls_context()
        if context is None:
            self.abort("no certificate")
            return
        self._wire.secure(context)
        first, self._first = self._first, b""
        self._on_bytes(first)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _on_bytes(self, data: bytes) -> None:
        try:
            plain = self._wire.plain(data)
        except ssl.SSLError as error:
            if self._is_lingering:
                self._discard(data)
            else:
                self._server.handshake_failed(self.peer, error)
                self._linger("TLS failed")  # A reset could reach the peer before the alert.
            return
        if plain:
            self._take(plain)
        if self._wire.is_over:
            self._transport.close()

    def _speak_http2(self) -> None:
        server = self._server
        now_ms = server.now_ms()
        self._http2 = ServerConnection(server.connection_limits, now_ms)
        self.conversation = ServerConversation(
            self._http2,
            server.served,
            self.peer,
            self.schedule_flush,
            partial(self.abort, "not reading"),
            write_now=self.write_now,
            is_secure=self._wire.is_secure,
            certificate_names=self._wire.certificate_names,
        )
        self._unlimit()
        self._keepalive = Keepalive(
            server.limits,
            server.deadlines,
            server.now_ms,
            self._ping,
            partial(self.abort, "silent"),
        )
        age_ms = server.age_ms()
        if age_ms:
            self._age = server.deadlines.add(now_ms + age_ms, self._grow_old)
        self._take = self._on_http2
        first, self._first = self._first, b""
        self._on_http2(first)

    def _speak_other(self, protocol: OtherProtocol) -> None:
        server = self._server
        self._unlimit()
        limits = replace(
            server.limits, keepalive_ms=SILENT_MS // 2, keepalive_timeout_ms=SILENT_MS // 2
        )
        self._keepalive = Keepalive(
            limits, server.deadlines, server.now_ms, _no_probe, partial(self.abort, "silent")
        )
        self._other = protocol.open(self)
        self._take = self._on_other
        first, self._first = self._first, b""
        self._on_other(first)

    def _on_other(self, data: bytes) -> None:
        assert self._other is not None
        assert self._keepalive is not None
        self._keepalive.note_data(self._server.now_ms())
        self._brings_much = len(data) > LARGE_BYTES
        self._other.receive(data)

    def write(self, data: bytes) -> None:
        """Send DATA of the other protocol."""
        if not self._is_lingering and not self._transport.is_closing():
            self._wire.write(data)

    def finish(self, reason: str) -> None:
        """Close for REASON, once everything was sent."""
        self._linger(reason)

    @property
    def local_address(self) -> tuple[str, int]:
        """This end of the connection: the address that the peer connected to."""
        host, port, *_ = self._transport.get_extra_info("sockname") or ("", 0)
        return host.removeprefix("::ffff:"), port

    @property
    def is_secure(self) -> bool:
        """Does it use TLS?"""
        return self._wire.is_secure

    @property
    def certificate_names(self) -> Sequence[str]:
        """The names in the peer's verified certificate."""
        return self._wire.certificate_names

    @property
    def unsent(self) -> int:
        """Bytes that were written but are still on this host."""
        return self._wire.unsent

    def _on_http2(self, data: bytes) -> None:
        assert self._http2 is not None
        assert self.conversation is not None
        assert self._keepalive is not None
        now_ms = self._server.now_ms()
        self._keepalive.note_data(now_ms)
        events = self._http2.receive(data, now_ms)
        self._brings_much = len(data) > len(events) * LARGE_BYTES
        self._is_handling = True
        try:
            with self._server.reading:
                self.conversation.handle(events, now_ms)
        finally:
            self._is_handling = False
        if self._is_leaving and PingAnswered(_LEAVING) in events:
            self._http2.goaway()
        self.flush()
        if self._check is None and self.conversation.needs_check:
            self._look_later(now_ms)

    def schedule_flush(self) -> None:
        """Flush: now if no other answer can follow, else in the next turn of the loop, with other answers."""
        if self._is_handling:
            return
        assert self.conversation is not None
        assert self._http2 is not None
        if self.conversation.open_calls == 0 and self._http2.queued == 0:
            self.flush()
        elif not self._is_dirty:
            self._is_dirty = True
            self._server.loop.call_soon(self._flush_scheduled)

    def write_now(self) -> None:
        """Write as much as possible in this turn. Callbacks about it follow in the next turn, with the next flush."""
        if not self._is_handling and self._is_dirty and not self._transport.is_closing():
            assert self._http2 is not None
            if data := self._http2.take():
                self._wire.write(data)

    def _flush_scheduled(self) -> None:
        """Write the answers since the last `flush`. The last answer of a turn may have written all already."""
        if self._is_dirty:
            self.flush()

    def flush(self) -> None:
        """Write all pending output."""
        self._is_dirty = False
        if self._is_lingering:
            return
        http2, conversation = self._http2, self.conversation
        assert http2 is not None
        assert conversation is not None
        while not self._transport.is_closing():
            data = http2.take()
            if data:
                self._wire.write(data)
            events = http2.events()
            if events:
                conversation.handle(events, self._server.now_ms())
            elif not http2.has_more:
                break
        unsent = self._wire.unsent if self._is_full else 0
        conversation.answers.note(unsent, self._wire.bytes_written)
        if http2.ended or (self._is_leaving and http2.is_done):
            self._linger(http2.end_code.name.lower() if http2.ended else self._leaving_because)

    def _on_http1(self, data: bytes) -> None:
        self._http1.feed(data)
        if self._answering is None:
            self._go_on_with_http1()

    def _take_next_request(self) -> None:
        """Read again, once the answer was sent."""
        if self._is_full:
            self._limit_to(IDLE_MS, "not reading")
            return
        self._limit_to(FIRST_BYTES_MS, "no data")
        self._transport.resume_reading()
        self._go_on_with_http1()

    def _go_on_with_http1(self) -> None:
        """Answer the next request, if it is complete. No other request is read meanwhile."""
        pages = self._server.served.pages
        if pages is None:
            self.abort("no page")
            return
        try:
            asked = self._http1.next()
        except HttpRefused as refused:
            self._let_body_go()
            self._refuse_http1(refused.shown)
            return
        if asked is not None:
            self._let_body_go()
            self._unlimit()
            self._transport.pause_reading()
            self._answering = self._server.spawn(self._answer(asked))
        elif self._http1.is_idle:
            self._limit_to(IDLE_MS, "idle")
        elif self._http1.wants_body and not self._sends_body:
            if not pages.begin_body(self.peer):
                self._refuse_http1(BUSY)
                return
            self._sends_body = True
            self._body_pages = pages

    def _refuse_http1(self, shown: HttpResponse) -> None:
        """Answer with SHOWN, read no further, and close when the peer does."""
        self._wire.write(head_of(shown, keep=False) + shown.body)
        self._linger("refused")

    def _let_body_go(self) -> None:
        if self._sends_body:
            self._sends_body = False
            self._body_pages.end_body(self.peer)

    async def _answer(self, asked: PageRequest) -> None:
        pages = self._server.served.pages
        try:
            shown = BUSY if pages is None else await pages.shown(asked)
            self._wire.write(head_of(shown, keep=asked.keep))
            if shown.events is not None and asked.method != "HEAD":
                await self._tell(shown)
                self._close()
                return
            if asked.method != "HEAD":
                self._wire.write(shown.body)
        except Exception:  # A bug of the page fails its own request.
            logger.exception("page failed")
            self.abort("failed")
            return
        if self._transport.is_closing():
            return
        if asked.keep:
            self._answering = None
            self._take_next_request()
        else:
            self._close()

    async def _tell(self, shown: HttpResponse) -> None:
        """Write the events of SHOWN as they arrive, until the client disconnects or is too slow."""
        assert shown.events is not None
        self._take = self._discard
        self._transport.resume_reading()
        async with contextlib.aclosing(shown.events) as events:
            async for event in events:
                self._wire.write(event)
                if self._wire.unsent > WRITE_BYTES:
                    self.abort("not reading")
                    return

    def _limit_to(self, wait_ms: int, reason: str) -> None:
        """Abort the connection in WAIT_MS for REASON, unless it has made progress by then."""
        self._unlimit()
        server = self._server
        self._limit = server.deadlines.add(server.now_ms() + wait_ms, partial(self.abort, reason))

    def _unlimit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _look_later(self, now_ms: int) -> None:
        self._check_at_ms = now_ms + CHECK_MS
        self._check = self._server.deadlines.add(self._check_at_ms, self._look)

    def _look(self) -> None:
        """End what exceeds a time limit, and check again later if anything can."""
        assert self.conversation is not None
        now_ms = self._server.now_ms()
        # If this process was delayed, data that the peer has sent meanwhile is read first.
        if now_ms - self._check_at_ms < CHECK_MS:
            self.conversation.check(now_ms)
            self.flush()
        self._check = None
        if self.conversation.needs_check and not self._transport.is_closing():
            self._look_later(now_ms)

    def _ping(self) -> None:
        assert self._http2 is not None
        self._http2.ping(_ALIVE)
        self.flush()

    def _grow_old(self) -> None:
        self.goaway("old")
        server = self._server
        grace_ms = server.limits.connection_age_grace_ms
        self._limit = server.deadlines.add(server.now_ms() + grace_ms, self._wind_down)

    def _wind_down(self) -> None:
        """Ask endless streams to end, and soon abort those that are still open."""
        assert self.conversation is not None
        server = self._server
        self._limit = server.deadlines.add(
            server.now_ms() + LAST_BYTES_MS, partial(self.give_up, self._leaving_because)
        )
        self.conversation.wind_down()

    def goaway(self, reason: str) -> None:
        """Send GOAWAY for REASON: no new streams, and the connection closes once the open ones have ended."""
        if self._other is not None and not self._is_lingering:
            self._other.leave()
            return
        if self._http2 is None or self._is_lingering:
            self.abort(reason)  # There was no request, or everything is sent.
            return
        if self._is_leaving:
            return
        self._is_leaving = True
        self._leaving_because = reason
        self._http2.announce_goaway()
        self._http2.ping(_LEAVING)
        server = self._server
        if self._age is not None:
            self._age.cancel()
        self._age = server.deadlines.add(server.now_ms() + REFUSE_MS, self._refuse_new)
        self.flush()

    def _refuse_new(self) -> None:
        assert self._http2 is not None
        self._http2.goaway()
        self.flush()

    def give_up(self, reason: str) -> None:
        """End all calls now, notify the peer, and close, for REASON."""
        if self._http2 is not None and self.conversation is not None:
            self.conversation.give_up()
            self._http2.goaway()
            self.flush()
            self._linger(reason)
        else:
            self.abort(reason)

    def _linger(self, reason: str) -> None:
        """Send no more, and close when the peer does: closing with unread bytes would discard the output."""
        if not self._is_lingering and not self._transport.is_closing():
            self._take = self._discard
            self._discarded = 0
            self.end_reason = reason
            self._limit_to(LAST_BYTES_MS, reason)
            with contextlib.suppress(OSError):  # The peer may have disconnected.
                self._transport.write_eof()

    @property
    def _is_lingering(self) -> bool:
        """Is everything sent, and is input ignored?"""
        return self._take == self._discard

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > _DISCARDED_BYTES_MAX:
            self.abort(self.end_reason)

    def _close(self) -> None:
        """Close, once the output was sent."""
        if not self._transport.is_closing():
            self.end_reason = "answered"
            self._limit_to(LAST_BYTES_MS, self.end_reason)
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close now, for REASON."""
        self.end_reason = reason
        if not self.is_made:  # It will be refused.
            self._server.closed(self._number, reason)
            self._number = 0
        else:
            self._transport.abort()

    @property
    def is_made(self) -> bool:
        """Is the peer known? asyncio reports it one turn of the loop after it accepts the connection."""
        return self._transport is not None

    def figures(self, now_ms: int) -> ConnectionFigures:
        """Return the counters of the connection at NOW_MS. Requires `is_made`."""
        http2, conversation = self._http2, self.conversation
        calls = conversation.figures(now_ms) if conversation is not None else NO_CALLS
        return ConnectionFigures(
            id=self._number,
            peer=self.peer,
            secure=self._wire.is_secure,
            age_ms=now_ms - self._opened_ms,
            streams_open=http2.streams if http2 is not None else 0,
            bytes_read=self._wire.bytes_read,
            bytes_written=self._wire.bytes_written,
            bytes_queued=http2.queued if http2 is not None else 0,
            **calls,
        )


def _no_probe() -> None:
    """Do nothing: the other protocol has no probes, and its peers send something in time."""
