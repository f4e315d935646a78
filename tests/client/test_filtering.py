"""What a subscription wants: its form on the wire, and mistakes told where they are made."""

from __future__ import annotations

import pytest

from pocketmq.client.subscriptions import Filter, Sql, to_wire
from pocketmq.proto.errors import InvalidFilter
from pocketmq.proto.filters.normal_form import normalised
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb


@pytest.mark.parametrize(
    ("wanted", "wire"),
    [
        (None, pb.Filter()),
        ("*", pb.Filter()),
        ("b || a", pb.Filter(kind=pb.Filter.TAG, expression="a || b")),
        (Sql("a > 5"), pb.Filter(kind=pb.Filter.SQL, expression="a > 5")),
    ],
)
def test_what_is_wanted_has_one_form_on_the_wire(wanted: Filter, wire: pb.Filter) -> None:
    assert to_wire(wanted) == wire
    assert normalised(to_wire(wanted)) == wire


@pytest.mark.parametrize("expression", ["", "  ", "a >", "a b"])
def test_an_expression_that_does_not_parse_is_refused_when_it_is_made(expression: str) -> None:
    with pytest.raises(InvalidFilter, match="SQL filter, character"):
        Sql(expression)


def test_spellings_of_one_expression_are_normalised_to_one() -> None:
    one, other = to_wire(Sql("a>5 and (b = 'x')")), to_wire(Sql("a > 5 AND b='x' -- both"))

    assert one != other
    assert normalised(one) == normalised(other)


def test_a_tag_expression_without_tags_is_refused() -> None:
    with pytest.raises(InvalidFilter, match="names no tag"):
        to_wire("||")
