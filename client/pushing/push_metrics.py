"""The metrics of a push consumer: its counters, a snapshot of them, and their text for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..consuming.parts import CONSUMER_PREFIX, COUNTERS, ConsumerMetrics
from ..exposition import Exposition
from ..queue import Queue


@dataclass(slots=True)
class PushCounts:
    """Counters, which only grow. Not thread-safe: the client's event loop owns them."""

    #: Messages that a listener processed, also when they were redelivered.
    handled: int = 0
    #: Failures of the listener. A message that fails twice counts twice.
    failed: int = 0
    sent_back: int = 0
    dead: int = 0
    #: Failed messages that are not retried: broadcasting, or at most once.
    dropped: int = 0
    #: Messages whose listener took longer than consume_timeout_ms.
    slow: int = 0
    #: Pauses of fetching because of the limit of messages, bytes, or span.
    paused_by_messages: int = 0
    paused_by_bytes: int = 0
    paused_by_span: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushMetrics:
    """A snapshot of the metrics of a push consumer."""

    handled: int
    """Messages that the listener processed, and messages that were processed when redelivered."""
    failed: int
    """Failures of the listener. A message that fails twice counts twice."""
    sent_back: int
    """Messages returned for a retry."""
    dead: int
    """Messages moved to the dead-letter queue."""
    dropped: int
    """Failed messages that are not retried: broadcasting, or at most once."""
    slow: int
    """Messages whose listener took longer than `consume_timeout_ms`."""
    paused_by_messages: int
    """Pauses of fetching, because `queue_messages_max` was reached."""
    paused_by_bytes: int
    """Pauses of fetching, because `queue_max_bytes` was reached."""
    paused_by_span: int
    """Pauses of fetching, because `offset_span_max` was reached."""
    held: int
    """Messages that are fetched and not processed yet."""
    held_bytes: int
    """Bytes of these messages."""
    in_process: int
    """Messages that listeners are processing."""
    listener_ms_bounds: tuple[float, ...]
    """Upper limits of the buckets of the listener's time, in milliseconds."""
    listener_ms_counts: tuple[int, ...]
    """Messages per bucket; the last bucket has those above all limits."""
    listener_ms_sum: float
    """Sum of the listener's time in milliseconds."""
    lag: dict[Queue, int]
    """Messages that are stored and not processed yet, by queue."""
    counts: ConsumerMetrics = field(default_factory=ConsumerMetrics)
    """Counters of fetches, commits and rebalances."""

    def text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics in the Prometheus text format, each with LABELS, for example {"client": "billing-1"}.

        The lag has one sample per assigned queue.
        """
        lines = Exposition(CONSUMER_PREFIX, labels)
        lines.add("counter", COUNTERS, self.counts)
        lines.add("counter", _PUSH_COUNTERS, self)
        lines.add("gauge", _PUSH_GAUGES, self)
        lines.add_by_queue("lag_messages", "Messages stored and not processed yet.", self.lag)
        limits = [limit_ms / 1_000 for limit_ms in self.listener_ms_bounds]
        what, total = "Time of the listener per message.", self.listener_ms_sum / 1_000
        lines.add_histogram("listener_seconds", what, limits, self.listener_ms_counts, total)
        return lines.text


#: Field, name of the metric, and its help text.
_PUSH_COUNTERS: Final = (
    ("handled", "handled_messages_total", "Messages that the listener processed."),
    ("failed", "failures_total", "Failures of the listener."),
    ("sent_back", "sent_back_messages_total", "Failed messages returned for a retry."),
    ("dead", "dead_messages_total", "Failed messages moved to the dead-letter queue."),
    ("dropped", "dropped_messages_total", "Failed messages that are not retried."),
    ("slow", "slow_messages_total", "Messages whose listener exceeded consume_timeout_ms."),
    ("paused_by_messages", "paused_by_messages_total", "Pauses at queue_messages_max."),
    ("paused_by_bytes", "paused_by_bytes_total", "Pauses of fetching at queue_max_bytes."),
    ("paused_by_span", "paused_by_span_total", "Pauses of fetching at offset_span_max."),
)
_PUSH_GAUGES: Final = (
    ("held", "held_messages", "Messages fetched and not processed yet."),
    ("held_bytes", "held_bytes", "Bytes of the messages fetched and not processed yet."),
    ("in_process", "in_process_messages", "Messages that listeners are processing."),
)
