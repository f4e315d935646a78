"""What a consumer counts. Times are milliseconds, sums since it was made."""

from __future__ import annotations

from dataclasses import dataclass


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
