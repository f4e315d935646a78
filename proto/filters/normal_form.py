"""Checks filters of requests (`pb.Filter`) and converts equivalent ones to the same form."""

from __future__ import annotations

from ..errors import InvalidFilter
from ..gen import pocketmq_v1_pb2 as pb
from .expressions import parse_tags, tag_expression
from .sql_evaluation import compiled
from .sql_tree import unparse


def normalised(wire: pb.Filter) -> pb.Filter:
    """Return WIRE in a form that is the same for all filters with the same tags, or with the same tree.

    Tags are sorted. SQL gets keywords in capitals and no needless parentheses or spaces. A filter that matches every
    message gets the kind ALL. Use the result for comparisons only: its SQL text may exceed the limit of a filter.
    Raises InvalidFilter.
    """
    if wire.kind == pb.Filter.ALL:
        return pb.Filter()
    if wire.kind == pb.Filter.TAG:
        tags = parse_tags(wire.expression)
        return (
            pb.Filter(kind=pb.Filter.TAG, expression=tag_expression(tags)) if tags else pb.Filter()
        )
    if wire.kind == pb.Filter.SQL:
        return pb.Filter(kind=pb.Filter.SQL, expression=canonical_sql(wire.expression))
    raise InvalidFilter(
        f"filter kind {wire.kind} is unknown: must be 0 (every message), 1 (tags) or 2 (SQL)",
        field="kind",
        value=wire.kind,
    )


def canonical_sql(expression: str) -> str:
    """Return EXPRESSION in the form shared by all expressions with its tree. Raises InvalidFilter."""
    return unparse(compiled(expression).tree)
