"""Requests for a page over HTTP/2: who asks with TLS is offered that first, scrapers among them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ..http2.connection import Connection
from ..http2.frames import ErrorCode
from ..http2.hpack import literal
from ..http2.requests import Request
from ..pages import READING, Page, Shown, path_of

logger = logging.getLogger(__name__)

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
        self, connection: Connection, touch: Callable[[], None], stream_id: int, request: Request
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

    async def _shown(self, connection: Connection, request: Request) -> Shown:
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
