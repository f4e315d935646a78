"""Tag expressions: the tags that a consumer wants, separated by `||`.

    expression = "" | "*"            every message, with a tag or without
               | tag { "||" tag }    messages with one of these tags; blanks around a tag are not part of it

As in Apache's clients, parts that are empty count for nothing ("a ||" is "a"). Apache takes an expression without any
tag ("||") for every message and a `*` beside tags for a tag of that name; both are mistakes, and refused here.

Filters as they travel: `pb.Filter` checked, in one form for all that mean the same.
"""

from __future__ import annotations

from typing import Final

from ..errors import InvalidFilter
from ..gen import pocketmq_v1_pb2 as pb
from .sql_evaluation import compiled
from .sql_parser import unparse

SEPARATOR: Final = "||"
EVERY: Final = "*"
#: Limits of an expression: characters, and different tags.
EXPRESSION_LENGTH_MAX: Final = 32_768
TAGS_MAX: Final = 4_096


def parse_tags(expression: str) -> tuple[str, ...]:
    """Return the tags of EXPRESSION, sorted, each once; none: every message is wanted. Raises InvalidFilter."""
    if expression.strip() in ("", EVERY):
        return ()
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise InvalidFilter(
            f"the tag expression has {len(expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}:"
            " subscribe to * and choose in the application",
            field="expression",
            limit=EXPRESSION_LENGTH_MAX,
            value=len(expression),
        )
    tags = sorted({part.strip() for part in expression.split(SEPARATOR)} - {""})
    if not tags:
        raise InvalidFilter(
            f"the tag expression {expression!r} names no tag: write 'a || b', or '*' for every message",
            field="expression",
            value=expression,
        )
    if EVERY in tags:
        raise InvalidFilter(
            f"the tag expression {expression!r} has '*' beside tags: '*' alone is every message",
            field="expression",
            value=expression,
        )
    if len(tags) > TAGS_MAX:
        raise InvalidFilter(
            f"the tag expression has {len(tags)} tags, the limit is {TAGS_MAX}:"
            " subscribe to * and choose in the application",
            field="expression",
            limit=TAGS_MAX,
            value=len(tags),
        )
    return tuple(tags)


def tag_expression(tags: tuple[str, ...]) -> str:
    """Return the expression that `parse_tags` reads as TAGS."""
    return f" {SEPARATOR} ".join(tags) if tags else EVERY


# ---------------------------------------------------------------- filters as they travel


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
