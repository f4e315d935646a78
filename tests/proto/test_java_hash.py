"""Java hashes: known values, and the vectorised form against the plain one."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.byte_ranges import hash_ranges, java_hashes
from pocketmq.proto.java_hash import java_hash

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TAG1", 2567159),
        ("polygenelubricants", -(2**31)),
        ("🚀", 1773027),
    ],
)
def test_known_hashes(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.lists(_TEXTS | st.text("ab", min_size=500, max_size=600), max_size=20))
def test_many_hashes_are_those_of_each(texts: list[str]) -> None:
    assert java_hashes(texts).tolist() == [java_hash(text) for text in texts]


@given(_TEXTS, st.lists(_TEXTS, min_size=1, max_size=5))
def test_a_hash_continues_from_its_prefix(prefix: str, texts: list[str]) -> None:
    encoded = [text.encode() for text in texts]
    sizes = np.array([len(part) for part in encoded], np.int64)
    starts = np.cumsum(sizes) - sizes
    data = np.frombuffer(b"".join(encoded), np.uint8)

    hashes = hash_ranges(data, starts, sizes, seed=java_hash(prefix))

    assert hashes.tolist() == [java_hash(prefix + text) for text in texts]
