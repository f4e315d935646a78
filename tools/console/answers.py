"""Answers of the console: pages, JSON, files and events, with statuses and headers.

The consoles of one broker (site.py) and of several (brokers_site.py) use it. A broker imports this module when it
starts, so it imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final, TypeAlias

from ...proto.errors import Overloaded, PocketMQError
from ...proto.rpc.pages import READING, HttpResponse, PageRequest
from .auth import ConsoleSession

#: Links at the top of each page: path and text.
Navigation: TypeAlias = Sequence[tuple[str, str]]

#: Limit of pages that receive events.
LISTENERS_MAX: Final = 16

#: Static files, with their type, by path.
_FILES: Final = {
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console.mjs": ("console.mjs", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/api/openapi.yaml": ("openapi.yaml", "application/yaml"),
}
#: Nothing is loaded from other sites, pages contain no script or style, and no other site can embed a page.
POLICY: Final = (
    ("content-security-policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
     " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)  # fmt: skip
_STATUSES: Final = {
    "NOT_FOUND": 404,
    "INVALID_ARGUMENT": 400,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "ABORTED": 409,
    "PERMISSION_DENIED": 403,
    "UNAUTHENTICATED": 401,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "UNIMPLEMENTED": 501,
    "DEADLINE_EXCEEDED": 504,
}

NAVIGATION: Final[Navigation] = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/messages", "Messages"),
    ("/groups", "Groups"),
    ("/dead-letters", "Dead letters"),
    ("/delayed", "Delayed"),
    ("/transactions", "Transactions"),
    ("/connections", "Connections"),
    ("/store", "Store"),
    ("/users", "Users"),
)


def page_shown(
    status: int,
    template: str,
    title: str,
    asked: PageRequest,
    *,
    visitor: ConsoleSession | None = None,
    navigation: Navigation = NAVIGATION,
    **data: Any,
) -> HttpResponse:
    """Return the page TITLE, made of TEMPLATE and DATA for VISITOR, with links of NAVIGATION."""
    from .render import render  # Jinja2 is imported with the first page, not with the broker.

    here = "/" + asked.parts[0]
    links = navigation if visitor or here != "/sign-in" else ()
    data |= {"title": title, "here": here, "links": links, "visitor": visitor}
    text = render(template, {"server": None, **data})
    return HttpResponse(status, "text/html; charset=utf-8", text.encode(errors="replace"))


def failed(
    asked: PageRequest, status: int, name: str, words: str, navigation: Navigation = NAVIGATION
) -> HttpResponse:
    """Return an error answer with STATUS and text WORDS: a page, or under /api/ JSON with the error NAME."""
    if "api" in asked.parts:
        return json_shown(status, {"error": name, "message": words})
    title = HTTPStatus(status).phrase
    return page_shown(status, "layout", title, asked, navigation=navigation, error=words)


def status_of(error: PocketMQError) -> int:
    """Return the HTTP status for ERROR."""
    return _STATUSES.get(error.status, 500)


def file_shown(asked: PageRequest) -> HttpResponse | None:
    """Return the static file that ASKED names; None: it names none."""
    file = _FILES.get(asked.path)
    if file is None or asked.method not in READING:
        return None
    name, kind = file
    folder = files(__name__.rpartition(".")[0])
    return HttpResponse(200, kind, folder.joinpath("static", name).read_bytes())


def json_shown(status: int, document: Any) -> HttpResponse:
    """Return the answer with STATUS and DOCUMENT."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return HttpResponse(status, "application/json", text.encode(errors="replace") + b"\n")


class EventListeners:
    """Counts the pages that receive events; LISTENERS_MAX is the limit."""

    def __init__(self) -> None:
        self._count = 0

    def stream(self, changes: AsyncGenerator[bytes, None]) -> HttpResponse:
        """Return an answer that sends the events CHANGES. Raises Overloaded."""
        if self._count >= LISTENERS_MAX:
            raise Overloaded(
                f"{LISTENERS_MAX} pages receive events, which is the limit: close some",
                field="listeners",
                limit=LISTENERS_MAX,
            )
        return HttpResponse(200, "text/event-stream", b"", events=self._counted(changes))

    async def _counted(self, changes: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        self._count += 1
        try:
            yield b"retry: 2000\n\n"
            async with aclosing(changes):
                async for change in changes:
                    yield change
        finally:
            self._count -= 1
