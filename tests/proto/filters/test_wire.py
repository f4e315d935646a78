"""Filters on the wire: equal ones have one form, unknown ones are refused."""

from __future__ import annotations

import pytest

from pocketmq.proto.errors import InvalidFilter
from pocketmq.proto.filters.normal_form import normalised
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

TAG, SQL = pb.Filter.TAG, pb.Filter.SQL


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pb.Filter(kind=TAG, expression="a || b"), pb.Filter(kind=TAG, expression="b||a||a")),
        (pb.Filter(kind=TAG, expression="*"), pb.Filter()),
        (pb.Filter(kind=TAG), pb.Filter()),
        (pb.Filter(expression="left over"), pb.Filter()),
        (
            pb.Filter(kind=SQL, expression=" a in('x')\n"),
            pb.Filter(kind=SQL, expression="a IN ('x')"),
        ),
    ],
)
def test_filters_that_mean_the_same_have_one_form(one: pb.Filter, other: pb.Filter) -> None:
    assert normalised(one) == normalised(other)


def test_different_tags_stay_different() -> None:
    assert normalised(pb.Filter(kind=TAG, expression="a")) != normalised(
        pb.Filter(kind=TAG, expression="b")
    )


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        (pb.Filter(kind=7), "kind"),  # type: ignore[arg-type]
        (pb.Filter(kind=SQL, expression="  "), "expression"),
        (pb.Filter(kind=TAG, expression="||"), "expression"),
    ],
)
def test_a_filter_that_nobody_can_evaluate_is_refused(wire: pb.Filter, field: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        normalised(wire)

    assert caught.value.details["field"] == field
