"""Filters at work: they want exactly what a look at each message's properties wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.messages.filters import choice_of
from pocketmq.proto.errors import InvalidFilter
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.java_hash import java_hash
from pocketmq.proto.record import Record, encode_record
from pocketmq.store.slices import Slices

#: "Aa" and "BB" have one hash, as "AaAa", "AaBB", "BBBB" have; "é" is two bytes.
TAGS = ["Aa", "BB", "AaAa", "AaBB", "BBBB", "a", "ab", "é", "x" * 600]
tags = st.none() | st.sampled_from(TAGS)


def seen(rows: Sequence[dict[str, str]], codes: Sequence[int] | None = None) -> Slices:
    """Return what a store reads of messages with the properties ROWS."""
    records = [encode_record(Record(topic="T", body=b"x", properties=row)) for row in rows]
    if codes is None:
        codes = [java_hash(row.get("TAGS", "")) for row in rows]
    return Slices(
        records=b"".join(records),
        sizes=np.array(list(map(len, records)), np.int64),
        queue_offsets=np.arange(len(rows)),
        tags_codes=np.array(codes, np.int64),
        next_offset=len(rows),
        min_offset=0,
        max_offset=len(rows),
    )


def row(tag: str | None) -> dict[str, str]:
    return {"KEYS": "k"} if tag is None else {"KEYS": "k", "TAGS": tag}


@given(st.lists(tags), st.sets(st.sampled_from(TAGS), min_size=1))
def test_of_tags_exactly_the_wanted_ones_are_wanted(
    rows: list[str | None], wanted: set[str]
) -> None:
    choice = choice_of(pb.Filter(kind=pb.Filter.TAG, expression=" || ".join(wanted)))
    assert choice is not None
    found = seen(list(map(row, rows)))

    candidates, chosen = choice.candidates(found.tags_codes), choice.wanted(found)

    assert chosen.tolist() == [tag in wanted for tag in rows]
    assert not (chosen & ~candidates).any()


@given(st.lists(tags), st.sets(st.sampled_from(TAGS), min_size=1))
def test_of_many_tags_exactly_the_wanted_ones_are_wanted(
    rows: list[str | None], wanted: set[str]
) -> None:
    wanted |= {f"other{number}" for number in range(2_500)}
    choice = choice_of(pb.Filter(kind=pb.Filter.TAG, expression="||".join(sorted(wanted))))
    assert choice is not None
    found = seen(list(map(row, rows)))

    assert choice.wanted(found).tolist() == [tag in wanted for tag in rows]


def test_a_code_that_is_no_hash_is_looked_at() -> None:
    choice = choice_of(pb.Filter(kind=pb.Filter.TAG, expression="a"))
    assert choice is not None
    found = seen([row("a"), row("b"), row(None)], [1 << 40, -(1 << 62), 1 << 31])

    assert choice.candidates(found.tags_codes).tolist() == [True] * 3
    assert choice.wanted(found).tolist() == [True, False, False]


def test_a_message_without_tags_is_none_of_a_tag_with_the_hash_zero() -> None:
    assert java_hash("f5a5a608") == 0
    choice = choice_of(pb.Filter(kind=pb.Filter.TAG, expression="f5a5a608"))
    assert choice is not None
    found = seen([row(None), row("f5a5a608")])

    assert choice.candidates(found.tags_codes).all()
    assert choice.wanted(found).tolist() == [False, True]


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.sampled_from(["1", "2", "x"]))))
def test_of_properties_those_are_wanted_for_which_the_expression_is_true(
    rows: list[dict[str, str]],
) -> None:
    choice = choice_of(pb.Filter(kind=pb.Filter.SQL, expression="a > 1 OR b = 'x'"))
    assert choice is not None
    found = seen(rows)

    assert choice.candidates(found.tags_codes).all()
    assert choice.wanted(found).tolist() == [
        row.get("a") == "2" or row.get("b") == "x" for row in rows
    ]


@pytest.mark.parametrize(("expression", "wanted"), [("TRUE", True), ("1 > 2 OR NULL", False)])
def test_an_expression_without_properties_wants_all_or_nothing(
    expression: str, wanted: bool
) -> None:
    choice = choice_of(pb.Filter(kind=pb.Filter.SQL, expression=expression))
    assert choice is not None

    assert choice.wanted(seen([{}, {"a": "1"}])).tolist() == [wanted] * 2


@pytest.mark.parametrize("kind", [pb.Filter.TAG, pb.Filter.SQL])
def test_nothing_seen_is_nothing_wanted(kind: pb.Filter.Kind) -> None:
    choice = choice_of(pb.Filter(kind=kind, expression="a"))
    assert choice is not None

    assert choice.wanted(seen([])).tolist() == []


@pytest.mark.parametrize(
    "wire", [pb.Filter(), pb.Filter(kind=pb.Filter.TAG, expression="*"), pb.Filter(expression="x")]
)
def test_what_wants_every_message_is_no_choice(wire: pb.Filter) -> None:
    assert choice_of(wire) is None


def test_a_filter_that_does_not_parse_is_refused() -> None:
    with pytest.raises(InvalidFilter):
        choice_of(pb.Filter(kind=pb.Filter.SQL, expression="a >"))
    with pytest.raises(InvalidFilter, match="kind 9"):
        choice_of(pb.Filter(kind=9))  # type: ignore[arg-type]
