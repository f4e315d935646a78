"""Subscriptions: topics, each with a filter: tags, or an SQL92 expression over properties, which the broker evaluates.

    consumer.subscribe("orders", "paid || refunded")           tags
    consumer.subscribe("orders", Sql("amount > 100 AND region IN ('eu', 'us')"))

An expression that does not parse is refused where it is created. See docs/filter.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..proto.errors import InvalidFilter, InvalidName
from ..proto.filters.expressions import parse_tags, tag_expression
from ..proto.filters.sql_evaluation import compiled
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.topics import check_topic


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over the properties of messages. Raises InvalidFilter unless it parses."""

    expression: str
    """The expression, for example "price > 100 AND region = 'EU'"."""

    def __post_init__(self) -> None:
        compiled(self.expression)


#: Tags ("a || b"; "*" is every message), an SQL expression, or None for every message.
Filter: TypeAlias = str | Sql | None
#: Topics as applications name them: "orders", ["orders", "bills"], or
#: {"orders": "paid || refunded", "bills": Sql("amount > 100"), "news": None}.
Topics: TypeAlias = str | Iterable[str] | Mapping[str, Filter]
#: The filter of each topic as a protobuf message.
Subscriptions: TypeAlias = Mapping[str, pb.Filter]


def to_wire(wanted: Filter) -> pb.Filter:
    """Return WANTED as a protobuf message. `normalised` compares two of them. Raises InvalidFilter."""
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
    """Return the subscriptions for TOPICS. Raises InvalidName and InvalidFilter."""
    if isinstance(topics, str):
        topics = (topics,)
    if not isinstance(topics, Iterable):
        raise InvalidName(
            f"topics is {topics!r:.80}, but must be a topic's name, several, or a mapping of names to filters",
            field="topics",
        )
    wanted = topics if isinstance(topics, Mapping) else dict.fromkeys(topics)
    return {check_topic(topic): to_wire(one) for topic, one in wanted.items()}
