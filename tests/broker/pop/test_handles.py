"""Receipt handles: what they say, and what is none."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.broker.pop.handles import Handle, decode_handle, encode_handle, serials_from
from pocketmq.proto.errors import InvalidReceiptHandle

NATURALS = st.integers(0, (1 << 63) - 1)


@given(st.builds(Handle, st.booleans(), NATURALS, NATURALS, NATURALS))
def test_a_handle_says_what_it_was_made_of(handle: Handle) -> None:
    assert decode_handle(encode_handle(*handle)) == handle


@given(st.text(max_size=200))
def test_any_other_text_is_refused_or_is_a_handle(text: str) -> None:
    try:
        decode_handle(text)
    except InvalidReceiptHandle as error:
        assert len(error.message) < 300


@pytest.mark.parametrize(
    "text", ["", "p", "p1-2", "p1-2-3-4", "q1-2-3", "p1-2-g", "p1--2", "1-2-3"]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceiptHandle, match="none of this broker's"):
        decode_handle(text)


def test_serials_rise_from_where_chance_says() -> None:
    one, other = (list(islice(serials_from(Random(seed)), 3)) for seed in (1, 2))

    assert one == list(range(one[0], one[0] + 3))
    assert one[0] != other[0]
