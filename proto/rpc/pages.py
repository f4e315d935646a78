"""Pages for browsers and scrapers on a gRPC port: GET and HEAD in HTTP/1.1 or HTTP/2, POST in HTTP/1.1 (RFC 9110).

A `Page` is told what is asked and returns what to show: a body, or events that go on until the asker leaves. `http1.py`
reads and writes HTTP/1.1, and `PageCalls` answers in HTTP/2, which whoever asks with TLS is offered first, scrapers
among them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from .connection import ServerConnection
from .frames import ErrorCode
from .hpack import literal
from .incoming import Request

logger = logging.getLogger(__name__)

#: The methods that are answered with the page itself.
READING: Final = frozenset(("GET", "HEAD"))
#: Fields of a query that are looked at; more of them are malformed.
QUERY_FIELDS_MAX: Final = 64


class PageRequest(NamedTuple):
    """A request. HEADERS have names in lower case; PEER is the asker's address. KEEP: others may follow behind it."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    secure: bool = False
    keep: bool = False

    @property
    def path(self) -> str:
        """The path, without the query, as it came: parts of it may be quoted."""
        return self.target.partition("?")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names between the path's slashes, at least one."""
        return tuple(unquote(part) for part in self.path.removeprefix("/").split("/"))

    @property
    def query(self) -> dict[str, str]:
        """The fields of the query; of a name that comes twice the last. Raises ValueError for too many."""
        text = self.target.partition("?")[2]
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX))


class Shown(NamedTuple):
    """What a page shows: an HTTP status, a body of some type, further HEADERS.

    EVENTS, instead of the body, are written one by one as they come, until they or the connection end; HTTP/1.1 only.
    """

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    events: AsyncGenerator[bytes, None] | None = None


#: Returns what is shown to a request.
Page = Callable[[PageRequest], Awaitable[Shown]]


#: Pages of one server that are made at once, and bodies that come at once in HTTP/1.1; further ones are asked to come
#: again.
PAGES_MAX: Final = 16
#: Bytes of answers that may wait on a connection that wants a page.
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
BUSY: Final = Shown(503, "text/plain", b"too many pages are asked for at once: come again\n")
_NO_PATH: Final = Shown(400, "text/plain", b"the path of a request begins with a slash\n")
_ONE_BY_ONE: Final = Shown(501, "text/plain", b"events are told in HTTP/1.1 only: ask in that\n")


class PageCalls:
    """Answers requests for PAGE, on any connection of a server."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._open = 0
        #: Connections that send a body, in HTTP/1.1.
        self.bodies = 0

    @staticmethod
    def wants(request: Request) -> bool:
        """Is REQUEST for a page, and for nothing else?"""
        return request.method in READING

    async def shown(self, asked: PageRequest) -> Shown:
        """Return what the page shows to ASKED, unless too many are made at once."""
        if self._open >= PAGES_MAX:
            return BUSY
        self._open += 1
        try:
            return await self._page(asked)
        finally:
            self._open -= 1

    async def answer(
        self,
        connection: ServerConnection,
        touch: Callable[[], None],
        stream_id: int,
        request: Request,
        peer: str,
    ) -> None:
        """Answer REQUEST of PEER on STREAM_ID of CONNECTION, and have the answer leave."""
        try:
            shown = await self._shown(connection, request, peer)
        except Exception:  # The edge: a bug of the page costs its own request.
            logger.exception("page failed")
            connection.reset(stream_id, ErrorCode.INTERNAL_ERROR)
        else:
            head = _head(shown)
            if request.method == "HEAD" or not shown.body:
                connection.send_headers(stream_id, head, ends=True)
            else:
                connection.send_headers(stream_id, head)
                connection.send_data(stream_id, shown.body)
                connection.send_end(stream_id, None)
        touch()

    async def _shown(self, connection: ServerConnection, request: Request, peer: str) -> Shown:
        if connection.queued > QUEUED_BYTES_MAX:
            return BUSY
        if not request.path.startswith("/"):
            return _NO_PATH
        headers = {"host": request.authority, **request.headers}
        asked = PageRequest(request.method, request.path, headers, peer=peer)
        shown = await self.shown(asked)
        return shown if shown.events is None else _ONE_BY_ONE


def _head(shown: Shown) -> bytes:
    return (
        literal(":status", str(shown.status))
        + literal("content-type", shown.content_type)
        + literal("content-length", str(len(shown.body)))
        + b"".join(literal(name.lower(), value) for name, value in shown.headers)
    )
