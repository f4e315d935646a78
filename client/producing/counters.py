"""What a producer counts of itself, run by run: nothing here is touched for a single message.

Not thread-safe: the client's event loop writes; others may read a number at any time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_MESSAGES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 4_000)
_BYTES: Final = tuple(256 << power for power in range(0, 16))
_MS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)


class Histogram:
    """Counts values up to each of BOUNDS, and above the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        #: How many values lie within each bound but above the one before; the last: above all.
        self.counts = [0] * (len(self.bounds) + 1)
        #: The sum of all values.
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count VALUE."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean of all values; 0 if there are none."""
        count = self.count
        return self.total / count if count else 0.0


@dataclass(slots=True)
class ProducerCounters:
    """What a producer did since it began. A *request* is one try to send one run."""

    messages_sent: int = 0
    messages_failed: int = 0
    bytes_sent: int = 0
    requests: int = 0
    retries: int = 0
    #: Runs that were cut in two, because a broker refused them as a whole.
    splits: int = 0
    #: Runs that went to another queue than the one that was chosen first.
    moves: int = 0
    #: Runs that were given up because delivery_timeout_ms was over.
    expired: int = 0
    #: Messages of which an earlier try had been stored: the broker dropped the repeat.
    repeats_dropped: int = 0
    #: Messages that may be stored twice: they were sent again when the broker could not tell repeats any more.
    possible_repeats: int = 0
    #: New epochs of idempotent sending.
    epochs: int = 0
    #: Refusals of runs that nobody waits for (acks="none").
    refused_unheard: int = 0
    #: Senders that found the buffer full and had to wait.
    buffer_waits: int = 0
    #: Bytes of the messages without an acknowledgement.
    buffer_bytes: int = 0
    batch_messages: Histogram = field(default_factory=lambda: Histogram(_MESSAGES))
    batch_bytes: Histogram = field(default_factory=lambda: Histogram(_BYTES))
    #: From the first message of a run to its first request.
    queue_time_ms: Histogram = field(default_factory=lambda: Histogram(_MS))
    #: From a request to its answer.
    request_latency_ms: Histogram = field(default_factory=lambda: Histogram(_MS))
