"""The property string, by Apache's reader's rules."""

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.properties import (
    closed,
    decode_properties,
    encode_again,
    encode_properties,
    whole_number,
    without,
)

_TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(_TEXT, _TEXT), st.booleans())
def test_properties_come_back_with_and_without_the_last_separator(
    properties: dict[str, str], trailing: bool
) -> None:
    data = encode_properties(properties)

    assert decode_properties(data if trailing else data[:-1]) == properties


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"a\x01\x02", {}),
        (b"\x01v\x02", {}),
        (b"novalue\x02a\x01b", {"a": "b"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"\x02\x02a\x01b\x02", {"a": "b"}),
        (b"a\x01\xff\x02", {"a": "�"}),
    ],
)
def test_malformed_pairs_are_read_as_apache_reads_them(
    data: bytes, expected: dict[str, str]
) -> None:
    assert decode_properties(data) == expected


@pytest.mark.parametrize("pair", [("", "v"), ("n", ""), ("a\x01", "v"), ("n", "a\x02b")])
def test_a_property_that_no_reader_would_find_again_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        encode_properties([pair])


@given(st.dictionaries(_TEXT, _TEXT), st.booleans(), st.lists(_TEXT), st.data())
def test_without_drops_the_named_and_leaves_room_for_more(
    properties: dict[str, str], trailing: bool, others: list[str], data: st.DataObject
) -> None:
    string = encode_properties(properties)
    named = data.draw(st.lists(st.sampled_from(sorted(properties)))) if properties else []
    dropped = {*named, *others}

    left = without(string if trailing else string[:-1], dropped)

    kept = {name: value for name, value in properties.items() if name not in dropped}
    assert left == encode_properties(kept)


@pytest.mark.parametrize(
    ("string", "left"),
    [
        (b"", b""),
        (b"novalue\x02a\x011\x02\x02b\x012", b"novalue\x02\x02b\x012\x02"),
        (b"a\x011\x02b\x01\xff\x02a\x012\x02", b"b\x01\xff\x02"),
        (b"aa\x011\x02ba\x011\x02", b"aa\x011\x02ba\x011\x02"),
    ],
)
def test_what_is_malformed_or_of_another_name_stays(string: bytes, left: bytes) -> None:
    assert without(string, ["a"]) == left


def test_what_was_read_is_encoded_again_whatever_it_holds() -> None:
    assert encode_again({"a": "b\x01c", "n": "1"}) == b"a\x01b\x01c\x02n\x011\x02"


def test_a_string_is_closed_once() -> None:
    assert [closed(one) for one in (b"", b"a\x011", b"a\x011\x02")] == [
        b"",
        b"a\x011\x02",
        b"a\x011\x02",
    ]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("0", 0),
        ("9" * 18, 10**18 - 1),
        ("9" * 19, None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
    ],
)
def test_a_whole_number_is_ascii_digits_that_fit_64_bits(value: str, number: int | None) -> None:
    assert whole_number(value) == number
