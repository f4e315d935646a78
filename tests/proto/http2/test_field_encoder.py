"""What our blocks look like: what is added to the table, what is not, and when the peer is told of the table's size."""

from __future__ import annotations

import pytest

from pocketmq.proto.rpc.hpack import CompressionError, Field, FieldDecoder, FieldEncoder, literal

CALL: list[Field] = [
    (":method", "POST"),
    (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
    ("authorization", "a secret"),
    ("grpc-timeout", "2999876u"),
    ("x-mq-language", "PYTHON"),
]
POST = (":method", "POST")


def test_requests_are_encoded_as_in_the_rfc() -> None:  # appendix C.4
    encoder = FieldEncoder()
    get, path, authority = (":method", "GET"), (":path", "/"), (":authority", "www.example.com")

    assert encoder.encode([get, (":scheme", "http"), path, authority]) == bytes.fromhex(
        "828684418cf1e3c2e5f23a6ba0ab90f4ff"
    )
    assert encoder.encode(
        [get, (":scheme", "http"), path, authority, ("cache-control", "no-cache")]
    ) == bytes.fromhex("828684be5886a8eb10649cbf")
    assert encoder.encode(
        [
            get,
            (":scheme", "https"),
            (":path", "/index.html"),
            authority,
            ("custom-key", "custom-value"),
        ]
    ) == bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")


def test_a_string_is_in_huffmans_code_where_that_is_shorter() -> None:
    encoder = FieldEncoder(0)
    encoder.encode([])  # the peer knows of the table's size

    assert encoder.encode([("te", "000")]) == b"\x00\x02te\x82\x00\x01"
    assert encoder.encode([("te", "307")]) == b"\x00\x02te\x03307"  # as long in either
    assert encoder.encode([("te", "\n\n")]) == b"\x00\x02te\x02\n\n"


def test_fields_that_come_again_take_a_byte() -> None:
    encoder = FieldEncoder()
    encoder.encode(CALL)

    assert encoder.encode(CALL) == b"\x83\xc1\xc0\xbf\xbe"


def test_of_unindexed_names_the_name_alone_is_added_with_the_first_value() -> None:
    encoder = FieldEncoder(unindexed={"grpc-timeout"})
    encoder.encode(CALL)

    assert encoder.encode([("grpc-timeout", "1S"), CALL[4]]) == b"\x0f\x30\x021S\xbe"
    assert encoder.encode([("grpc-timeout", "2S"), CALL[4]]) == b"\x0f\x30\x022S\xbe"


def test_secrets_are_never_added() -> None:
    encoder, decoder = FieldEncoder(sensitive={"authorization", "++"}), FieldDecoder()
    fields = [("authorization", "++"), ("++", "++"), ("authorization", "")]

    for _ in range(2):
        block = encoder.encode(fields)
        assert block == (b"\x1f\x08\x02++" + b"\x10\x02++\x02++" + b"\x1f\x08\x00")
        assert decoder.decode(block).fields == fields
    with pytest.raises(CompressionError):
        decoder.decode(b"\xbe")


def test_fields_of_more_than_half_the_table_are_not_added() -> None:
    encoder = FieldEncoder()
    half, more = ("x", "v" * (2048 - 33)), ("y", "v" * (2048 - 32))
    encoder.encode([half, more])

    assert encoder.encode([half]) == b"\xbe"
    assert encoder.encode([more]).startswith(b"\x00\x01y")


def test_indices_beyond_one_byte_are_reached() -> None:
    encoder, decoder = FieldEncoder(), FieldDecoder()
    fields = [("x", f"{number}") for number in range(100)]

    assert decoder.decode(encoder.encode(fields)).fields == fields
    block = encoder.encode(fields)
    assert decoder.decode(block).fields == fields
    assert block.startswith(b"\xff\x22\xff\x21")
    assert decoder.decode(encoder.encode([("x", "new")])).fields == [("x", "new")]


def test_a_table_smaller_than_the_default_is_told_first() -> None:
    encoder = FieldEncoder(100)

    assert encoder.encode([POST]) == b"\x3f\x45\x83"
    assert encoder.encode([POST]) == b"\x83"


def test_a_setting_that_changes_the_table_is_told_once() -> None:
    encoder = FieldEncoder()
    encoder.resize(0)
    encoder.resize(0)

    assert encoder.encode([POST]) == b"\x20\x83"
    assert encoder.encode([POST]) == b"\x83"


def test_a_setting_that_fell_and_rose_again_is_told_with_its_lowest() -> None:
    encoder, decoder = FieldEncoder(), FieldDecoder()
    decoder.decode(encoder.encode(CALL))
    for size in (300, 30, 200, 100):
        encoder.resize(size)
        decoder.resize(size)

    block = encoder.encode([POST])
    assert block == b"\x3e\x3f\x45\x83"
    assert decoder.decode(block).fields == [POST]
    assert decoder.decode(encoder.encode(CALL)).fields == CALL


def test_the_table_keeps_its_own_bound_whatever_the_peer_allows() -> None:
    encoder = FieldEncoder()
    encoder.resize(1 << 31)

    assert encoder.encode([POST]) == b"\x83"


def test_a_larger_table_is_used_when_the_peer_allows_it() -> None:
    encoder = FieldEncoder(8192)

    assert encoder.encode([POST]) == b"\x83"
    encoder.resize(6000)
    assert encoder.encode([POST]) == b"\x3f\xd1\x2e\x83"
    encoder.resize(1 << 31)
    assert encoder.encode([POST]) == b"\x3f\xe1\x3f\x83"


def test_characters_beyond_latin_1_are_refused_before_the_table_changes() -> None:
    encoder, decoder = FieldEncoder(), FieldDecoder()

    with pytest.raises(UnicodeEncodeError):
        encoder.encode([*CALL, ("x", "€")])

    assert decoder.decode(encoder.encode(CALL)).fields == CALL


@pytest.mark.parametrize(
    ("name", "value", "block"),
    [
        (":status", "200", b"\x08\x03200"),
        ("content-type", "application/grpc", b"\x0f\x10\x10application/grpc"),
        ("grpc-status", "0", b"\x00\x0bgrpc-status\x010"),
        ("x", "", b"\x00\x01x\x00"),
        ("x", "v" * 126, b"\x00\x01x\x7e" + b"v" * 126),
        ("x", "v" * 127, b"\x00\x01x\x7f\x00" + b"v" * 127),
        ("x", "v" * 255, b"\x00\x01x\x7f\x80\x01" + b"v" * 255),
        ("x", "\xe9", b"\x00\x01x\x01\xe9"),
    ],
)
def test_literals_are_plain_and_the_same_for_every_connection(
    name: str, value: str, block: bytes
) -> None:
    assert literal(name, value) == block
    assert literal(name, value, sensitive=True) == bytes((block[0] | 0x10,)) + block[1:]
