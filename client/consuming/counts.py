"""What a consumer counts. Times are milliseconds, sums since it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..exposition import Exposition


@dataclass(slots=True)
class Counts:
    """Numbers that only grow. Not thread-safe: the client's event loop owns them; others may look."""

    #: Messages given to the application.
    handed_out: int = 0
    #: Messages that a filter stepped over at the broker.
    filtered: int = 0
    #: Messages that the broker could not give any more: damaged in its store, or gone with a file.
    lost: int = 0
    #: Queues' offsets that brokers have taken.
    commits: int = 0
    commits_failed: int = 0
    #: Generations of the group in which this member got a share.
    rebalances: int = 0
    #: Queues that came and went by rebalancing, and for how long each was read by nobody, as seen from here: from the
    #: assignment until it was given to us, and from the end of reading until it was released.
    queues_gained: int = 0
    gaining_ms: int = 0
    queues_released: int = 0
    releasing_ms: int = 0
    #: Queues whose lease ended while we read them.
    queues_lost: int = 0
    #: Messages that were handed out and could not be committed any more: they come again elsewhere.
    repeats: int = 0

    def text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the numbers for Prometheus, each with LABELS, for example {"client": "billing-1"}."""
        lines = Exposition(CONSUMER_PREFIX, labels)
        lines.add("counter", COUNTERS, self)
        return lines.text


CONSUMER_PREFIX: Final = "pocketmq_consumer_"
#: Field, name, what it counts.
COUNTERS: Final = (
    ("handed_out", "handed_out_messages_total", "Messages given to the application."),
    ("filtered", "filtered_messages_total", "Messages that a filter stepped over at the broker."),
    ("lost", "lost_messages_total", "Messages that the broker could not give any more."),
    ("commits", "commits_total", "Offsets of queues that brokers have taken."),
    ("commits_failed", "commits_failed_total", "Offsets of queues that brokers have not taken."),
    ("rebalances", "rebalances_total", "Generations in which this member got a share."),
    ("queues_gained", "queues_gained_total", "Queues that came by rebalancing."),
    ("gaining_ms", "gaining_seconds_total", "From assignment to lease, all queues together."),
    ("queues_released", "queues_released_total", "Queues that went by rebalancing."),
    ("releasing_ms", "releasing_seconds_total", "From the end of reading to release, all queues."),
    ("queues_lost", "queues_lost_total", "Queues whose lease ended while they were read."),
    ("repeats", "repeats_total", "Messages handed out that come again elsewhere."),
)
