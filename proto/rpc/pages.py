"""Pages for browsers and scrapers on a gRPC port: GET, HEAD and POST in HTTP/1.1 or HTTP/2 (RFC 9110).

A `Page` gets a request and returns a response: a body, or a stream of events that ends when the client disconnects.
Clients with TLS are offered HTTP/2 first (ALPN), so `PageCalls` answers browsers there. In HTTP/2, a POST is for a
page only if its body is JSON or a form. HTTP/1.1: http1_requests.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from .connection import ServerConnection
from .frames import ErrorCode
from .hpack import literal
from .incoming import Request
from .limits import owner_of

logger = logging.getLogger(__name__)

#: The methods that are answered with the page itself. Others change something.
READING: Final = frozenset(("GET", "HEAD"))
#: The maximum number of fields in a query.
QUERY_FIELDS_MAX: Final = 64


class PageRequest(NamedTuple):
    """A request. HEADERS have lower-case names, PEER is the client's address. KEEP: the connection stays open."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    secure: bool = False
    keep: bool = False

    @property
    def path(self) -> str:
        """The path without the query, as received: parts of it may be quoted."""
        return self.target.partition("?")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names between the path's slashes, one or more."""
        return tuple(unquote(part) for part in self.path.removeprefix("/").split("/"))

    @property
    def query(self) -> dict[str, str]:
        """The fields of the query; of a repeated name the last. Raises ValueError for too many."""
        text = self.target.partition("?")[2]
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX))


class HttpResponse(NamedTuple):
    """The response of a page: an HTTP status, a body of some type, further HEADERS.

    EVENTS, instead of the body, are written one by one as they arrive, until they or the connection end.
    """

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    events: AsyncGenerator[bytes, None] | None = None


#: Returns the response to a request.
Page = Callable[[PageRequest], Awaitable[HttpResponse]]


#: Pages that one server prepares at the same time; further requests are refused and may be retried.
PAGES_MAX: Final = 16
#: Bodies that are received at the same time, from one host and from all. Further requests are refused, too.
BODIES_OF_HOST: Final = 8
BODIES_MAX: Final = 64
#: Bytes of answers that may wait on a connection for pages.
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
_NO_PATH: Final = HttpResponse(400, "text/plain", b"the path of a request begins with a slash\n")
BUSY: Final = HttpResponse(503, "text/plain", b"too many pages are asked for at once: come again\n")
#: Bytes of a request's body.
BODY_BYTES_MAX: Final = 1024 * 1024
#: Bytes of events that may wait in HTTP/2. A slower client is disconnected.
_EVENTS_QUEUED_MAX: Final = 256 * 1024
#: Content types of POST bodies for pages in HTTP/2. All other POST requests are gRPC calls.
_BODY_TYPES: Final = ("application/json", "application/x-www-form-urlencoded")


def in_words(status: int, words: str) -> HttpResponse:
    """Return a response that consists of the text WORDS."""
    return HttpResponse(status, "text/plain; charset=utf-8", f"{words}\n".encode())


def too_large(size: int) -> str:
    """Return the error text for a body of SIZE bytes."""
    return f"the body has {size} bytes, the limit is {BODY_BYTES_MAX}: send less"


class PageStream:
    """A request for a page on STREAM_ID of an HTTP/2 CONNECTION. Its body may arrive in pieces.

    SCHEDULE_FLUSH schedules a write to the socket. CLOSED is called at the end.
    """

    def __init__(
        self,
        connection: ServerConnection,
        schedule_flush: Callable[[], None],
        stream_id: int,
        asked: PageRequest,
        closed: Callable[[int], object],
    ) -> None:
        self.connection, self.schedule_flush = connection, schedule_flush
        self.stream_id = stream_id
        self.asked = asked
        self.closed = closed
        self.is_telling = False
        self.is_whole = asyncio.Event()
        self._body = bytearray()
        self._size = 0
        self._work: asyncio.Task[None] | None = None

    def begin(self, work: asyncio.Task[None]) -> None:
        """Set WORK, the task that answers it."""
        self._work = work

    def take(self, data: bytes, ended: bool) -> None:
        """Add DATA to its body; ENDED: it is the last piece."""
        self._size += len(data)
        if self._size <= BODY_BYTES_MAX:
            self._body += data
        else:
            self._body.clear()
        if ended or self._size > BODY_BYTES_MAX:
            self.is_whole.set()

    def request(self) -> PageRequest | HttpResponse:
        """Return the request once it is complete, or the response to an invalid one."""
        if self._size > BODY_BYTES_MAX:
            return in_words(413, too_large(self._size))
        return self.asked._replace(body=bytes(self._body))

    def abort(self) -> None:
        """Cancel it: the client has disconnected."""
        if self._work is not None:
            self._work.cancel()

    def wind_down(self) -> None:
        """End it if it is an endless stream of events."""
        if self.is_telling:
            self.connection.send_end(self.stream_id, None)
            self.abort()


class PageCalls:
    """Answers requests for PAGE on all connections of a server."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._open = 0
        #: Connections, and streams of HTTP/2, that are sending a body, by host.
        self._bodies: Counter[str] = Counter()

    def begin_body(self, peer: str) -> bool:
        """Return whether PEER may send a body now. If so, call `end_body` when the body is complete or abandoned."""
        host = owner_of(peer)
        if self._bodies[host] >= BODIES_OF_HOST or self._bodies.total() >= BODIES_MAX:
            return False
        self._bodies[host] += 1
        return True

    def end_body(self, peer: str) -> None:
        """Free the slot that a body of PEER occupied."""
        host = owner_of(peer)
        self._bodies[host] -= 1
        if not self._bodies[host]:
            del self._bodies[host]

    @staticmethod
    def wants(request: Request) -> bool:
        """Is REQUEST for a page (and not gRPC)?"""
        if request.method == "POST":
            return request.headers.get("content-type", "").partition(";")[0] in _BODY_TYPES
        return request.method in READING

    async def shown(self, asked: PageRequest) -> HttpResponse:
        """Return the response of the page to ASKED, unless it is preparing too many others."""
        if self._open >= PAGES_MAX:
            return BUSY
        self._open += 1
        try:
            return await self._page(asked)
        finally:
            self._open -= 1

    async def answer(self, stream: PageStream, body_ms: int) -> None:
        """Send the response to STREAM once its body has arrived, which may take BODY_MS."""
        connection, stream_id = stream.connection, stream.stream_id
        try:
            shown = await self._shown(stream, body_ms)
            head = _head(shown)
            if shown.events is not None and stream.asked.method != "HEAD":
                connection.send_headers(stream_id, head)
                await _tell(stream, shown.events)
            elif stream.asked.method == "HEAD" or not shown.body:
                connection.send_headers(stream_id, head, ends=True)
            else:
                connection.send_headers(stream_id, head)
                connection.send_data(stream_id, shown.body)
                connection.send_end(stream_id, None)
        except Exception:  # A bug of the page fails its own request.
            logger.exception("page failed")
            connection.reset(stream_id, ErrorCode.INTERNAL_ERROR)
        finally:
            stream.closed(stream_id)
        stream.schedule_flush()

    async def _shown(self, stream: PageStream, body_ms: int) -> HttpResponse:
        if stream.connection.queued > QUEUED_BYTES_MAX:
            return BUSY
        if not stream.asked.target.startswith("/"):
            return _NO_PATH
        if not stream.is_whole.is_set():
            peer = stream.asked.peer
            if not self.begin_body(peer):
                return BUSY
            try:
                async with asyncio.timeout(body_ms / 1000):
                    await stream.is_whole.wait()
            except TimeoutError:
                return in_words(
                    408, f"the body was incomplete after {body_ms} ms: send it without pauses"
                )
            finally:
                self.end_body(peer)
        asked = stream.request()
        return asked if isinstance(asked, HttpResponse) else await self.shown(asked)


async def _tell(stream: PageStream, events: AsyncGenerator[bytes, None]) -> None:
    """Write EVENTS on STREAM as they arrive. A client that does not read them is disconnected."""
    connection, stream_id = stream.connection, stream.stream_id
    stream.is_telling = True
    stream.schedule_flush()
    async with contextlib.aclosing(events):
        async for event in events:
            if connection.queued_of(stream_id) > _EVENTS_QUEUED_MAX:
                connection.reset(stream_id, ErrorCode.CANCEL)
                return
            connection.send_data(stream_id, event)
            stream.schedule_flush()
    connection.send_end(stream_id, None)


def _head(shown: HttpResponse) -> bytes:
    block = literal(":status", str(shown.status)) + literal("content-type", shown.content_type)
    if shown.events is None:
        block += literal("content-length", str(len(shown.body)))
    return block + b"".join(literal(name.lower(), value) for name, value in shown.headers)
