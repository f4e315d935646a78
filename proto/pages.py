"""Pages for browsers and scrapers on a gRPC port: GET and HEAD, in HTTP/1.1 or HTTP/2 (RFC 9110, 9112).

A `Page` is told method and path and returns what to show. Whoever carries it knows how that is written: `in_http1` for
HTTP/1.1, `grpc_calls/page_calls.py` for HTTP/2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, NamedTuple

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
