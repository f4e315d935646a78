"""Pages for browsers and scrapers on a gRPC port: GET and HEAD, in HTTP/1.1 or HTTP/2 (RFC 9110, 9112).

A `Page` is told method and path and returns what to show. `in_http1` writes that for HTTP/1.1, `PageCalls` for HTTP/2,
which whoever asks with TLS is offered first, scrapers among them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, NamedTuple

from .connection import ServerConnection
from .frames import ErrorCode
from .hpack import literal
from .incoming import Request

logger = logging.getLogger(__name__)

#: The methods that are answered with the page itself.
READING: Final = frozenset(("GET", "HEAD"))


class Shown(NamedTuple):
    """What a page shows: an HTTP status, and a body of some type."""

    status: int
    content_type: str
    body: bytes


#: Returns what is shown to the METHOD and PATH (without a query) of a request.
Page = Callable[[str, str], Awaitable[Shown]]


def path_of(target: str) -> str:
    """Return the path of a request's TARGET, without the query."""
    return target.partition("?")[0]


async def in_http1(page: Page, head: bytes) -> bytes:
    """Return PAGE's whole answer to the HTTP/1.1 request with HEAD; no other follows on its connection."""
    line = head.partition(b"\r\n")[0].decode("latin-1")
    method, _, rest = line.partition(" ")
    status, content_type, body = await page(method, path_of(rest.partition(" ")[0]))
    answer = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return answer.encode() + (b"" if method == "HEAD" else body)


#: Pages of one server that are made at once; further requests are asked to come again.
PAGES_MAX: Final = 16
#: Bytes of answers that may wait on a connection that wants a page.
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
_BUSY: Final = Shown(503, "text/plain", b"too many pages are asked for at once: come again\n")


class PageCalls:
    """Answers requests for PAGE, on any connection of a server."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._open = 0

    @staticmethod
    def wants(request: Request) -> bool:
        """Is REQUEST for a page, and for nothing else?"""
        return request.method in READING

    async def answer(
        self,
        connection: ServerConnection,
        touch: Callable[[], None],
        stream_id: int,
        request: Request,
    ) -> None:
        """Answer REQUEST on STREAM_ID of CONNECTION, and have the answer leave."""
        try:
            shown = await self._shown(connection, request)
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

    async def _shown(self, connection: ServerConnection, request: Request) -> Shown:
        if self._open >= PAGES_MAX or connection.queued > QUEUED_BYTES_MAX:
            return _BUSY
        self._open += 1
        try:
            return await self._page(request.method, path_of(request.path))
        finally:
            self._open -= 1


def _head(shown: Shown) -> bytes:
    return (
        literal(":status", str(shown.status))
        + literal("content-type", shown.content_type)
        + literal("content-length", str(len(shown.body)))
    )
