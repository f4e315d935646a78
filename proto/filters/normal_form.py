"""Filters of requests (`pb.Filter`), checked and in one form for all that mean the same."""

from __future__ import annotations

from ..errors import InvalidFilter
from ..gen import pocketmq_v1_pb2 as pb
from .expressions import parse_tags, tag_expression
from .sql_evaluation import compiled
from .sql_tree import unparse


def normalised(wire: pb.Filter) -> pb.Filter:
    """Return the filter that means the same as WIRE, in the form that all filters of its tags, or of its tree, have.

    Tags are sorted; SQL has its keywords in capitals and no needless parentheses or blanks; what wants every message
    is of the kind ALL. For comparing: an SQL text may be longer so than a filter may be. Raises InvalidFilter.
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
        f"filter kind {wire.kind} is not known: it is 0 (every message), 1 (tags) or 2 (SQL)",
        field="kind",
        value=wire.kind,
    )


def canonical_sql(expression: str) -> str:
    """Return EXPRESSION in the form that all expressions of its tree have. Raises InvalidFilter."""
    return unparse(compiled(expression).tree)
