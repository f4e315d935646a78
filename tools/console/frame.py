"""What pages and answers of the console are put into: the frame of a page, statuses, headers, files, events.

It is imported with a broker: nothing heavy is. Pages of one broker, and of several (brokers_site.py), use it.
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
from .markup import Content, e, field

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
#: Nothing is loaded from elsewhere, no script or style stands in a page, and no other site shows one in a frame.
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


def sign_in_page(asked: PageRequest, to: str, wrong: str = "") -> str:
    """Return the page of a form to sign in, which leads on TO a place; what was WRONG with the last try."""
    secret = e(
        "input",
        type="password",
        name="secret",
        required=True,
        autocomplete="current-password",
    )
    user = field("User", "user", required=True, autofocus=True, autocomplete="username")
    main = e(
        "form",
        e("h1", "Sign in"),
        e("p", wrong, class_="error", role="alert") if wrong else None,
        user,
        e("label", "Secret", secret),
        e("input", type="hidden", name="to", value=to),
        e("button", "Sign in"),
        action="/sign-in",
        method="post",
        class_="card sign-in",
    )
    return whole("Sign in", asked, main)


def whole(
    title: str,
    asked: PageRequest,
    main: Content,
    broker: str = "",
    clock: Content = None,
    visitor: Visitor | None = None,
    places: Places = PLACES,
) -> str:
    """Return the page TITLE around MAIN, as VISITOR sees it, with links to PLACES."""
    here = "/" + asked.parts[0]
    links = [
        e("a", name, href=path, aria_current="page" if path == here else None)
        for path, name in (places if visitor or here != "/sign-in" else ())
    ]
    token = visitor.token if visitor else ""
    leave = None
    if visitor and visitor.session:
        leave = e(
            "form",
            e("input", type="hidden", name="token", value=token),
            e("span", visitor.user),
            e("button", "Sign out"),
            action="/sign-out",
            method="post",
            class_="leave",
        )
    head = e(
        "head",
        e("meta", charset="utf-8"),
        e("meta", name="viewport", content="width=device-width, initial-scale=1"),
        e("meta", name="color-scheme", content="light dark"),
        e("meta", name="token", content=token) if token else None,
        e("title", f"{title} · PocketMQ"),
        e("link", rel="icon", href="/icon.svg", type="image/svg+xml"),
        e("link", rel="stylesheet", href="/console.css"),
        e("script", type="module", src="/console.mjs"),
    )
    body = e(
        "body",
        e("a", "Skip to the content", href="#main", class_="skip"),
        e(
            "header",
            e("a", e("b", "Pocket"), "MQ", href="/", class_="brand"),
            e("nav", *links, aria_label="Pages") if links else None,
            e(
                "div",
                clock,
                e("span", broker, class_="broker"),
                e("span", id="live", role="status") if visitor else None,
                leave,
                class_="state",
            ),
        ),
        e("main", main, id="main", tabindex="-1"),
    )
    return "<!doctype html>" + e("html", head, body, lang="en")


def failed(
    asked: PageRequest, status: int, name: str, words: str, places: Places = PLACES
) -> Shown:
    """Return an answer with STATUS that says in WORDS why ASKED is not shown: a page, or to programs the error NAME."""
    if "api" in asked.parts:
        return json_shown(status, {"error": name, "message": words})
    title = HTTPStatus(status).phrase
    main = e("section", e("h1", title), e("p", words, class_="error"), class_="card")
    return page_shown(status, whole(title, asked, main, places=places))


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


def page_shown(status: int, text: str) -> Shown:
    """Return the answer with STATUS and the page TEXT."""
    return Shown(status, "text/html; charset=utf-8", text.encode(errors="replace"))


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
