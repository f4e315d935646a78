"""Messages put together from the pieces of a body, wherever those end."""

from __future__ import annotations

import gzip
import itertools
import random
import struct

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.rpc.errors import BadRequest, TooLarge
from pocketmq.proto.rpc.messages import (
    AT_ONCE_BYTES,
    FREE_BYTES,
    RATIO,
    Inflation,
    MessageReader,
    with_prefix,
)

LIMIT = 1_000
MIB = 1024 * 1024


def pieces_of(body: bytes, cuts: list[int]) -> list[bytes]:
    """Return BODY cut at CUTS, taken modulo its length."""
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    return [body[start:end] for start, end in itertools.pairwise(places)] or [b""]


@given(
    st.lists(st.binary(max_size=40), max_size=8),
    st.binary(max_size=4),
    st.lists(st.integers(0, 500), max_size=30),
)
def test_messages_are_the_same_however_their_body_is_cut(
    messages: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    reader = MessageReader(LIMIT, compressed=False)
    body = b"".join(map(with_prefix, messages)) + rest
    found = [message for piece in pieces_of(body, cuts) for message in reader.feed(piece)]

    assert found == messages
    assert reader.held == len(rest)
    assert reader.is_incomplete is bool(rest)


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=60)), max_size=5), st.integers(1, 30))
def test_messages_may_be_compressed_one_by_one(
    messages: list[tuple[bool, bytes]], size: int
) -> None:
    reader = MessageReader(LIMIT, compressed=True)
    packed = [(zipped, gzip.compress(data) if zipped else data) for zipped, data in messages]
    body = b"".join(struct.pack(">BL", zipped, len(data)) + data for zipped, data in packed)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]

    assert [found for piece in pieces for found in reader.feed(piece)] == [
        data for _, data in messages
    ]


@pytest.mark.parametrize("cut", [1, 4, 5, 6])
def test_a_message_with_only_its_prefix_there_is_half(cut: int) -> None:
    reader = MessageReader(LIMIT, compressed=False)
    assert list(reader.feed(with_prefix(b"abc")[:cut])) == []
    assert reader.is_incomplete
    assert list(reader.feed(with_prefix(b"abc")[cut:])) == [b"abc"]
    assert not reader.is_incomplete


def test_a_message_that_is_too_large_is_refused_by_its_prefix() -> None:
    reader = MessageReader(LIMIT, compressed=False)
    assert list(reader.feed(with_prefix(bytes(LIMIT)))) == [bytes(LIMIT)]
    with pytest.raises(TooLarge, match="1001 bytes, the limit is 1000"):
        list(reader.feed(struct.pack(">BL", 0, LIMIT + 1)))


def test_a_message_that_is_too_large_once_it_is_decompressed_is_refused() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    reader = MessageReader(20_000, compressed=True)
    with pytest.raises(TooLarge, match="more than 20000"):
        list(reader.feed(struct.pack(">BL", 1, len(bomb)) + bomb))


def packed(data: bytes) -> bytes:
    """Return DATA compressed, behind its prefix."""
    zipped = gzip.compress(data)
    return struct.pack(">BL", 1, len(zipped)) + zipped


def test_what_inflates_to_little_is_there_at_once_and_the_rest_is_for_a_thread() -> None:
    reader = MessageReader(64 * MIB, compressed=True)
    little, much = bytes(AT_ONCE_BYTES - 1), bytes(FREE_BYTES)
    (found,) = reader.feed(packed(little))
    assert found == little
    (later,) = reader.feed(packed(much))
    assert isinstance(later, Inflation)
    assert len(later) == len(packed(much)) - 5
    assert later.rest() == much


def test_a_bomb_is_refused_by_what_came_of_it_and_not_inflated_further() -> None:
    reader = MessageReader(64 * MIB, compressed=True)
    (bomb,) = reader.feed(packed(bytes(31 * MIB)))
    assert isinstance(bomb, Inflation)
    with pytest.raises(TooLarge, match=f"more than {RATIO * len(bomb)} "):
        bomb.rest()
    # Each byte of it may come to 64, and those who send much may send much more.
    honest = random.Random(1).randbytes(MIB) + bytes(30 * MIB)
    (large,) = reader.feed(packed(honest))
    assert isinstance(large, Inflation)
    assert large.rest() == honest


@pytest.mark.parametrize(
    ("compressed", "flag", "data"),
    [
        (False, 1, gzip.compress(b"abc")),
        (True, 2, b"abc"),
        (True, 1, b"no gzip"),
        (True, 1, gzip.compress(b"abc" * 100)[:-5]),
        (True, 1, b""),
    ],
    ids=["not announced", "unknown flag", "no gzip data", "cut off", "nothing"],
)
def test_what_cannot_be_decompressed_is_named(compressed: bool, flag: int, data: bytes) -> None:
    reader = MessageReader(LIMIT, compressed=compressed)
    with pytest.raises(BadRequest) as raised:
        list(reader.feed(struct.pack(">BL", flag, len(data)) + data))
    assert raised.value.details["field"] == "grpc-encoding"
