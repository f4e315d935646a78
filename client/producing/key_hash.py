"""Queues by hash: the same key always goes to the same queue, so that what belongs together keeps its order.

All count the queues of a topic in the order of their broker's name, then of their number, as Apache's clients do.

    KeyHash         mmh3 of the message's first key, modulo the queues
    JavaHash        |String.hashCode| modulo the queues: the queue that Apache's SelectMessageQueueByHash takes for the
                    same text
    sharded_queue   for a message with a sharding key: the consistent hash by which Apache's proxy places a message
                    group, so that both agree

**When a topic gets more queues**, the modulo moves nearly all keys, the consistent hash only as many as the new queues
get (of 8 queues made 9: a ninth). What is under way then may be read after what follows it: where order matters
beyond that moment, let the old queues run empty first.

A broker that is lost takes its queues along only once the name servers drop it; until then its messages wait for it,
because another queue would not keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from random import Random

import mmh3

from ...proto.consistent_hash import consistent_bucket
from ...proto.java_hash import java_hash
from ..message import Message
from ..queue import Queue

_BY_BROKER = attrgetter("broker", "number")


@lru_cache(maxsize=1024)
def in_order(queues: tuple[Queue, ...]) -> list[Queue]:
    """Return QUEUES in the order that all here count by."""
    return sorted(queues, key=_BY_BROKER)


class KeyHash:
    """By mmh3 of the first key; a message without a key goes to the next queue in turn."""

    for_a_run = False

    def __init__(self, random: Random | None = None) -> None:
        """RANDOM: where the turn of messages without a key begins."""
        self._turn = (random or Random()).getrandbits(16)

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        row = in_order(tuple(queues))
        if not message.keys:
            self._turn += 1
            return row[self._turn % len(row)]
        return row[self.hash(message.keys[0]) % len(row)]

    def hash(self, key: str) -> int:
        """Return a number ≥ 0 for KEY."""
        return mmh3.hash(key.encode("utf-8", "surrogatepass"), signed=False)


class JavaHash(KeyHash):
    """By Java's String.hashCode of the first key, without its sign; a message without a key goes round."""

    def hash(self, key: str) -> int:
        return abs(java_hash(key))


def sharded_queue(sharding_key: str, queues: Sequence[Queue]) -> Queue:
    """Return the one of QUEUES, of which there is at least one, for SHARDING_KEY."""
    row = in_order(tuple(queues))
    return row[consistent_bucket(java_hash(sharding_key), len(row))]
