"""What the console answers with: pages, JSON, files and events; statuses and headers.

A broker imports this module when it starts, so that nothing heavy is imported here. The consoles of one broker
(site.py) and of several (brokers_site.py) use it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final, TypeAlias

from ...proto.errors import Overloaded, PocketMQError
from ...proto.rpc.pages import READING, PageRequest, Shown
from .door import Visitor

#: Where the links at a page's top lead, and what they are called.
Places: TypeAlias = Sequence[tuple[str, str]]

#: Browsers that are told at once that something has changed.
LISTENERS_MAX: Final = 16

#: Files that are shown as they are: where, and of which type.
_FILES: Final = {
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console.mjs": ("console.mjs", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/api/openapi.yaml": ("openapi.yaml", "application/yaml"),
}
#: Nothing is loaded from elsewhere, no script or style is in a page, and no other site shows one in a frame.
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

PLACES: Final[Places] = (
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
    visitor: Visitor | None = None,
    places: Places = PLACES,
    **data: Any,
) -> Shown:
    """Return the page TITLE, which is TEMPLATE with DATA, as VISITOR sees it, with links to PLACES."""
    from .render import render  # Jinja2 is imported with the first page, not with the broker.

    here = "/" + asked.parts[0]
    links = places if visitor or here != "/sign-in" else ()
    data |= {"title": title, "here": here, "links": links, "visitor": visitor}
    text = render(template, {"server": None, **data})
    return Shown(status, "text/html; charset=utf-8", text.encode(errors="replace"))


def failed(
    asked: PageRequest, status: int, name: str, words: str, places: Places = PLACES
) -> Shown:
    """Return an answer with STATUS that says in WORDS why ASKED is not shown: a page, or to programs the error NAME."""
    if "api" in asked.parts:
        return json_shown(status, {"error": name, "message": words})
    title = HTTPStatus(status).phrase
    return page_shown(status, "layout", title, asked, places=places, error=words)


def status_of(error: PocketMQError) -> int:
    """Return the HTTP status of an answer that says ERROR."""
    return _STATUSES.get(error.status, 500)


def file_shown(asked: PageRequest) -> Shown | None:
    """Return the file that ASKED is for; None: it is for none."""
    file = _FILES.get(asked.path)
    if file is None or asked.method not in READING:
        return None
    name, kind = file
    folder = files(__name__.rpartition(".")[0])
    return Shown(200, kind, folder.joinpath("static", name).read_bytes())


def json_shown(status: int, document: Any) -> Shown:
    """Return the answer with STATUS and DOCUMENT."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Shown(status, "application/json", text.encode(errors="replace") + b"\n")


class EventListeners:
    """Pages that are told of changes, LISTENERS_MAX at once."""

    def __init__(self) -> None:
        self._count = 0

    def told(self, changes: AsyncGenerator[bytes, None]) -> Shown:
        """Return an answer that tells CHANGES, events, one by one. Raises Overloaded."""
        if self._count >= LISTENERS_MAX:
            raise Overloaded(
                f"{LISTENERS_MAX} pages are told of changes, which is the limit: close some",
                field="listeners",
                limit=LISTENERS_MAX,
            )
        return Shown(200, "text/event-stream", b"", events=self._counted(changes))

    async def _counted(self, changes: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        self._count += 1
        try:
            yield b"retry: 2000\n\n"
            async with aclosing(changes):
                async for change in changes:
                    yield change
        finally:
            self._count -= 1
