"""Topics as applications name them: one, several, or with what is wanted of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ...proto.errors import InvalidName
from ...proto.topics import check_topic
from ..filtering import Filter, to_wire
from .held_queue import Subscriptions

#: "orders", ["orders", "bills"], or {"orders": "paid || refunded", "bills": Sql("amount > 100"), "news": None}.
Topics: TypeAlias = str | Iterable[str] | Mapping[str, Filter]


def subscriptions_of(topics: Topics) -> Subscriptions:
    """Return what TOPICS ask for. Raises InvalidName and InvalidFilter."""
    if isinstance(topics, str):
        topics = (topics,)
    if not isinstance(topics, Iterable):
        raise InvalidName(
            f"topics is {topics!r:.80}, but must be a topic's name, several, or a mapping of names to filters",
            field="topics",
        )
    wanted = topics if isinstance(topics, Mapping) else dict.fromkeys(topics)
    return {check_topic(topic): to_wire(one) for topic, one in wanted.items()}
