"""Strategy `average`: each topic in pieces without gaps, the first ones longer by one. Apache's "AVG", its default."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..queue import Queue
from .member import Member
from .strategy import Shares, topic_by_topic


class Average:
    """Pieces of each topic that differ by one queue at most.

    It balances topic by topic: with many topics of few queues the first members get more than the last.
    """

    name = "average"

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(_pieces, members, queues)


def _pieces(members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
    least, longer = divmod(len(queues), len(members))
    starts = [at * least + min(at, longer) for at in range(len(members) + 1)]
    return [queues[start:end] for start, end in pairwise(starts)]
