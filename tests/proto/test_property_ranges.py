"""Values are found where decoding each record's properties finds them, whether records share a layout or not."""

import random
import tracemalloc

import numpy as np
from hypothesis import given, strategies as st

from pocketmq.proto.java_hash import java_hash
from pocketmq.proto.properties import decode_properties
from pocketmq.proto.property_ranges import PropertyRanges, tags_codes
from pocketmq.proto.record import Host, encode_run
from pocketmq.proto.record_run import parse_run, starts_of

NAMES = ["KEYS", "TAGS", "UNIQ_KEY", "KEY", "ab", "a_longer_name", ""]
SOME_HOST = Host(bytes(4), 0)


def check(strings: list[bytes]) -> PropertyRanges:
    """Compare with decoding one by one; return what was compared."""
    messages = [(b"x", string) for string in strings]
    data, sizes = encode_run("T", 0, messages, born_timestamp_ms=1, born_host=SOME_HOST)
    ranges = PropertyRanges(data, parse_run(data, starts_of(sizes)))
    for name in NAMES[:-1]:
        starts, lengths = ranges.find(name)
        assert ranges.has(name) == bool((lengths > 0).any())
        for row, string in enumerate(strings):
            value = decode_properties(string).get(name)
            start, size = int(starts[row]), int(lengths[row])
            found = data[start : start + size].decode() if size >= 0 else None
            assert found == value
        assert ranges.texts(name) == [decode_properties(string).get(name) for string in strings]
    codes = tags_codes(data, ranges)
    assert codes.tolist() == [java_hash(decode_properties(one).get("TAGS", "")) for one in strings]
    check_pairs(data, ranges, strings)
    return ranges


def check_pairs(data: bytes, ranges: PropertyRanges, strings: list[bytes]) -> None:
    """Compare all pairs of each record with what decoding it gives."""
    pairs = ranges.pairs()
    found: list[dict[str, str]] = [{} for _ in strings]
    columns = (pairs.name_starts, pairs.name_ends, pairs.value_starts, pairs.value_ends)
    for row, *places in zip(pairs.rows.tolist(), *(one.tolist() for one in columns), strict=True):
        name_start, name_end, value_start, value_end = places
        name, value = data[name_start:name_end].decode(), data[value_start:value_end].decode()
        found[row].pop(name, None)
        found[row][name] = value
    assert found == [decode_properties(string) for string in strings]


@given(
    layout=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9)), max_size=5),
    count=st.integers(1, 14),
    alphabet=st.sampled_from(["a", "ab\x01", "ab\x01\x02", "abcdefgh"]),
    trailing=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_values_of_equal_lengths_are_found(
    layout: list[tuple[str, int]], count: int, alphabet: str, trailing: bool, seed: int
) -> None:
    rng = random.Random(seed)
    strings = []
    for _ in range(count):
        pairs = [f"{name}\x01{''.join(rng.choices(alphabet, k=size))}" for name, size in layout]
        strings.append(("\x02".join(pairs) + "\x02" * trailing).encode())

    check(strings)


@given(
    st.lists(
        st.lists(st.sampled_from([*list("abKEYS\x01\x02"), "KEYS\x01", "TAGS\x01x", "é"]))
        .map("".join)
        .map(str.encode),
        min_size=1,
        max_size=14,
    )
)
def test_values_in_any_strings_are_found(strings: list[bytes]) -> None:
    check(strings)


@given(
    first=st.lists(st.sampled_from([*list("abKEYS\x01\x02"), "KEYS\x01", "TAGS\x01x"])).map(
        "".join
    ),
    count=st.integers(1, 9),
    other=st.sampled_from(["", "KEYS\x01%04d\x02", "UNIQ_KEY\x01%04d\x02TAGS\x01t\x02"]),
)
def test_a_first_record_that_differs_from_the_others_is_read_by_itself(
    first: str, count: int, other: str
) -> None:
    rest = [(other % number if other else "").encode() for number in range(count)]

    ranges = check([first.encode(), *rest])

    if other and len(first) != len(rest[0]):
        assert ranges._layout is not None


def test_a_separator_inside_one_value_ends_the_common_layout() -> None:
    strings = [b"KEYS\x01abcdefgh\x02"] * 9
    strings[5] = b"KEYS\x01a\x02TAGS\x01x\x02"
    assert len({len(one) for one in strings}) == 1

    ranges = check(strings)

    assert np.flatnonzero(ranges.find("TAGS")[1] >= 0).tolist() == [5]


def test_a_record_without_the_property_costs_no_copy_of_the_data() -> None:
    strings = [b"A\x01x\x02", b"BBB\x01y\x02", b"CCCCC\x01z\x02"]
    messages = [(bytes(1 << 20), string) for string in strings]
    data, sizes = encode_run("T", 0, messages, born_timestamp_ms=1, born_host=SOME_HOST)
    ranges = PropertyRanges(data, parse_run(data, starts_of(sizes)))
    ranges.find("A")
    tracemalloc.start()

    found = ranges.texts("A")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == ["x", None, None]
    assert peak < 1 << 16
