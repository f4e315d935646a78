"""Metric families of `/metrics` that begin with `pocketmq_`, and those that official clients measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc.carrier import ConnectionTotals
from ..parts import BrokerParts
from .clients import GAUGES, HISTOGRAMS, LABELS, ClientMetrics, LabelValues
from .page import Labels, PageFigure, gauges

#: Limit of topics with counters of sends, and of pairs of group and topic with counters of filtered
#: messages.
_TOPICS_MAX: Final = 100
_GROUPS_MAX: Final = 100


def figures(
    parts: BrokerParts,
    status: pb.BrokerStatusReply,
    connections: ConnectionTotals | None,
    denials: Mapping[str, int],
) -> Iterator[PageFigure]:
    """Yield the metrics of a broker with PARTS and STATUS, and of CONNECTIONS (None: the carrier has no counters).

    DENIALS: the calls that were refused, by the name of their error.
    """
    who = (
        ("broker", status.broker_name),
        ("cluster", status.cluster),
        ("version", status.version),
    )
    yield PageFigure("gauge", "pocketmq_broker_info", "Name and version of the broker.", 1, who)
    yield from _process(status)
    yield from _own_traffic(parts)
    yield from _denied_calls(denials)
    yield from _connections(connections or ConnectionTotals(open=0, accepted=0, refused=0))
    yield from _tables(parts, status)
    yield from _store(parts, status)
    yield from _topics(parts)
    yield from _groups(parts)


def _denied_calls(denials: Mapping[str, int]) -> Iterator[PageFigure]:
    for error in ("NotAuthenticated", "NotAuthorized"):
        yield PageFigure(
            "counter",
            "pocketmq_broker_denied_calls_total",
            "Calls and requests that the broker refused because of users and permissions; 0 without users.",
            denials.get(error, 0),
            (("error", error),),
        )


def _topics(parts: BrokerParts) -> Iterator[PageFigure]:
    """Yield the counters of sends, for the topics with the most messages."""
    counts = parts.sends.counts.by_topic
    most = sorted(counts, key=lambda name: -counts[name].messages)[:_TOPICS_MAX]
    for field, name, what in (
        ("messages", "sent_messages", "Messages received and stored in a topic."),
        ("bytes", "sent_bytes", "Record bytes of received messages."),
        ("failed", "sends_failed", "Batches that were refused, or not stored in time."),
    ):
        for topic in sorted(most):
            value = getattr(counts[topic], field)
            labels = (("topic", topic),)
            yield PageFigure("counter", f"pocketmq_topic_{name}_total", what, value, labels)


def _groups(parts: BrokerParts) -> Iterator[PageFigure]:
    """Yield the filtered messages of the groups and topics with the most of them."""
    counts = parts.consume_stats.skipped_by_topic()
    most = sorted(counts, key=lambda key: -counts[key])[:_GROUPS_MAX]
    for group, topic in sorted(most):
        yield PageFigure(
            "gauge",
            "pocketmq_group_skipped_messages",
            "Messages that a group has filtered out since its statistics began.",
            counts[group, topic],
            (("group", group), ("topic", topic)),
        )


def _process(status: pb.BrokerStatusReply) -> Iterator[PageFigure]:
    yield PageFigure(
        "gauge",
        "pocketmq_broker_start_time_seconds",
        "Start time of the broker, on the clock of its messages.",
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
    """Yield the connections and their memory; zeros with grpcio, which has no counters."""
    rows: list[tuple[str, str, float]] = [
        (
            "connections",
            "Open connections; 0 with grpcio, which does not report them.",
            totals.open,
        ),
        (
            "incomplete_request_bytes",
            "Bytes of incomplete requests; the limit is broker.pending_max_bytes.",
            totals.requests_held_bytes,
        ),
        (
            "held_answer_bytes",
            "Bytes of answers that clients have not read; the limit is broker.pending_max_bytes.",
            totals.answers_held_bytes,
        ),
    ]
    yield from gauges("pocketmq_broker_", rows)


def _own_traffic(parts: BrokerParts) -> Iterator[PageFigure]:
    sends, fetches = parts.sends.counts, parts.fetches
    rows: list[tuple[str, str, float]] = [
        ("sends", "Batches received and stored.", sends.stored),
        ("sent_messages", "Messages in stored batches.", sends.messages),
        ("sends_failed", "Batches that were refused, or not stored in time.", sends.failed),
        ("fetches", "Fetches requested.", fetches.asked),
        (
            "lost_messages",
            "Damaged or deleted messages that groups skipped, counted once per group.",
            parts.consume_stats.lost,
        ),
        (
            "skipped_messages",
            "Messages that groups filtered out, counted once per group.",
            parts.consume_stats.skipped,
        ),
    ]
    for name, what, value in rows:
        yield PageFigure("counter", f"pocketmq_broker_{name}_total", what, value)
    rows = [
        ("sends_waiting", "Sends that wait for a flush to disk.", parts.sends.waiting),
        ("long_polls_waiting", "Long polls that wait for messages.", len(parts.purgatory)),
    ]
    yield from gauges("pocketmq_broker_", rows)


def _tables(parts: BrokerParts, status: pb.BrokerStatusReply) -> Iterator[PageFigure]:
    topics = len(parts.topics.all(include_system=True))
    rows: list[tuple[str, str, float]] = [
        ("topics", "Topics, system topics included.", topics),
        ("groups", "Consumer groups.", len(parts.groups.all())),
        ("timers_pending", "Pending timers in memory.", len(parts.timers)),
        ("delayed_waiting", "Delayed messages that are not delivered yet.", status.delayed_waiting),
        ("transactions_open", "Transactions that have not ended.", status.transactions_open),
        (
            "pop_in_flight",
            "Messages that consumers have popped and not acknowledged.",
            parts.pops.in_flight,
        ),
    ]
    yield from gauges("pocketmq_broker_", rows)


def _store(parts: BrokerParts, status: pb.BrokerStatusReply) -> Iterator[PageFigure]:
    yield PageFigure(
        "counter",
        "pocketmq_store_appended_bytes_total",
        "Bytes appended to the log since the store was created.",
        status.max_log_offset,
    )
    yield PageFigure(
        "counter",
        "pocketmq_store_damaged_records_total",
        "Damaged records that were quarantined since the broker started.",
        parts.store.damages.count,
    )
    yield PageFigure(
        "counter",
        "pocketmq_store_scrubbed_bytes_total",
        "Bytes of the log that the scrubber has verified since the broker started.",
        parts.store.scrubber.read_bytes,
    )
    rows: list[tuple[str, str, float]] = [
        ("log_begin_bytes", "Log offset of the oldest byte in the log.", status.min_log_offset),
        ("flushed_bytes", "Log offset up to which all is on disk.", status.flushed_offset),
        (
            "dispatched_bytes",
            "Log offset up to which records are entered in queues.",
            status.dispatched_offset,
        ),
        ("disk_used_ratio", "Used part of the disk, from 0 to 1.", status.disk_used_ratio),
        ("writable", "1: the broker accepts messages. 0: it refuses them.", status.writable),
    ]
    yield from gauges("pocketmq_store_", rows)


def client_figures(clients: ClientMetrics) -> Iterator[PageFigure]:
    """Yield the metrics that CLIENTS sent, under the names that official clients use."""
    yield PageFigure(
        "counter",
        "pocketmq_broker_client_series_dropped_total",
        "Client series that were replaced by others because of the limit.",
        clients.dropped,
    )
    for name, what in HISTOGRAMS.items():
        for values, histogram in clients.histograms(name):
            yield PageFigure("histogram", name, what, histogram, _labels(values))
    for name, what in GAUGES.items():
        for values, level in clients.gauges(name):
            yield PageFigure("gauge", name, what, level, _labels(values))


def _labels(values: LabelValues) -> Labels:
    return tuple(zip(LABELS.values(), values, strict=True))
