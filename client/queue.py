"""A queue of a topic, by its full name: the same number exists on every broker that holds the topic."""

from __future__ import annotations

from typing import NamedTuple


class Queue(NamedTuple):
    """Queue NUMBER of TOPIC on BROKER (the broker's name, not its address)."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.broker}:{self.number}]"
