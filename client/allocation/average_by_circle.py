"""Strategy `average-by-circle`: the queues of each topic are dealt out one by one. Apache's "AVG_BY_CIRCLE"."""

from __future__ import annotations

from collections.abc import Sequence

from ..queue import Queue
from .member import Member
from .strategy import Shares, topic_by_topic


class AverageByCircle:
    """Every n-th queue of each topic; neighbours, which often lie on one broker, go to different members."""

    name = "average-by-circle"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_dealt, members, queues)


def _dealt(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    return [queues[at :: len(members)] for at in range(len(members))]
