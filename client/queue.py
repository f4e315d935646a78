"""The full name of a queue: topic, broker and number. The same number exists on every broker that has the topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from ..proto.errors import QueueNotFound

Item = TypeVar("Item")

#: Maximum number of queues per request. A broker accepts 10,000, but serves no other client while it processes them.
QUEUES_AT_ONCE: Final = 1_000


class Queue(NamedTuple):
    """Queue NUMBER of TOPIC on BROKER (the broker's name, not its address)."""

    topic: str
    """Topic of the queue."""
    broker: str
    """Name of its broker."""
    number: int
    """Number of the queue, from 0."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.broker}:{self.number}]"


def in_parts(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield ITEMS, one per queue, in lists for one request each."""
    rest = iter(items)
    while part := list(islice(rest, QUEUES_AT_ONCE)):
        yield part


def find_queue(wanted: Queue | int, topic: str, queues: Sequence[Queue]) -> Queue:
    """Return the one of QUEUES that is WANTED. Raises QueueNotFound if there is none, or several with this number."""
    if isinstance(wanted, Queue):
        found = [queue for queue in queues if queue == wanted]
    else:
        found = [queue for queue in queues if queue.number == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        brokers = ", ".join(queue.broker for queue in found[:32])
        why = f"{len(found)} brokers have a queue {wanted} ({brokers}): name one with Queue(topic, broker, number)"
    else:
        more = f" and {len(queues) - 32:,} more" if len(queues) > 32 else ""
        have = ", ".join(f"{queue.broker}:{queue.number}" for queue in queues[:32]) or "none"
        why = f"there is no queue {wanted}; it has {have}{more}"
    raise QueueNotFound(
        f"topic {topic!r}: {why}",
        topic=topic,
        queue=wanted,
    )
