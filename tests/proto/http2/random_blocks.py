"""Random fields, and random blocks of which some are honest, some nearly so, and some noise; from a seed."""

from __future__ import annotations

import random
from typing import Final

from hpack import Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from pocketmq.proto.rpc.hpack import Field

#: Some stand in the static table, some are illegal.
NAMES: Final = (
    *(":method", ":path", ":authority", "content-type", "te", "cookie", "grpc-timeout"),
    *("x-mq-request-id", "x-mq-client-version", "x", "!#$%&'*+-.^_`|~09az"),
    *(":protocol", ":", "", "Content-Type", "x y", "x:", "ü", "x" * 200),
)
_VALUES: Final = (
    *(
        "",
        "GET",
        "POST",
        "/",
        "trailers",
        "application/grpc",
        "v" * 50,
        "v" * 126,
        "v" * 127,
        "v" * 300,
    ),
    *("ü\xff\x80", "\x01", "a b", " a", "a\t", "a\nb", "\r", "a\0"),
)
_HUFFMAN: Final = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def random_fields(rng: random.Random) -> list[Field]:
    """Return up to ten fields; few names and values, so that they come again."""
    return [(rng.choice(NAMES), _random_value(rng)) for _ in range(rng.randrange(11))]


def _random_value(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(_VALUES)
    return rng.randbytes(rng.randrange(20)).decode("latin-1")


def encoded(rng: random.Random, encoder: Encoder, fields: list[Field]) -> bytes:
    """Return the block of FIELDS that the `hpack` package's ENCODER makes, in one of its ways."""
    headers = [
        rng.choice((HeaderTuple, NeverIndexedHeaderTuple))(
            name.encode("latin-1"), value.encode("latin-1")
        )
        for name, value in fields
    ]
    return bytes(encoder.encode(headers, huffman=rng.random() < 0.5))


def random_block(rng: random.Random) -> bytes:
    """Return a row of representations that may refer to what is not there, be noise, or have wrong bytes in it."""
    block = b"".join(_random_representation(rng) for _ in range(rng.randrange(8)))
    if rng.random() < 0.15:
        block = _update(rng) + block
    return mutated(rng, block) if rng.random() < 0.1 else block


def mutated(rng: random.Random, block: bytes) -> bytes:
    """Return BLOCK with up to three of its bytes changed, left out or put in, or without its end."""
    data = bytearray(block)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at:at] = rng.randbytes(1)
            case 2:
                del data[at : at + 1]
            case _:
                del data[at:]
    return bytes(data)


def _random_representation(rng: random.Random) -> bytes:
    match rng.choices(range(4), (10, 10, 0.1, 0.1))[0]:
        case 0:
            return _integer(_random_index(rng), 0x80, 0x7F)
        case 1:
            first, prefix = rng.choice(((0x40, 0x3F), (0x00, 0x0F), (0x10, 0x0F)))
            index = _random_index(rng) if rng.random() < 0.5 else 0
            name = b"" if index else _string(rng, rng.choice(NAMES))
            return _integer(index, first, prefix) + name + _string(rng, _random_value(rng))
        case 2:
            return _update(rng)
        case _:
            return rng.randbytes(rng.randrange(1, 20))


def _random_index(rng: random.Random) -> int:
    """Return an index: mostly of the static table or of a dynamic entry that a short connection may have."""
    kinds = (rng.randrange(1, 62), rng.randrange(62, 65), rng.randrange(200))
    return rng.choices(kinds, (20, 5, 0.2))[0]


def _update(rng: random.Random) -> bytes:
    return _integer(rng.choice((0, 30, 31, 100, 500, 4096)), 0x20, 0x1F)


def _string(rng: random.Random, text: str) -> bytes:
    data = text.encode("latin-1")
    if rng.random() < 0.5:
        return _integer(len(data), 0, 0x7F) + data
    coded = _HUFFMAN.encode(data)
    return _integer(len(coded), 0x80, 0x7F) + coded


def _integer(value: int, first: int, prefix: int) -> bytes:
    if value < prefix:
        return bytes((first | value,))
    rest = value - prefix
    encoded = [first | prefix]
    while rest >= 0x80:
        encoded.append(rest % 0x80 + 0x80)
        rest //= 0x80
    return bytes((*encoded, rest))
