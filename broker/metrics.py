"""`GET /metrics`: the broker's figures and those of its clients, in Prometheus' text format.

A plain HTTP request on the broker's port (proto/rpc/pages.py). Other paths are 404, other methods 405. What stands on
the page is noted on the event loop, at one moment; its text is made on a thread, which takes 0.1 ms for each series of
clients, of which client_metrics.py bounds the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.rpc.methods import ConnectionTotals
from ..proto.rpc.pages import READING, Shown
from .client_metrics import GAUGES, HISTOGRAMS, LABELS, ClientHistogram, ClientMetrics, LabelValues
from .parts import BrokerParts

PATH: Final = "/metrics"
_ONLY: Final = b"only GET /metrics is answered\n"
#: Topics of which is told what was sent to them; groups, with a topic each, of which is told what they skipped.
_TOPICS_MAX: Final = 100
_GROUPS_MAX: Final = 100


class PageFigure(NamedTuple):
    """One number of the broker: a counter only grows, and its name ends in `_total`."""

    kind: Literal["counter", "gauge"]
    name: str
    what: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class MetricsPage:
    """Answers requests for the page. FIGURES returns what the broker has to say, those of one name together."""

    def __init__(self, figures: Callable[[], Iterable[PageFigure]], clients: ClientMetrics) -> None:
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
                PageFigure(
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

    figures: list[PageFigure]
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


# --- what a broker says of itself


def figures(
    parts: BrokerParts, status: pb.BrokerStatusReply, connections: ConnectionTotals | None
) -> Iterator[PageFigure]:
    """Yield the figures of a broker with PARTS and STATUS, and of its CONNECTIONS; None: the carrier does not tell."""
    who = (
        ("broker", status.broker_name),
        ("cluster", status.cluster),
        ("version", status.version),
    )
    yield PageFigure("gauge", "pocketmq_broker_info", "Who this is.", 1, who)
    yield from _process(status)
    yield from _traffic(parts)
    yield from _connections(connections or ConnectionTotals(open=0, accepted=0, refused=0))
    yield from _tables(parts, status)
    yield from _store(parts, status)
    yield from _topics(parts)
    yield from _groups(parts)


def _topics(parts: BrokerParts) -> Iterator[PageFigure]:
    """Yield what producers sent, of the topics that got most."""
    counts = parts.sends.counts.by_topic
    most = sorted(counts, key=lambda name: -counts[name].messages)[:_TOPICS_MAX]
    for field, name, what in (
        ("messages", "sent_messages", "Messages that were sent to a topic and stored."),
        ("bytes", "sent_bytes", "Bytes of their records."),
        ("failed", "sends_failed", "Runs of messages that were refused, or not stored in time."),
    ):
        for topic in sorted(most):
            value = getattr(counts[topic], field)
            labels = (("topic", topic),)
            yield PageFigure("counter", f"pocketmq_topic_{name}_total", what, value, labels)


def _groups(parts: BrokerParts) -> Iterator[PageFigure]:
    """Yield what filters stepped over, of the groups and topics with the most of it."""
    counts = parts.accounts.skipped_by_topic()
    most = sorted(counts, key=lambda key: -counts[key])[:_GROUPS_MAX]
    for group, topic in sorted(most):
        yield PageFigure(
            "gauge",
            "pocketmq_group_skipped_messages",
            "Messages that the filters of a group stepped over, since its account began.",
            counts[group, topic],
            (("group", group), ("topic", topic)),
        )


def _process(status: pb.BrokerStatusReply) -> Iterator[PageFigure]:
    yield PageFigure(
        "gauge",
        "pocketmq_broker_start_time_seconds",
        "When it started, by the messages' time.",
        status.started_ms / 1000,
    )
    yield PageFigure(
        "counter", "process_cpu_seconds_total", "CPU time of the process.", status.cpu_seconds
    )
    yield PageFigure(
        "gauge",
        "process_resident_memory_bytes",
        "Resident memory of the process.",
        status.rss_bytes,
    )


def _connections(totals: ConnectionTotals) -> Iterator[PageFigure]:
    """Yield what connections there are, and what they hold: zeros with grpcio, which does not tell."""
    rows: list[tuple[str, str, float]] = [
        (
            "connections",
            "Connections that are open; 0 with grpcio, which does not tell.",
            totals.open,
        ),
        (
            "held_request_bytes",
            "Bytes of requests that are not whole; at most broker.held_bytes_max.",
            totals.requests_held_bytes,
        ),
        (
            "held_answer_bytes",
            "Bytes of answers that are not read; at most broker.held_bytes_max.",
            totals.answers_held_bytes,
        ),
    ]
    for name, what, value in rows:
        yield PageFigure("gauge", f"pocketmq_broker_{name}", what, value)


def _traffic(parts: BrokerParts) -> Iterator[PageFigure]:
    sends, fetches = parts.sends.counts, parts.fetches
    rows: list[tuple[str, str, float]] = [
        ("sends", "Runs of messages that were sent and stored.", sends.stored),
        ("sent_messages", "Messages in them.", sends.messages),
        (
            "sends_failed",
            "Runs of messages that were refused, or not stored in time.",
            sends.failed,
        ),
        ("fetches", "Fetches that were asked for.", fetches.asked),
        (
            "lost_messages",
            "Messages that groups stepped over, each once a group: damaged, or gone with a file.",
            parts.accounts.lost,
        ),
        (
            "skipped_messages",
            "Messages that filters of groups stepped over, each once a group.",
            parts.accounts.skipped,
        ),
    ]
    for name, what, value in rows:
        yield PageFigure("counter", f"pocketmq_broker_{name}_total", what, value)
    rows = [
        ("sends_waiting", "Sends that wait for the device.", parts.sends.waiting),
        ("waiting", "Fetches and receives that wait for messages.", len(parts.purgatory)),
    ]
    for name, what, value in rows:
        yield PageFigure("gauge", f"pocketmq_broker_{name}", what, value)


def _tables(parts: BrokerParts, status: pb.BrokerStatusReply) -> Iterator[PageFigure]:
    topics = len(parts.topics.all(include_system=True))
    rows: list[tuple[str, str, float]] = [
        ("topics", "Topics, those of the system included.", topics),
        ("groups", "Groups of consumers.", len(parts.groups.all())),
        ("timers", "What waits for its time in memory.", len(parts.timers)),
        ("delayed_waiting", "Messages that wait for their time.", status.delayed_waiting),
        ("transactions_open", "Transactions without an outcome.", status.transactions_open),
        (
            "pop_in_flight",
            "Messages that consumers have popped and not finished.",
            parts.pops.in_flight,
        ),
    ]
    for name, what, value in rows:
        yield PageFigure("gauge", f"pocketmq_broker_{name}", what, value)


def _store(parts: BrokerParts, status: pb.BrokerStatusReply) -> Iterator[PageFigure]:
    yield PageFigure(
        "counter",
        "pocketmq_store_appended_bytes_total",
        "Bytes that the log has ever had.",
        status.max_log_offset,
    )
    yield PageFigure(
        "counter",
        "pocketmq_store_damaged_records_total",
        "Records that were found damaged and set aside since the broker started.",
        parts.store.damages.count,
    )
    yield PageFigure(
        "counter",
        "pocketmq_store_scrubbed_bytes_total",
        "Bytes of the log that were verified in the background since the broker started.",
        parts.store.scrubber.read_bytes,
    )
    rows: list[tuple[str, str, float]] = [
        ("log_begin_bytes", "Log offset of the oldest byte that is kept.", status.min_log_offset),
        ("flushed_bytes", "Log offset up to which all is on the device.", status.flushed_offset),
        (
            "dispatched_bytes",
            "Log offset up to which all is in its queue.",
            status.dispatched_offset,
        ),
        ("disk_used_ratio", "How full the device is.", status.disk_used_ratio),
        ("writable", "Does it take messages?", status.writable),
    ]
    for name, what, value in rows:
        yield PageFigure("gauge", f"pocketmq_store_{name}", what, value)
