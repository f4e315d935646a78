"""HTML and SVG as values: what is not markup already is escaped, so that text of messages stays text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import cos, pi, sin
from typing import Any, Final, TypeAlias

from ...proto.instant import format_instant


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
