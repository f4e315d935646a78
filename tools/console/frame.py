"""What pages and answers of the console are put into: the frame of a page, statuses, headers, files, events.

It is imported with a broker: nothing heavy is. Pages of one broker, and of several (brokers_site.py), use it.

HTML and SVG as values: what is not markup already is escaped, so that text of messages stays text.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from html import escape
from http import HTTPStatus
from importlib.resources import files
from math import cos, pi, sin
from typing import Any, Final, TypeAlias

from ...proto.errors import Overloaded, PocketMQError
from ...proto.rpc.pages import READING, PageRequest, Shown
from ...proto.time_text import format_instant
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


# ---------------------------------------------------------------- HTML and SVG as values


class Html(str):
    """Markup, which is put into other markup as it is."""

    __slots__ = ()


Content: TypeAlias = "str | int | float | Iterable[Content] | None"

#: Elements without an end.
_VOID: Final = frozenset(("input", "link", "meta", "br"))


def html(content: Content) -> Html:
    """Return CONTENT as markup: text escaped, None as nothing, what follows each other in its order."""
    if isinstance(content, Html):
        return content
    if content is None:
        return Html("")
    if isinstance(content, str | int | float):
        return Html(escape(str(content)))
    return Html("".join(map(html, content)))


def e(name: str, /, *content: Content, **attributes: str | int | float | bool | None) -> Html:
    """Return the element NAME; attributes that are None or False are left out, `_` in their names stands for `-`."""
    told = "".join(
        f" {key.strip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{html(content)}</{name}>")


_WIDTH: Final = 600
_HEIGHT: Final = 120


def chart(values: Sequence[float], label: str) -> Html:
    """Return VALUES, one after the other in time, as the line of a chart that says LABEL to who does not see it."""
    top = max(values, default=0) or 1
    step = _WIDTH / max(1, len(values) - 1)
    points = [
        f"{at * step:.1f},{_HEIGHT - 4 - value / top * (_HEIGHT - 12):.1f}"
        for at, value in enumerate(values)
    ]
    line = " ".join(points)
    shapes: list[Content] = [
        e("line", x1=0, x2=_WIDTH, y1=y, y2=y, class_="grid") for y in (8, 62, _HEIGHT - 4)
    ]
    if len(points) > 1:
        shapes.append(e("polygon", points=f"0,{_HEIGHT} {line} {_WIDTH},{_HEIGHT}", class_="area"))
        shapes.append(e("polyline", points=line, class_="line"))
    return _svg(shapes, label)


def bars(values: Sequence[float], label: str) -> Html:
    """Return VALUES, of spans one after the other, as bars of a chart that says LABEL to who does not see it."""
    top = max(values, default=0) or 1
    width = _WIDTH / max(1, len(values))
    shapes: list[Content] = [e("line", x1=0, x2=_WIDTH, y1=_HEIGHT, y2=_HEIGHT, class_="grid")]
    for at, value in enumerate(values):
        height = value / top * (_HEIGHT - 8)
        place = {"x": f"{at * width + 1:.1f}", "y": f"{_HEIGHT - height:.1f}"}
        size = {"width": f"{max(1, width - 2):.1f}", "height": f"{height:.1f}"}
        shapes.append(e("rect", class_="bar", **place, **size))
    return _svg(shapes, label)


def clock_face(time_ms: int) -> Html:
    """Return the face of a clock that shows TIME_MS in UTC, with its hands."""
    minutes = time_ms // 60_000 % 720
    marks = [_ray(hour / 12, 40, 45, "grid") for hour in range(12)]
    hands = (_ray(minutes / 720, 0, 24, "line"), _ray(minutes % 60 / 60, 0, 36, "line"))
    rim = e("circle", r=48, class_="rim")
    label = f"The hands of a clock in UTC: {format_instant(time_ms)}"
    return e(
        "svg",
        rim,
        *marks,
        *hands,
        viewBox="-50 -50 100 100",
        role="img",
        aria_label=label,
        class_="face",
    )


def _ray(turn: float, begin: float, end: float, kind: str) -> Html:
    """Return a line from BEGIN to END off the middle of a clock, a TURN from where 12 is."""
    across, up = sin(2 * pi * turn), -cos(2 * pi * turn)
    places = {"x1": across * begin, "y1": up * begin, "x2": across * end, "y2": up * end}
    return e("line", class_=kind, **{name: f"{value:.1f}" for name, value in places.items()})


def _svg(shapes: Sequence[Content], label: str) -> Html:
    return e(
        "svg",
        *shapes,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        class_="chart",
    )


# --- parts of pages

#: Verdicts by how much they want to be looked at.
_BAD: Final = ("data lost", "ahead of the log", "no such queue", "stalled", "dead letters")
_CALM: Final = ("ok", "delayed", "held by leases", "in sync")


def when(time_ms: int | None) -> Content:
    """Return an instant for people."""
    if not time_ms or time_ms < 0:
        return "–"
    text = format_instant(time_ms)
    return e("time", text.replace("T", " "), datetime=text)


def table(titles: Sequence[str], rows: Iterable[Sequence[Content]], none: str, key: str) -> Html:
    """Return ROWS under TITLES, which begin with # where numbers stand; NONE says that there are none."""
    cells = [
        e("tr", *(_cell(title, value) for title, value in zip(titles, row, strict=True)))
        for row in rows
    ]
    if not cells:
        return e("p", none, class_="none")
    heads = [
        e("th", title.lstrip("#"), class_="number" if title[:1] == "#" else None, scope="col")
        for title in titles
    ]
    body = e("table", e("thead", e("tr", *heads)), e("tbody", *cells), id=key)
    return e("div", body, class_="scroll", tabindex=0)


def _cell(title: str, value: Content) -> Html:
    number = title[:1] == "#"
    shown = f"{value:,}" if number and isinstance(value, int) else value
    return e(
        "td",
        "–" if shown is None else shown,
        class_="number" if number else None,
        data_label=title.lstrip("#"),
    )


def heading(title: str, *content: Content) -> Html:
    """Return what a page begins with: its TITLE, and what stands beside that."""
    return e("div", e("h1", title), *content, class_="title")


def card(title: str, *content: Content, id_: str | None = None) -> Html:
    """Return a part of a page with a TITLE."""
    return e("section", e("h2", title), *content, class_="card", id=id_)


def facts(pairs: Iterable[tuple[str, Content]]) -> Html:
    """Return names and values."""
    return e(
        "dl", *(e("div", e("dt", name), e("dd", value)) for name, value in pairs), class_="facts"
    )


def badge(verdict: str) -> Html:
    """Return a VERDICT in its colour."""
    kind = "bad" if verdict in _BAD else "good" if verdict in _CALM else "warn"
    return e("span", verdict, class_=f"badge {kind}")


def form(path: str, title: str, *content: Content, button: str = "", confirm: str = "") -> Html:
    """Return a form that a script sends to the API at PATH."""
    fields = e(
        "form",
        *content,
        e("button", button or title, type="submit"),
        e("output", role="status"),
        data_post=path,
        data_confirm=confirm or None,
    )
    return e("details", e("summary", title), fields, class_="action")


def row_form(path: str, button: str, confirm: str, **hidden: str | int | list[int]) -> Html:
    """Return a BUTTON in a row of a table, which sends what is HIDDEN to the API at PATH once CONFIRM is agreed to."""
    return e(
        "form",
        *(_hidden(name, value) for name, value in hidden.items()),
        e("button", button),
        e("output", role="status"),
        data_post=path,
        data_confirm=confirm,
        class_="in-row",
    )


def _hidden(name: str, value: str | int | list[int]) -> Html:
    kind = "text" if isinstance(value, str) else "number" if isinstance(value, int) else "numbers"
    text = ",".join(map(str, value)) if isinstance(value, list) else value
    return e("input", type="hidden", name=name, value=text, data_kind=kind)


def field(label: str, name: str, kind: str = "text", **more: Any) -> Html:
    """Return a labelled input of a form."""
    return e(
        "label",
        label,
        e(
            "input",
            type="number" if kind == "number" else "text",
            name=name,
            data_kind=kind,
            **more,
        ),
    )
