"""How a bound on the messages of one batch is shared among queues. Pure."""

from __future__ import annotations

from ....client.queue import Queue
from .offsets import Offsets


def shares(backlogs: Offsets, limit: int) -> dict[Queue, int]:
    """Return how many messages each queue of BACKLOGS gives to a batch of LIMIT, in proportion to its backlog.

    Every queue that has any gives at least one, so that none starves: only where more queues have some than LIMIT
    says is the sum above it, by these. Otherwise the sum is LIMIT, or everything there is.
    """
    waiting = {queue: count for queue, count in sorted(backlogs.items()) if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    given = {queue: max(1, limit * count // total) for queue, count in waiting.items()}
    # Whoever was rounded up to one took from the others: these give it back, the largest first.
    over = sum(given.values()) - limit
    for queue in sorted(given, key=lambda queue: (-given[queue], queue)):
        if over <= 0:
            break
        back = min(over, given[queue] - 1)
        given[queue] -= back
        over -= back
    # What rounding down left goes where most waits, one each.
    by_rest = sorted(given, key=lambda queue: (given[queue] - waiting[queue], queue))
    for queue in by_rest[: max(0, -over)]:
        given[queue] += 1
    return given
