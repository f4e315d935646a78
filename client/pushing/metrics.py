"""What a push consumer counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..consuming.counts import Counts
from ..queue import Queue


@dataclass(slots=True)
class PushCounts:
    """Numbers that only grow. Not thread-safe: the client's event loop owns them."""

    #: Messages that a listener took, or that were handled when they came again.
    handled: int = 0
    #: Outcomes that were failures; a message that fails twice counts twice.
    failed: int = 0
    sent_back: int = 0
    dead: int = 0
    #: Failed messages of which nothing more was made: broadcasting, or at most once.
    dropped: int = 0
    #: Messages whose listener took longer than consume_timeout_ms.
    slow: int = 0
    #: How often a queue was not read on because of messages, bytes or span.
    paused_by_messages: int = 0
    paused_by_bytes: int = 0
    paused_by_span: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushMetrics:
    """A push consumer at one moment."""

    handled: int
    failed: int
    sent_back: int
    dead: int
    dropped: int
    slow: int
    paused_by_messages: int
    paused_by_bytes: int
    paused_by_span: int
    #: Messages that are fetched and not finished, and their bytes.
    held: int
    held_bytes: int
    #: Messages that listeners are at.
    in_process: int
    #: How long the listener took: upper bounds in milliseconds, and messages of each; the last are above all bounds.
    listener_ms_bounds: tuple[float, ...]
    listener_ms_counts: tuple[int, ...]
    listener_ms_sum: float
    #: Messages that are stored and not finished, by queue.
    lag: dict[Queue, int]
    #: Fetching, committing and rebalancing.
    counts: Counts = field(default_factory=Counts)
