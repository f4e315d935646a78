"""Tag expressions: the tags that a consumer wants, separated by `||`.

    expression = "" | "*"            every message, with a tag or without
               | tag { "||" tag }    messages with one of these tags; blanks around a tag are not part of it

As in Apache RocketMQ's clients, empty parts are ignored ("a ||" is "a"). Two mistakes that RocketMQ accepts are refused
here: an expression without any tag ("||"), and a `*` next to tags.
"""

from __future__ import annotations

from typing import Final

from ..errors import InvalidFilter

SEPARATOR: Final = "||"
EVERY: Final = "*"
#: Limits of an expression: characters, and different tags.
EXPRESSION_LENGTH_MAX: Final = 32_768
TAGS_MAX: Final = 4_096


def parse_tags(expression: str) -> tuple[str, ...]:
    """Return the tags of EXPRESSION, sorted, without duplicates; none: all messages match. Raises InvalidFilter."""
    if expression.strip() in ("", EVERY):
        return ()
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise InvalidFilter(
            f"the tag expression has {len(expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}:"
            " subscribe to * and filter in the application",
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
            f"the tag expression {expression!r} has '*' next to tags: '*' alone is every message",
            field="expression",
            value=expression,
        )
    if len(tags) > TAGS_MAX:
        raise InvalidFilter(
            f"the tag expression has {len(tags)} tags, the limit is {TAGS_MAX}:"
            " subscribe to * and filter in the application",
            field="expression",
            limit=TAGS_MAX,
            value=len(tags),
        )
    return tuple(tags)


def tag_expression(tags: tuple[str, ...]) -> str:
    """Return the expression that `parse_tags` turns into TAGS."""
    return f" {SEPARATOR} ".join(tags) if tags else EVERY
