"""Metrics of a producer: its counters, a snapshot of them, and their text for Prometheus.

Counting has a cost per batch, not per message. A snapshot copies about a hundred numbers. The client's event loop
writes the counters; any thread may read them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from .exposition import Exposition
from .producing.accumulator import Budget

_MESSAGES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 4_000)
_BYTES: Final = tuple(256 << power for power in range(0, 16))
_MS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)


class _Histogram:
    """Counts values per bucket; see HistogramSnapshot."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count VALUE."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def frozen(self) -> HistogramSnapshot:
        """Return a snapshot."""
        return HistogramSnapshot(bounds=self.bounds, counts=tuple(self.counts), total=self.total)


@dataclass(slots=True)
class ProducerCounters:
    """The counters of ProducerMetrics, without the values of the buffer."""

    messages_sent: int = 0
    messages_failed: int = 0
    bytes_sent: int = 0
    requests: int = 0
    retries: int = 0
    splits: int = 0
    moves: int = 0
    expired: int = 0
    repeats_dropped: int = 0
    possible_repeats: int = 0
    epochs: int = 0
    refused_unheard: int = 0
    batch_messages: _Histogram = field(default_factory=lambda: _Histogram(_MESSAGES))
    batch_bytes: _Histogram = field(default_factory=lambda: _Histogram(_BYTES))
    queue_time_ms: _Histogram = field(default_factory=lambda: _Histogram(_MS))
    request_latency_ms: _Histogram = field(default_factory=lambda: _Histogram(_MS))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSnapshot:
    """A snapshot of a histogram. The last of `counts` is the bucket above all limits."""

    bounds: tuple[float, ...]
    """Upper limits of the buckets."""
    counts: tuple[int, ...]
    """Values per bucket; the last bucket has the values above all limits."""
    total: float
    """Sum of all values."""

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean of all values; 0 if there are none."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the upper limit of the bucket with the quantile SHARE (0 to 1); infinity above all limits.

        0 if there are no values.
        """
        wanted = share * self.count
        for bound, below in zip(self.bounds, accumulate(self.counts), strict=False):
            if below >= wanted:
                return bound if self.count else 0.0
        return float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics:
    """A snapshot of the metrics of a producer. A *request* is one try to send one batch."""

    messages_sent: int
    """Acknowledged messages."""
    messages_failed: int
    """Messages whose send failed."""
    bytes_sent: int
    """Bytes of the records that were acknowledged."""
    requests: int
    """Tries to send a batch."""
    retries: int
    """Tries after the first."""
    splits: int
    """Batches that were split, because a broker refused them as a whole."""
    moves: int
    """Batches that went to another queue than the one chosen first."""
    expired: int
    """Batches that were given up after `delivery_timeout_ms`."""
    repeats_dropped: int
    """Messages of which an earlier try had been stored: the broker dropped the duplicate."""
    possible_repeats: int
    """Messages that may be stored twice: they were sent again after the broker had forgotten the
    producer's sequence.
    """
    epochs: int
    """New epochs of idempotent sending."""
    refused_unheard: int
    """Refused batches that no caller waits for (acks="none")."""
    buffer_waits: int
    """Sends that had to wait for buffer memory."""
    buffer_bytes: int
    """Bytes of the unacknowledged messages."""
    buffer_limit_bytes: int
    """Maximum of `buffer_bytes`: the setting `buffer_memory`."""
    batch_messages: HistogramSnapshot
    """Messages per batch."""
    batch_bytes: HistogramSnapshot
    """Bytes per batch."""
    queue_time_ms: HistogramSnapshot
    """Time from the first message of a batch to its first request."""
    request_latency_ms: HistogramSnapshot
    """Time from a request to its answer."""

    @classmethod
    def of(cls, counters: ProducerCounters, buffer: Budget) -> ProducerMetrics:
        """Return a snapshot of COUNTERS and BUFFER."""
        values = {name: getattr(counters, name) for name in ProducerCounters.__slots__}
        frozen: dict[str, Any] = {
            name: value.frozen() if isinstance(value, _Histogram) else value
            for name, value in values.items()
        }
        return cls(
            buffer_waits=buffer.wait_count,
            buffer_bytes=buffer.taken_bytes,
            buffer_limit_bytes=buffer.limit_bytes,
            **frozen,
        )

    def text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics in the Prometheus text format, each with LABELS, for example {"client": "billing-1"}."""
        lines = Exposition("pocketmq_producer_", labels)
        lines.add("counter", _COUNTERS, self)
        lines.add("gauge", _GAUGES, self)
        for attribute, name, what, divisor in _HISTOGRAMS:
            histogram: HistogramSnapshot = getattr(self, attribute)
            bounds = [bound / divisor for bound in histogram.bounds]
            total = histogram.total / divisor
            lines.add_histogram(name, what, bounds, histogram.counts, total)
        return lines.text


#: Field, name of the metric, and its help text.
_COUNTERS: Final = (
    ("messages_sent", "messages_sent_total", "Messages acknowledged."),
    ("messages_failed", "messages_failed_total", "Messages whose send failed."),
    ("bytes_sent", "sent_bytes_total", "Bytes of acknowledged records."),
    ("requests", "requests_total", "Tries to send a batch."),
    ("retries", "retries_total", "Tries after the first one."),
    ("splits", "splits_total", "Batches split because a broker refused them."),
    ("moves", "moves_total", "Batches sent to another queue than the one chosen first."),
    ("expired", "expired_total", "Batches that failed after delivery_timeout_ms."),
    ("repeats_dropped", "repeats_dropped_total", "Duplicate messages dropped by a broker."),
    ("possible_repeats", "possible_repeats_total", "Messages that may be stored twice."),
    ("epochs", "epochs_total", "New epochs of idempotent sending."),
    (
        "refused_unheard",
        "refused_unheard_total",
        'Batches refused that were sent with acks="none".',
    ),
    ("buffer_waits", "buffer_waits_total", "Sends that waited for buffer memory."),
)
_GAUGES: Final = (
    ("buffer_bytes", "buffer_bytes", "Bytes of unacknowledged messages."),
    ("buffer_limit_bytes", "buffer_limit_bytes", "Maximum size of the buffer in bytes."),
)
#: Field, name of the metric, its help text, and the divisor of its values.
_HISTOGRAMS: Final = (
    ("batch_messages", "batch_messages", "Messages per batch.", 1),
    ("batch_bytes", "batch_bytes", "Bytes per batch.", 1),
    ("queue_time_ms", "queue_time_seconds", "Time from first message to first request.", 1000),
    ("request_latency_ms", "request_latency_seconds", "Time from request to reply.", 1000),
)
