"""Strategy `consistent-hash`: members and queues on one ring; who comes or goes moves only queues of its own.

A member stands at VIRTUAL_NODES points, the hashes of "<name>-<number>"; a queue belongs to the member at the first
point at or after the hash of "MessageQueue [topic=…, brokerName=…, queueId=…]", or else at the first of all. The hash
is the first four bytes of MD5 as a number. These texts and this hash are those of Apache's "CONSISTENT_HASH".

The price of moving little is balance: with Apache's ten points shares differ by a third and more; take more.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from ...proto.errors import ConfigError
from ..queue import Queue
from .member import Member
from .strategy import Shares, topic_by_topic

VIRTUAL_NODES: Final = 10
VIRTUAL_NODES_MAX: Final = 100_000


class ConsistentHash:
    """A ring with VIRTUAL_NODES points a member, 1 to VIRTUAL_NODES_MAX; raises ConfigError for another number."""

    name = "consistent-hash"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if not 1 <= virtual_nodes <= VIRTUAL_NODES_MAX:
            raise ConfigError(
                f"virtual_nodes is {virtual_nodes}, but must be 1 to {VIRTUAL_NODES_MAX}",
                field="virtual_nodes",
                limit=VIRTUAL_NODES_MAX,
                value=virtual_nodes,
            )
        self._virtual_nodes = virtual_nodes

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        return topic_by_topic(self._by_ring, members, queues)

    def _by_ring(self, members: list[Member], queues: list[Queue]) -> list[list[Queue]]:
        # A point that two members share belongs to the later one.
        ring = {
            _hash(f"{member.place}-{number}"): at
            for at, member in enumerate(members)
            for number in range(self._virtual_nodes)
        }
        points = sorted(ring)
        shares: list[list[Queue]] = [[] for _ in members]
        for queue in queues:
            at = bisect_left(points, _hash(_java_text(queue)))
            shares[ring[points[at % len(points)]]].append(queue)
        return shares


def _java_text(queue: Queue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.number}]"


def _hash(text: str) -> int:
    digest = hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4])
