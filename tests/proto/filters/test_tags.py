"""Tag expressions: what they name, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import InvalidFilter
from pocketmq.proto.filters.expressions import (
    EXPRESSION_LENGTH_MAX,
    TAGS_MAX,
    parse_tags,
    tag_expression,
)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("", ()),
        ("*", ()),
        (" * ", ()),
        ("a", ("a",)),
        ("b || a", ("a", "b")),
        ("b||a||b", ("a", "b")),
        ("a ||", ("a",)),
        ("|| a || || b", ("a", "b")),
        ("a b", ("a b",)),
        ("a|b", ("a|b",)),
        ("**", ("**",)),
    ],
)
def test_an_expression_names_its_tags_sorted_and_once(
    expression: str, tags: tuple[str, ...]
) -> None:
    assert parse_tags(expression) == tags


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("||", "names no tag"),
        (" || || ", "names no tag"),
        ("a || *", "'*' next to tags"),
        ("x" * (EXPRESSION_LENGTH_MAX + 1), "32769 characters, the limit is 32768"),
        ("||".join(map(str, range(TAGS_MAX + 1))), "4097 tags, the limit is 4096"),
    ],
)
def test_what_names_no_tags_or_too_many_is_refused(expression: str, sentence: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_tags(expression)

    assert sentence in caught.value.message
    assert caught.value.details["field"] == "expression"


def test_as_many_and_as_long_tags_as_apaches_suite_has_are_taken() -> None:
    many = [f"tag_{number}" for number in range(2_500)]

    assert parse_tags("x" * 10_240) == ("x" * 10_240,)
    assert parse_tags(" || ".join(many)) == tuple(sorted(many))


@given(st.text())
def test_any_text_is_tags_or_an_invalid_filter_and_tags_are_written_as_they_are_read(
    text: str,
) -> None:
    try:
        tags = parse_tags(text)
    except InvalidFilter:
        return

    assert parse_tags(tag_expression(tags)) == tags
