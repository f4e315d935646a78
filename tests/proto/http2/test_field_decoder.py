"""Blocks that break HPACK's rules end the connection; fields that break HTTP's do not, and the table stays right."""

from __future__ import annotations

import pytest

from pocketmq.proto.rpc.hpack import CompressionError, Field, FieldDecoder, FieldList

X_A = b"\x40\x01x\x01a"  # (x, a), added to the table: 34 bytes of it
X_A_NOT_ADDED = b"\x00\x01x\x01a"
NEWEST = b"\xbe"
UPDATE_TO_ZERO = b"\x20"
POST = b"\x83"
TOO_LONG = b"\xff" * 5 + b"\x01"  # six bytes behind the prefix


def decoded(*blocks: bytes) -> FieldList:
    """Return what the last of BLOCKS says, which come on one connection."""
    decoder = FieldDecoder()
    return [decoder.decode(block) for block in blocks][-1]


def added(name: str, value: str) -> bytes:
    """Return a literal that is added to the table, whose name and value are short."""
    return (
        bytes((0x40, len(name)))
        + name.encode("latin-1")
        + bytes((len(value),))
        + value.encode("latin-1")
    )


def test_an_empty_block_has_no_fields() -> None:
    assert decoded(b"") == FieldList([], None, False)


@pytest.mark.parametrize(
    ("block", "field"),
    [
        pytest.param(b"\x83", (":method", "POST"), id="static"),
        pytest.param(b"\xbd", ("www-authenticate", ""), id="last of the static"),
        pytest.param(b"\x44\x02/x", (":path", "/x"), id="name of the static table"),
        pytest.param(b"\x7d\x01x", ("www-authenticate", "x"), id="last name, added"),
        pytest.param(b"\x0f\x2e\x01x", ("www-authenticate", "x"), id="last name, not added"),
        pytest.param(b"\x1f\x2e\x01x", ("www-authenticate", "x"), id="last name, never added"),
        pytest.param(b"\x0e\x01x", (":status", "x"), id="last name of one byte, not added"),
        pytest.param(b"\x1e\x01x", (":status", "x"), id="last name of one byte, never added"),
        pytest.param(b"\x0f\x00\x01x", ("accept-charset", "x"), id="first name of two bytes"),
        pytest.param(b"\x40\x01x\x00", ("x", ""), id="empty value"),
        pytest.param(b"\x40\x01x\x80", ("x", ""), id="empty value in Huffman's code"),
        pytest.param(b"\x40\x81\xf3\x00", ("x", ""), id="name in Huffman's code"),
        pytest.param(b"\x40\x01x\x7e" + b"v" * 126, ("x", "v" * 126), id="longest of one byte"),
        pytest.param(b"\x40\x01x\x7f\x00" + b"v" * 127, ("x", "v" * 127), id="length of two bytes"),
        pytest.param(b"\x40\x01x\x7f\x01" + b"v" * 128, ("x", "v" * 128), id="and one more"),
        pytest.param(b"\x40\x7f\x49" + b"n" * 200 + b"\x00", ("n" * 200, ""), id="long name"),
        pytest.param(
            b"\x40\x01x\x7f\x81\x80\x80\x80\x00" + b"v" * 128, ("x", "v" * 128), id="zeros"
        ),
        pytest.param(b"\x40\x01x\xff\x03" + b"\x00" * 130, ("x", "0" * 208), id="long in Huffman"),
        pytest.param(b"\x40\x01x\x02\xe9\xff", ("x", "\xe9\xff"), id="bytes beyond ASCII"),
    ],
)
def test_every_form_of_a_field_is_read(block: bytes, field: Field) -> None:
    assert decoded(block) == FieldList([field], None, False)


def test_an_index_of_two_bytes_reaches_old_entries() -> None:
    decoder = FieldDecoder()
    for number in range(70):
        decoder.decode(added("x", f"{number}"))

    assert decoder.decode(b"\xfe").fields == [("x", "5")]
    assert decoder.decode(b"\xff\x00").fields == [("x", "4")]
    assert decoder.decode(b"\xff\x04").fields == [("x", "0")]
    assert decoder.decode(b"\x0f\x74\x01y").fields == [("x", "y")]


def test_fields_that_are_not_added_are_not_in_the_table() -> None:
    for kind in (b"\x00", b"\x10"):
        with pytest.raises(
            CompressionError, match="index 62 is not in the table, which has 1 to 61"
        ):
            decoded(kind + b"\x01x\x01a", NEWEST)


ENDS = "ends inside a field"
ABSENT = "is not in the table, which has 1 to 61"
LONG = "an integer has more than 5 bytes"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        pytest.param(b"\x80", f"index 0 {ABSENT}", id="index 0"),
        pytest.param(NEWEST, f"index 62 {ABSENT}", id="an entry that was never there"),
        pytest.param(b"\xff\x00", f"index 127 {ABSENT}", id="an index of two bytes"),
        pytest.param(b"\xff\xff\xff\xff\xff\x7f", ABSENT, id="the largest index"),
        pytest.param(b"\x7e\x01a", f"index 62 {ABSENT}", id="a name that was never there"),
        pytest.param(b"\x7f\x00\x01a", f"index 63 {ABSENT}", id="a name of two bytes"),
        pytest.param(b"\x0f\x2f\x01a", f"index 62 {ABSENT}", id="a name, not added"),
        pytest.param(b"\x1f\x2f\x01a", f"index 62 {ABSENT}", id="a name, never added"),
        pytest.param(b"\xff" + TOO_LONG, LONG, id="a long index"),
        pytest.param(b"\x7f" + TOO_LONG, LONG, id="a long index of a name"),
        pytest.param(b"\x3f" + TOO_LONG, LONG, id="a long size"),
        pytest.param(b"\x40\x7f" + TOO_LONG, LONG, id="a long length of a name"),
        pytest.param(b"\x40\x01x\x7f" + TOO_LONG, LONG, id="a long length of a value"),
        pytest.param(b"\xff\x80\x80\x80\x80\x80\x00", LONG, id="an index padded with zeros"),
        pytest.param(b"\xff", ENDS, id="an index without its end"),
        pytest.param(b"\xff\x80", ENDS, id="an index that goes on"),
        pytest.param(b"\x3f", ENDS, id="a size without its end"),
        pytest.param(b"\x7f", ENDS, id="an index of a name without its end"),
        pytest.param(b"\x40", ENDS, id="no name"),
        pytest.param(b"\x40\x02x", ENDS, id="half a name"),
        pytest.param(b"\x40\x01x", ENDS, id="no value"),
        pytest.param(b"\x44", ENDS, id="no value behind an index"),
        pytest.param(b"\x40\x01x\x02a", ENDS, id="half a value"),
        pytest.param(b"\x40\x01x\x7f", ENDS, id="a length without its end"),
        pytest.param(b"\x40\x01x\x7f\x01a", ENDS, id="half a long value"),
        pytest.param(b"\x40\x01x\x82\xff", ENDS, id="half a value in Huffman's code"),
        pytest.param(b"\x40\x01x\x84" + b"\xff" * 4, "contains EOS", id="EOS in a value"),
        pytest.param(b"\x40\x84" + b"\xff" * 4 + b"\x00", "contains EOS", id="EOS in a name"),
        pytest.param(b"\x40\x01x\x82\x07\xff", "wrong padding", id="long padding"),
        pytest.param(b"\x40\x01x\x81\x00", "wrong padding", id="padding of zeros"),
        pytest.param(POST + UPDATE_TO_ZERO, "follows a field", id="an update at the end"),
        pytest.param(POST + UPDATE_TO_ZERO + POST, "follows a field", id="an update between"),
        pytest.param(b"\x3f\xe2\x1f", "4097 bytes, the limit is 4096", id="too large a table"),
    ],
)
def test_blocks_that_break_the_rules_end_the_connection(block: bytes, reason: str) -> None:
    with pytest.raises(CompressionError, match=reason):
        decoded(block)
    with pytest.raises(CompressionError):
        decoded(X_A_NOT_ADDED + block)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "not a token in lower case"),
        ("Content-type", "not a token in lower case"),
        ("x y", "not a token in lower case"),
        ("x:", "not a token in lower case"),
        ("x\0", "not a token in lower case"),
        ("x\n", "not a token in lower case"),
        ("x(", "not a token in lower case"),
        ("x\x7f", "not a token in lower case"),
        ("\xe9", "not a token in lower case"),
        (":", "not a known pseudo name"),
        (":protocol", "not a known pseudo name"),
        (":Path", "not a known pseudo name"),
    ],
)
def test_illegal_names_are_a_flaw_of_the_list_each_time_they_come(name: str, reason: str) -> None:
    decoder = FieldDecoder()
    field = added(name, "a")

    for block, others in (
        (POST + field, [(":method", "POST")]),
        (NEWEST, []),
        (b"\x7e\x01b" + POST, [(":method", "POST")]),  # its name with another value
    ):
        found = decoder.decode(block)
        assert found.flaw is not None
        assert reason in found.flaw
        assert found.fields == others
        assert not found.too_large
    assert decoder.decode(POST + X_A) == FieldList([(":method", "POST"), ("x", "a")], None, False)


@pytest.mark.parametrize(
    "value", ["\0", "a\0b", "a\rb", "a\nb", "\r\n", " a", "a ", "\ta", "a\t", " "]
)
def test_illegal_values_are_a_flaw_of_the_list_each_time_they_come(value: str) -> None:
    decoder = FieldDecoder()

    for block in (added("x", value), NEWEST + POST):
        found = decoder.decode(block)
        assert found.flaw == "the value of x contains NUL, CR or LF, or has white space around it"
        assert ("x", value) not in found.fields
    assert decoder.decode(b"\x7e\x01b") == FieldList([("x", "b")], None, False)  # the name alone


@pytest.mark.parametrize("value", ["", "a b", "a\tb", "\x01", "\x7f", "\x85", "\xa0", "\xe9\xff"])
def test_other_values_are_legal(value: str) -> None:
    assert decoded(added("x", value)) == FieldList([("x", value)], None, False)


@pytest.mark.parametrize(
    "name", [":authority", ":method", ":path", ":scheme", ":status", "!#$%&'*+-.^_`|~09az"]
)
def test_other_names_are_legal(name: str) -> None:
    assert decoded(added(name, "a")) == FieldList([(name, "a")], None, False)
