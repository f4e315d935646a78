"""The dynamic table's size and its updates, and lists that are too large."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from pocketmq.proto.rpc.hpack import (
    FIELD_OVERHEAD_BYTES,
    STATIC_TABLE,
    CompressionError,
    Field,
    FieldDecoder,
    FieldEncoder,
    literal,
)

NEWEST = b"\xbe"
POST = b"\x83"


def entry(number: int, size: int = 40) -> bytes:
    """Return a literal, added to the table, that counts SIZE bytes there."""
    value = f"{number:0{size - FIELD_OVERHEAD_BYTES - 1}}"
    assert len(value) < 0x7F
    return b"\x40\x01x" + bytes((len(value),)) + value.encode()


def update(size: int) -> bytes:
    """Return an update of the table's size."""
    if size < 31:
        return bytes((0x20 + size,))
    assert 31 + 0x80 <= size < 31 + 0x4000
    return bytes((0x3F, (size - 31) % 0x80 + 0x80, (size - 31) // 0x80))


def table_of(decoder: FieldDecoder) -> list[str]:
    """Return the values of the dynamic table, newest first; DECODER is of no use afterwards."""
    values: list[str] = []
    try:
        for index in range(62, 0x7F):
            values.extend(value for _, value in decoder.decode(bytes((0x80 + index,))).fields)
    except CompressionError:
        return [value.lstrip("0") for value in values]
    raise AssertionError("the table has more entries than indices of one byte reach")


def test_the_oldest_entries_fall_when_the_table_is_full() -> None:
    decoder = FieldDecoder(120)
    for number in range(1, 4):
        decoder.decode(entry(number))
    decoder.decode(entry(4, 41))

    assert table_of(decoder) == ["4", "3"]


def test_an_entry_as_large_as_the_table_stays_alone() -> None:
    decoder = FieldDecoder(120)
    decoder.decode(entry(1) + entry(2) + entry(3, 120))

    assert table_of(decoder) == ["3"]


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = FieldDecoder(120)
    found = decoder.decode(entry(1) + entry(2) + entry(3, 121))

    assert len(found.fields) == 3
    assert table_of(decoder) == []


def test_a_name_may_come_from_the_entry_that_its_field_drives_out() -> None:
    decoder = FieldDecoder(40)
    decoder.decode(entry(1))

    assert decoder.decode(b"\x7e\x01y").fields == [("x", "y")]
    assert decoder.decode(NEWEST).fields == [("x", "y")]


def test_updates_shrink_the_table_and_let_it_grow_again() -> None:
    decoder = FieldDecoder()
    for number in range(1, 11):
        decoder.decode(entry(number))
    decoder.decode(update(200))
    assert decoder.decode(b"\xc2").fields == [("x", "0000006")]
    for number in range(11, 14):
        decoder.decode(entry(number))
    decoder.decode(update(4096))
    decoder.decode(entry(14))

    assert table_of(decoder) == ["14", "13", "12", "11", "10", "9"]


def test_a_block_may_begin_with_several_updates() -> None:
    decoder = FieldDecoder()
    decoder.decode(entry(1))

    assert decoder.decode(update(0) + update(4096) + POST).fields == [(":method", "POST")]
    assert table_of(decoder) == []


def test_an_update_may_be_as_large_as_the_setting_and_no_larger() -> None:
    for setting in (200, 4096, 8192):
        FieldDecoder(setting).decode(update(setting))
        with pytest.raises(CompressionError, match=f"{setting + 1} bytes, the limit is {setting}"):
            FieldDecoder(setting).decode(update(setting + 1))


def test_a_larger_setting_takes_effect_with_an_update() -> None:
    decoder = FieldDecoder(8192)
    for number in range(1, 1 + 42):
        decoder.decode(entry(number, 100))
    assert len(table_of(decoder)) == 40

    decoder = FieldDecoder(8192)
    decoder.decode(update(8192))
    for number in range(1, 1 + 42):
        decoder.decode(entry(number, 100))
    assert len(table_of(decoder)) == 42


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"", "must begin with a table size update to 200 or less"),
        (POST, "must begin with a table size update to 200 or less"),
        (b"\x00\x01x\x01a" + update(0), "must begin with a table size update"),
        (update(201), "201 bytes, the limit is 200"),
        (b"\x3f", "ends inside a field"),
    ],
)
def test_a_smaller_setting_asks_for_an_update_first(block: bytes, reason: str) -> None:
    decoder = FieldDecoder()
    decoder.resize(200)

    with pytest.raises(CompressionError, match=reason):
        decoder.decode(block)


def test_an_update_that_was_asked_for_is_asked_for_once() -> None:
    decoder = FieldDecoder()
    decoder.decode(entry(1) + entry(2) + entry(3) + entry(4) + entry(5) + entry(6))
    decoder.resize(200)

    assert decoder.decode(update(200) + POST).fields == [(":method", "POST")]
    assert decoder.decode(POST).fields == [(":method", "POST")]
    assert table_of(decoder) == ["6", "5", "4", "3", "2"]


def test_a_setting_that_the_table_fits_asks_for_nothing() -> None:
    decoder = FieldDecoder()
    decoder.decode(update(200) + entry(1))
    decoder.resize(200)
    decoder.resize(4096)

    assert decoder.decode(NEWEST).fields == [("x", "0000001")]


def test_a_setting_that_fell_and_rose_again_asks_for_its_lowest() -> None:
    for updates, is_enough in (
        (b"", False),
        (update(4096), False),
        (update(201), False),
        (update(200), True),
        (update(0), True),
        (update(200) + update(4096), True),
        (update(201) + update(200) + update(4096), True),
    ):
        decoder = FieldDecoder()
        decoder.resize(200)
        decoder.resize(4096)
        if is_enough:
            assert decoder.decode(updates + POST).fields == [(":method", "POST")]
        else:
            with pytest.raises(CompressionError, match="table size update to 200 or less"):
                decoder.decode(updates + POST)


def test_a_setting_that_rose_by_less_than_it_fell_asks_for_its_lowest_too() -> None:
    decoder = FieldDecoder()
    decoder.resize(200)
    decoder.resize(300)

    with pytest.raises(CompressionError, match="table size update to 200 or less"):
        decoder.decode(update(300) + POST)


LIST = [("x", "a"), ("y", "b"), (":method", "POST")]  # counts 34 + 34 + 43
LIST_BYTES = 111


@pytest.mark.parametrize(
    ("list_bytes_max", "count"), [(0, 0), (33, 0), (34, 1), (LIST_BYTES - 1, 2), (LIST_BYTES, 3)]
)
def test_a_list_that_is_too_large_says_so_and_keeps_its_beginning(
    list_bytes_max: int, count: int
) -> None:
    decoder = FieldDecoder(list_bytes_max=list_bytes_max)

    for _ in range(2):  # the second time from the table
        found = decoder.decode(encode(LIST))
        assert found.fields == LIST[:count]
        assert found.too_large is (count < len(LIST))
        assert found.flaw is None


def encode(fields: list[Field]) -> bytes:
    return b"".join(literal(*field) for field in fields)


def test_a_list_that_is_too_large_leaves_the_table_right() -> None:
    decoder = FieldDecoder(list_bytes_max=100)

    assert decoder.decode(entry(1) + entry(2) + entry(3) + entry(4)).too_large
    assert decoder.decode(b"\xc0\xbe").fields == [("x", "0000002"), ("x", "0000004")]


def test_illegal_fields_count_and_are_told_also_behind_the_limit() -> None:
    decoder = FieldDecoder(list_bytes_max=80)

    found = decoder.decode(encode([("x", "a"), ("y", "b"), ("X", "c"), ("z", "d")]))

    assert found.fields == [("x", "a"), ("y", "b")]
    assert found.too_large
    assert found.flaw == "the name 'X' is not a token in lower case"


@pytest.mark.parametrize("huffman", [False, True])
def test_each_field_counts_as_its_decoded_bytes_and_32(huffman: bool) -> None:
    value = "0" * 1000
    block = FieldEncoder().encode([("x", value)]) if huffman else literal("x", value)
    assert (len(block) < 700) is huffman

    assert not FieldDecoder(list_bytes_max=1033).decode(block).too_large
    assert FieldDecoder(list_bytes_max=1032).decode(block).too_large


def test_references_to_a_large_entry_cost_memory_as_the_block_does() -> None:
    decoder = FieldDecoder()
    decoder.decode(b"\x40" + literal("x", "v" * 4000)[1:])
    bomb = NEWEST * 60_000

    tracemalloc.start()
    found = decoder.decode(bomb)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found.too_large
    assert found.fields == [("x", "v" * 4000)] * 4  # of 4,033 bytes each
    assert peak_bytes < 20 * len(bomb)
    assert sys.getsizeof(found.fields) < 20 * len(bomb)
    assert decoder.decode(NEWEST + POST).fields == [("x", "v" * 4000), (":method", "POST")]


def test_the_widest_static_field_repeated_is_counted() -> None:
    field = max(STATIC_TABLE, key=lambda field: len("".join(field)))
    size = len("".join(field)) + FIELD_OVERHEAD_BYTES
    index = bytes((0x80 + STATIC_TABLE.index(field) + 1,))
    decoder = FieldDecoder(list_bytes_max=10 * size)

    assert not decoder.decode(index * 10).too_large
    assert decoder.decode(index * 11).too_large
