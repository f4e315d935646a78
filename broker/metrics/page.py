"""`GET /metrics`: metrics in the Prometheus text format, version 0.0.4.

A plain HTTP request on the broker's port (proto/rpc/pages.py). Other paths are 404, other methods 405.

    sources = [source, …]            each returns PageFigures, grouped by name; no name is in two sources
    page = MetricsPage(sources)

A source is called on the event loop. A plain function returns its values at once, so they are of one moment. An async
one may return an iterator over a copy of the tables: the thread that makes the text computes the values. The text takes
about 1 µs per line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from inspect import isawaitable
from itertools import accumulate, chain, groupby
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from ...proto.rpc.pages import READING, HttpResponse, PageRequest

PATH: Final = "/metrics"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ONLY: Final = b"only GET /metrics is answered\n"


class Buckets(Protocol):
    """A histogram. COUNTS has one number per bucket: values up to each of BOUNDS, and larger ones. TOTAL: the sum."""

    @property
    def bounds(self) -> Sequence[float]: ...

    @property
    def counts(self) -> Sequence[int]: ...

    @property
    def total(self) -> float: ...


#: Names of labels and their values, in the order of the output.
Labels: TypeAlias = tuple[tuple[str, str], ...]


class PageFigure(NamedTuple):
    """One series. A counter only grows, and its name ends in `_total`; the value of a histogram is Buckets."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    what: str
    value: float | Buckets
    labels: Labels = ()


def gauges(prefix: str, rows: Iterable[tuple[str, str, float]]) -> Iterator[PageFigure]:
    """Yield a gauge without labels for each of ROWS: the end of its name after PREFIX, its help text, its value."""
    for name, what, value in rows:
        yield PageFigure("gauge", prefix + name, what, value)


#: Returns the present metrics.
Source: TypeAlias = Callable[[], Iterable[PageFigure] | Awaitable[Iterable[PageFigure]]]


class MetricsPage:
    """Answers requests for the page with the metrics of its SOURCES, in their order."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    async def __call__(self, asked: PageRequest) -> HttpResponse:
        """Return the page for the request ASKED."""
        if asked.method not in READING:
            return HttpResponse(405, "text/plain", _ONLY)
        if asked.path != PATH:
            return HttpResponse(404, "text/plain", _ONLY)
        found: list[Iterable[PageFigure]] = []
        for source in self._sources:
            figures = source()
            found.append(await figures if isawaitable(figures) else list(figures))
        return HttpResponse(200, CONTENT_TYPE, await asyncio.to_thread(text_of, chain(*found)))


def text_of(figures: Iterable[PageFigure]) -> bytes:
    """Return `figures` in the text format."""
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
    """Yield the lines of a histogram with the labels TEXT. The counts of buckets are cumulative."""
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
