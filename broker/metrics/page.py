"""`GET /metrics`: figures in Prometheus' text format, version 0.0.4.

A plain HTTP request on the broker's port (proto/rpc/pages.py). Other paths are 404, other methods 405.

    sources = [figures, …]           each returns PageFigures, those of one name together; no name in two sources
    page = MetricsPage(sources)

A source is called on the event loop. What a plain one returns is noted there at once, so that it is of one moment; one
that is awaited may return what is worked out later, on the thread that makes the text, from what it noted on the loop.
Text takes some 1 µs a line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from inspect import isawaitable
from itertools import accumulate, chain, groupby
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from ...proto.rpc.pages import READING, PageRequest, Shown

PATH: Final = "/metrics"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ONLY: Final = b"only GET /metrics is answered\n"


class Buckets(Protocol):
    """A histogram: how many values lay up to each of BOUNDS, the last of COUNTS above them all; their TOTAL."""

    @property
    def bounds(self) -> Sequence[float]: ...

    @property
    def counts(self) -> Sequence[int]: ...

    @property
    def total(self) -> float: ...


#: Names of labels and their values, in the order in which they are shown.
Labels: TypeAlias = tuple[tuple[str, str], ...]


class PageFigure(NamedTuple):
    """One series: a counter only grows, and its name ends in `_total`; a histogram has Buckets."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    what: str
    value: float | Buckets
    labels: Labels = ()


def gauges(prefix: str, rows: Iterable[tuple[str, str, float]]) -> Iterator[PageFigure]:
    """Yield a gauge without labels for each of ROWS: its name behind PREFIX, what it is, its value."""
    for name, what, value in rows:
        yield PageFigure("gauge", prefix + name, what, value)


#: Returns what is on the page now.
Source: TypeAlias = Callable[[], Iterable[PageFigure] | Awaitable[Iterable[PageFigure]]]


class MetricsPage:
    """Answers requests for the page with what its SOURCES return, in their order."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    async def __call__(self, asked: PageRequest) -> Shown:
        """Return what ASKED shows."""
        if asked.method not in READING:
            return Shown(405, "text/plain", _ONLY)
        if asked.path != PATH:
            return Shown(404, "text/plain", _ONLY)
        found: list[Iterable[PageFigure]] = []
        for source in self._sources:
            figures = source()
            found.append(await figures if isawaitable(figures) else list(figures))
        return Shown(200, CONTENT_TYPE, await asyncio.to_thread(text_of, chain(*found)))


def text_of(figures: Iterable[PageFigure]) -> bytes:
    """Return FIGURES as text."""
    texts: dict[Labels, str] = {}
    lines: list[str] = []
    for name, series in groupby(figures, lambda figure: figure.name):
        first = True
        for kind, _, what, value, labels in series:
            if first:
                lines.append(f"# HELP {name} {_escaped(what)}\n# TYPE {name} {kind}\n")
                first = False
            text = texts.get(labels)
            if text is None:
                text = texts[labels] = ",".join(
                    f'{key}="{_quoted(of_label)}"' for key, of_label in labels
                )
            if isinstance(value, (int, float)):
                lines.append(
                    f"{name}{{{text}}} {float(value)!r}\n" if text else f"{name} {float(value)!r}\n"
                )
            else:
                lines += _buckets(name, text, value)
    return "".join(lines).encode("utf-8", "replace")


def _buckets(name: str, text: str, value: Buckets) -> Iterator[str]:
    """Yield the lines of a histogram with the labels TEXT, counted as Prometheus counts: of all up to each bound."""
    behind = f",{text}" if text else ""
    below = 0
    bounds = [*(repr(float(bound)) for bound in value.bounds), "+Inf"]
    for bound, below in zip(bounds, accumulate(value.counts), strict=True):
        yield f'{name}_bucket{{le="{bound}"{behind}}} {float(below)!r}\n'
    braces = f"{{{text}}}" if text else ""
    yield f"{name}_count{braces} {float(below)!r}\n{name}_sum{braces} {float(value.total)!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
