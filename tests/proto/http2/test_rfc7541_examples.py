"""The examples of RFC 7541, appendix C, decoded, with the dynamic table that each one leaves."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pocketmq.proto.rpc.hpack import Field, FieldDecoder


class Step(NamedTuple):
    """A block, its fields, and the fields of the dynamic table after it, newest first."""

    block: str
    fields: list[Field]
    table: list[Field]


GET = (":method", "GET")
ROOT = (":path", "/")
AUTHORITY = (":authority", "www.example.com")
NO_CACHE = ("cache-control", "no-cache")
CUSTOM = ("custom-key", "custom-value")

FIELD_REPRESENTATIONS = {
    "C.2.1": Step(
        "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
        [("custom-key", "custom-header")],
        [("custom-key", "custom-header")],
    ),
    "C.2.2": Step("040c 2f73 616d 706c 652f 7061 7468", [(":path", "/sample/path")], []),
    "C.2.3": Step("1008 7061 7373 776f 7264 0673 6563 7265 74", [("password", "secret")], []),
    "C.2.4": Step("82", [GET], []),
}

REQUEST_FIELDS: tuple[list[Field], ...] = (
    [GET, (":scheme", "http"), ROOT, AUTHORITY],
    [GET, (":scheme", "http"), ROOT, AUTHORITY, NO_CACHE],
    [GET, (":scheme", "https"), (":path", "/index.html"), AUTHORITY, CUSTOM],
)
REQUEST_TABLES: tuple[list[Field], ...] = (
    [AUTHORITY],
    [NO_CACHE, AUTHORITY],
    [CUSTOM, NO_CACHE, AUTHORITY],
)
REQUESTS = (
    "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "8286 84be 5808 6e6f 2d63 6163 6865",
    "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
)
HUFFMAN_REQUESTS = (
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
)

PRIVATE = ("cache-control", "private")
DATE_21 = ("date", "Mon, 21 Oct 2013 20:13:21 GMT")
DATE_22 = ("date", "Mon, 21 Oct 2013 20:13:22 GMT")
LOCATION = ("location", "https://www.example.com")
GZIP = ("content-encoding", "gzip")
COOKIE = ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")

RESPONSE_FIELDS: tuple[list[Field], ...] = (
    [(":status", "302"), PRIVATE, DATE_21, LOCATION],
    [(":status", "307"), PRIVATE, DATE_21, LOCATION],
    [(":status", "200"), PRIVATE, DATE_22, LOCATION, GZIP, COOKIE],
)
RESPONSE_TABLES: tuple[list[Field], ...] = (
    [LOCATION, DATE_21, PRIVATE, (":status", "302")],
    [(":status", "307"), LOCATION, DATE_21, PRIVATE],
    [COOKIE, GZIP, DATE_22],
)
RESPONSES = (
    "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 54"
    "6e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "4803 3330 37c1 c0bf",
    "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f"
    "6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b"
    "2076 6572 7369 6f6e 3d31",
)
HUFFMAN_RESPONSES = (
    "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7"
    "8f0b 97c8 e9ae 82ae 43d3",
    "4883 640e ffc1 c0bf",
    "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335"
    "dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
)


def steps(
    blocks: tuple[str, ...], fields: tuple[list[Field], ...], tables: tuple[list[Field], ...]
) -> list[Step]:
    return [Step(*parts) for parts in zip(blocks, fields, tables, strict=True)]


CONNECTIONS = {
    "C.3": (4096, steps(REQUESTS, REQUEST_FIELDS, REQUEST_TABLES)),
    "C.4": (4096, steps(HUFFMAN_REQUESTS, REQUEST_FIELDS, REQUEST_TABLES)),
    "C.5": (256, steps(RESPONSES, RESPONSE_FIELDS, RESPONSE_TABLES)),
    "C.6": (256, steps(HUFFMAN_RESPONSES, RESPONSE_FIELDS, RESPONSE_TABLES)),
}


def table_of(decoder: FieldDecoder, count: int) -> list[Field]:
    """Return the newest COUNT fields of the dynamic table, as a block that refers to each of them reads."""
    return decoder.decode(bytes(range(0x80 + 62, 0x80 + 62 + count))).fields


@pytest.mark.parametrize("name", FIELD_REPRESENTATIONS)
def test_each_representation_is_read_as_in_the_rfc(name: str) -> None:
    step = FIELD_REPRESENTATIONS[name]
    decoder = FieldDecoder()

    assert decoder.decode(bytes.fromhex(step.block)).fields == step.fields
    assert table_of(decoder, len(step.table)) == step.table


@pytest.mark.parametrize("name", CONNECTIONS)
def test_connections_are_read_as_in_the_rfc(name: str) -> None:
    table_bytes_max, connection = CONNECTIONS[name]
    decoder = FieldDecoder(table_bytes_max)

    for step in connection:
        found = decoder.decode(bytes.fromhex(step.block))
        assert (found.fields, found.flaw, found.too_large) == (step.fields, None, False)
        assert table_of(decoder, len(step.table)) == step.table
