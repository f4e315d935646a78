"""`GET /metrics`: the broker's figures and those of its clients, in Prometheus' text format.

A plain HTTP/1.1 request on the broker's port (front.py), answered with the whole page and closed. Other paths are 404,
other methods 405. The page is made when it is asked for, on the event loop: 2 ms, and 50 µs for each series of clients,
of which metrics.py bounds the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

from .metrics import GAUGES, HISTOGRAMS, LABELS, ClientMetrics, Histogram

PATH: Final = b"/metrics"


class Figure(NamedTuple):
    """One number of the broker: a counter only grows, and its name ends in `_total`."""

    kind: Literal["counter", "gauge"]
    name: str
    what: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class MetricsPage:
    """Answers requests for the page. FIGURES returns what the broker has to say, each name once."""

    def __init__(self, figures: Callable[[], Iterable[Figure]], clients: ClientMetrics) -> None:
        self._figures = figures
        self._clients = clients
        self._registry: Any = None

    def __call__(self, head: bytes) -> bytes:
        """Return the whole answer to the request with HEAD."""
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _answer("405 Method Not Allowed", b"only GET /metrics is answered\n")
        if path != PATH:
            return _answer("404 Not Found", b"only GET /metrics is answered\n")
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        page: bytes = generate_latest(self._own_registry())
        return _answer("200 OK", page, kind=CONTENT_TYPE_LATEST, only_head=method == b"HEAD")

    def _own_registry(self) -> Any:
        """Return a registry of our own: nothing of the process's stands in it."""
        if self._registry is None:
            from prometheus_client import CollectorRegistry

            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return self._registry

    def collect(self) -> Iterator[Any]:
        """Yield everything, as prometheus_client wants it of a collector."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for figure in self._figures():
            family = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            made = family(figure.name, figure.what, labels=[name for name, _ in figure.labels])
            made.add_metric([value for _, value in figure.labels], figure.value)
            yield made
        yield from self._of_clients()

    def _of_clients(self) -> Iterator[Any]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        labels = list(LABELS.values())
        for name, what in HISTOGRAMS.items():
            histograms = HistogramMetricFamily(name, what, labels=labels)
            for values, histogram in self._clients.histograms(name):
                histograms.add_metric(values, _buckets(histogram), histogram.total)
            yield histograms
        for name, what in GAUGES.items():
            gauges = GaugeMetricFamily(name, what, labels=labels)
            for values, value in self._clients.gauges(name):
                gauges.add_metric(values, value)
            yield gauges
        yield CounterMetricFamily(
            "pocketmq_broker_client_series_dropped",
            "Series of clients that others took the place of.",
            value=self._clients.dropped,
        )


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the counts of HISTOGRAM as Prometheus counts: of all values up to each bound."""
    found: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        below += count
        found.append(("+Inf" if bound is None else repr(float(bound)), below))
    return found


def _answer(
    status: str, body: bytes, *, kind: str = "text/plain", only_head: bool = False
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if only_head else body)
