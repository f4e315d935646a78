"""A queue of a topic, by its full name: the same number exists on every broker that holds the topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..proto.errors import QueueNotFound


class Queue(NamedTuple):
    """Queue NUMBER of TOPIC on BROKER (the broker's name, not its address)."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.broker}:{self.number}]"


def find_queue(wanted: Queue | int, topic: str, queues: Sequence[Queue]) -> Queue:
    """Return the one of QUEUES that is WANTED; raise QueueNotFound if there is none, or several by a mere number."""
    if isinstance(wanted, Queue):
        found = [queue for queue in queues if queue == wanted]
    else:
        found = [queue for queue in queues if queue.number == wanted]
    if len(found) == 1:
        return found[0]
    have = ", ".join(f"{queue.broker}:{queue.number}" for queue in queues[:32]) or "none"
    hint = "name the broker: Queue(topic, broker, number)" if found else f"it has {have}"
    raise QueueNotFound(
        f"topic {topic!r}: queue {wanted} is there {len(found)} times; {hint}",
        topic=topic,
        queue=wanted,
    )
