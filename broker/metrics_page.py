"""`GET /metrics`: the broker's figures and those of its clients, in Prometheus' text format.

A plain HTTP request on the broker's port (proto/pages.py). Other paths are 404, other methods 405. What stands on the
page is noted on the event loop, at one moment; its text is made on a thread, which takes 0.1 ms for each series of
clients, of which client_metrics.py bounds the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

from ..proto.rpc.pages import READING, Shown
from .client_metrics import GAUGES, HISTOGRAMS, LABELS, ClientHistogram, ClientMetrics, LabelValues

PATH: Final = "/metrics"
_ONLY: Final = b"only GET /metrics is answered\n"


class Figure(NamedTuple):
    """One number of the broker: a counter only grows, and its name ends in `_total`."""

    kind: Literal["counter", "gauge"]
    name: str
    what: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class MetricsPage:
    """Answers requests for the page. FIGURES returns what the broker has to say, those of one name together."""

    def __init__(self, figures: Callable[[], Iterable[Figure]], clients: ClientMetrics) -> None:
        self._figures = figures
        self._clients = clients

    async def __call__(self, method: str, path: str) -> Shown:
        """Return what METHOD of PATH shows."""
        if method not in READING:
            return Shown(405, "text/plain", _ONLY)
        if path != PATH:
            return Shown(404, "text/plain", _ONLY)
        kind, page = await asyncio.to_thread(_text, self._contents())
        return Shown(200, kind, page)

    def _contents(self) -> _Contents:
        clients = self._clients
        dropped = "Series of clients that others took the place of."
        return _Contents(
            figures=[
                *self._figures(),
                Figure(
                    "counter",
                    "pocketmq_broker_client_series_dropped_total",
                    dropped,
                    clients.dropped,
                ),
            ],
            histograms={name: list(clients.histograms(name)) for name in HISTOGRAMS},
            gauges={name: list(clients.gauges(name)) for name in GAUGES},
        )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)  # A registry wants to hash it.
class _Contents:
    """What stands on the page; a collector of prometheus_client."""

    figures: list[Figure]
    histograms: dict[str, list[tuple[LabelValues, ClientHistogram]]]
    gauges: dict[str, list[tuple[LabelValues, float]]]

    def collect(self) -> Iterator[Any]:
        """Yield everything, as prometheus_client wants it."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for _, of_name in groupby(self.figures, lambda figure: figure.name):
            series = list(of_name)
            kind, name, what, _, labelled = series[0]
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            made = family(name, what, labels=[label for label, _ in labelled])
            for figure in series:
                made.add_metric([value for _, value in figure.labels], figure.value)
            yield made
        labels = list(LABELS.values())
        for name, measured in self.histograms.items():
            histograms = HistogramMetricFamily(name, HISTOGRAMS[name], labels=labels)
            for values, histogram in measured:
                histograms.add_metric(values, _buckets(histogram), histogram.total)
            yield histograms
        for name, levels in self.gauges.items():
            gauges = GaugeMetricFamily(name, GAUGES[name], labels=labels)
            for values, value in levels:
                gauges.add_metric(values, value)
            yield gauges


def _text(contents: _Contents) -> tuple[str, bytes]:
    """Return type and text of a page; on any thread."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    own = CollectorRegistry(auto_describe=False)  # Nothing of the process's stands in it.
    own.register(contents)
    return CONTENT_TYPE_LATEST, generate_latest(own)


def _buckets(histogram: ClientHistogram) -> list[tuple[str, float]]:
    """Return the counts of HISTOGRAM as Prometheus counts: of all values up to each bound."""
    found: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        below += count
        found.append(("+Inf" if bound is None else repr(float(bound)), below))
    return found
