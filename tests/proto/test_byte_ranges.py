"""Ranges of a buffer, gathered and split, equal what slicing gives one by one."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto import byte_ranges
from pocketmq.proto.byte_ranges import hash_ranges, left_aligned, right_aligned, split
from pocketmq.proto.java_hash import java_hash

#: Few different bytes, so that separators are frequent.
buffers = st.lists(st.sampled_from(b"ab\x01\x02 "), max_size=80).map(bytes)


@st.composite
def buffers_with_ranges(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]]]:
    data = draw(buffers)
    count = draw(st.integers(0, 12))
    ranges = []
    for _ in range(count):
        start = draw(st.integers(0, len(data)))
        ranges.append((start, draw(st.integers(-1, len(data) - start))))
    return data, ranges


def arrays(ranges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    columns = np.array(ranges, np.int64).reshape(-1, 2)
    return columns[:, 0].copy(), columns[:, 1].copy()


@given(buffers_with_ranges())
def test_splitting_gives_the_parts_that_are_not_empty(
    case: tuple[bytes, list[tuple[int, int]]],
) -> None:
    data, ranges = case

    parts = split(np.frombuffer(data, np.uint8), *arrays(ranges), separator=2)

    found = [
        (int(row), data[start:end])
        for row, start, end in zip(parts.rows, parts.starts, parts.ends, strict=True)
    ]
    assert found == [
        (row, part)
        for row, (start, size) in enumerate(ranges)
        for part in data[start : start + max(size, 0)].split(b"\x02")
        if part
    ]
    for (_, part), word in zip(found, parts.words.tolist(), strict=True):
        head = part[:8]
        assert int(word).to_bytes(8, "little")[: len(head)] == head


@given(buffers_with_ranges())
def test_splitting_in_slices_gives_the_same(case: tuple[bytes, list[tuple[int, int]]]) -> None:
    data, ranges = case
    array = np.frombuffer(data, np.uint8)
    whole = split(array, *arrays(ranges), separator=2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_ranges, "CELLS_MAX", 40)
        sliced = split(array, *arrays(ranges), separator=2)

    assert sliced.rows.tolist() == whole.rows.tolist()
    assert sliced.starts.tolist() == whole.starts.tolist()
    assert sliced.ends.tolist() == whole.ends.tolist()


@given(buffers_with_ranges())
def test_alignment_keeps_the_bytes_of_each_range(
    case: tuple[bytes, list[tuple[int, int]]],
) -> None:
    data, ranges = case
    ranges = [(start, max(size, 0)) for start, size in ranges]
    width = max((size for _, size in ranges), default=0)
    if not width:
        return
    array = np.frombuffer(data, np.uint8)

    left = left_aligned(array, *arrays(ranges), width)
    right = right_aligned(array, *arrays(ranges), width)

    for row, (start, size) in enumerate(ranges):
        wanted = data[start : start + size]
        assert left[row].tobytes()[:size] == wanted
        assert right[row].tobytes() == wanted.rjust(width, b"\0")


@given(
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=12) | st.just("x" * 600)), max_size=8)
)
def test_a_seed_for_each_range_continues_each_prefix(pairs: list[tuple[str, str]]) -> None:
    encoded = [text.encode() for _, text in pairs]
    sizes = np.array([len(one) for one in encoded], np.int64)
    seeds = np.array([java_hash(prefix) for prefix, _ in pairs], np.int32)

    hashes = hash_ranges(
        np.frombuffer(b"".join(encoded), np.uint8), np.cumsum(sizes) - sizes, sizes, seed=seeds
    )

    assert hashes.tolist() == [java_hash(prefix + text) for prefix, text in pairs]
