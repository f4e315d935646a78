"""Filters as they travel: `pb.Filter` checked, in one form for all that mean the same."""

from __future__ import annotations

from ..errors import InvalidFilter
from ..gen import pocketmq_v1_pb2 as pb
from .tags import parse_tags, tag_expression


def normalised(wire: pb.Filter) -> pb.Filter:
    """Return the filter that means the same as WIRE, equal for all that do but for the words that SQL is put in.

    Tags are sorted, and what wants every message is of the kind ALL. Raises InvalidFilter.
    """
    if wire.kind == pb.Filter.ALL:
        return pb.Filter()
    if wire.kind == pb.Filter.TAG:
        tags = parse_tags(wire.expression)
        return (
            pb.Filter(kind=pb.Filter.TAG, expression=tag_expression(tags)) if tags else pb.Filter()
        )
    if wire.kind == pb.Filter.SQL:
        return pb.Filter(kind=pb.Filter.SQL, expression=checked_sql(wire.expression))
    raise InvalidFilter(
        f"filter kind {wire.kind} is not known: it is 0 (every message), 1 (tags) or 2 (SQL)",
        field="kind",
        value=wire.kind,
    )


def checked_sql(expression: str) -> str:
    """Return EXPRESSION without blanks around it. Raises InvalidFilter."""
    text = expression.strip()
    if not text:
        raise InvalidFilter(
            "the SQL expression is empty: to have every message, leave the filter out",
            field="expression",
            value=expression,
        )
    return text
