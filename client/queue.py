"""A queue of a topic, by its full name: the same number exists on every broker that holds the topic.

Subscriptions: topics, and what is wanted of each: tags, or an SQL92 expression over properties, which the broker
evaluates.

    consumer.subscribe("orders", "paid || refunded")           tags
    consumer.subscribe("orders", Sql("amount > 100 AND region IN ('eu', 'us')"))

An expression that does not parse is refused where it is made. See docs/filters.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from ..proto.errors import InvalidFilter, InvalidName, QueueNotFound
from ..proto.filters.expressions import normalised, parse_tags, tag_expression
from ..proto.filters.sql_evaluation import compiled
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.topics import check_topic

Item = TypeVar("Item")

#: Queues in one request: a broker takes 10,000 at most, and serves nobody else while it looks at them.
QUEUES_AT_ONCE: Final = 1_000


class Queue(NamedTuple):
    """Queue NUMBER of TOPIC on BROKER (the broker's name, not its address)."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.broker}:{self.number}]"


def in_parts(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield ITEMS, one a queue, in lists for one request each."""
    rest = iter(items)
    while part := list(islice(rest, QUEUES_AT_ONCE)):
        yield part


def find_queue(wanted: Queue | int, topic: str, queues: Sequence[Queue]) -> Queue:
    """Return the one of QUEUES that is WANTED; raise QueueNotFound if there is none, or several by a mere number."""
    if isinstance(wanted, Queue):
        found = [queue for queue in queues if queue == wanted]
    else:
        found = [queue for queue in queues if queue.number == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        brokers = ", ".join(queue.broker for queue in found[:32])
        why = f"{len(found)} brokers have a queue {wanted} ({brokers}): name one, Queue(topic, broker, number)"
    else:
        more = f" and {len(queues) - 32:,} more" if len(queues) > 32 else ""
        have = ", ".join(f"{queue.broker}:{queue.number}" for queue in queues[:32]) or "none"
        why = f"there is no queue {wanted}; it has {have}{more}"
    raise QueueNotFound(
        f"topic {topic!r}: {why}",
        topic=topic,
        queue=wanted,
    )


# ---------------------------------------------------------------- subscriptions


__all__ = ["Filter", "Sql", "Subscriptions", "Topics", "normalised", "subscriptions_of", "to_wire"]


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over the properties of messages. Raises InvalidFilter unless it parses."""

    expression: str

    def __post_init__(self) -> None:
        compiled(self.expression)


#: Tags ("a || b"; "*" is every message), an SQL expression, or None for every message.
Filter: TypeAlias = str | Sql | None
#: Topics as applications name them: "orders", ["orders", "bills"], or
#: {"orders": "paid || refunded", "bills": Sql("amount > 100"), "news": None}.
Topics: TypeAlias = str | Iterable[str] | Mapping[str, Filter]
#: What is wanted of each topic, as it travels.
Subscriptions: TypeAlias = Mapping[str, pb.Filter]


def to_wire(wanted: Filter) -> pb.Filter:
    """Return WANTED as it travels; `normalised` of it tells whether two want the same. Raises InvalidFilter."""
    if wanted is None:
        return pb.Filter()
    if isinstance(wanted, Sql):
        return pb.Filter(kind=pb.Filter.SQL, expression=wanted.expression)
    if not isinstance(wanted, str):
        raise InvalidFilter(
            f"a filter is {wanted!r:.80}, but must be tags as text ('a || b'), Sql(…), or None for every message",
            field="filter",
        )
    tags = parse_tags(wanted)
    return pb.Filter(kind=pb.Filter.TAG, expression=tag_expression(tags)) if tags else pb.Filter()


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
