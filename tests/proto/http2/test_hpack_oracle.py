"""Our HPACK against the `hpack` package: the same blocks, on one connection after the other, from seeds.

Both refuse a block, or both read the same fields from it. Two differences are meant:

- Fields that HTTP/2 forbids are left out by us, and the list says so (RFC 9113, §8.2.1); the package reads them.
- Where a setting fell and rose again between two blocks, we ask for an update to the lowest size (RFC 7541, §4.2); the
  package looks at the last setting alone. So settings change once between two blocks here, unless encoders see to it.
"""

from __future__ import annotations

import random

from hpack import Decoder, Encoder, HPACKError
from hypothesis import given, strategies as st

from pocketmq.proto.rpc.hpack import (
    CompressionError,
    Field,
    FieldDecoder,
    FieldEncoder,
    FieldList,
    flaw_of,
    literal,
)

from .random_blocks import encoded, mutated, random_block, random_fields

SEEDS = st.integers(0, (1 << 32) - 1)
TABLE_SIZES = (0, 50, 100, 300, 4096, 10_000)
ENOUGH = 1 << 20
BLOCKS = 20


def check_same(found: FieldList, fields: list[Field]) -> None:
    """FOUND is FIELDS without those that are forbidden, and says whether there were any."""
    flaws = [flaw for field in fields if (flaw := flaw_of(field)) is not None]
    assert found.fields == [field for field in fields if flaw_of(field) is None]
    assert found.flaw == (flaws[0] if flaws else None)
    assert not found.too_large


def read_by_package(decoder: Decoder, block: bytes) -> list[Field] | None:
    """Return the fields of BLOCK, or None if the package's DECODER refuses it."""
    try:
        headers = decoder.decode(block, raw=True)
    except HPACKError:
        return None
    return [
        (bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in headers
    ]


def read(decoder: FieldDecoder, block: bytes) -> FieldList | None:
    try:
        return decoder.decode(block)
    except CompressionError:
        return None


@given(SEEDS)
def test_what_the_package_encodes_is_decoded(seed: int) -> None:
    rng = random.Random(seed)
    encoder, decoder = Encoder(), FieldDecoder(list_bytes_max=ENOUGH)

    for _ in range(BLOCKS):
        # The package tells each change: rising sizes are all allowed at the end. It forgets one that is set twice.
        for size in sorted(rng.sample(TABLE_SIZES, rng.choice((0, 0, 0, 0, 1, 2)))):
            if size != encoder.header_table_size:
                encoder.header_table_size = size
                decoder.resize(size)
        fields = random_fields(rng)
        check_same(decoder.decode(encoded(rng, encoder, fields)), fields)


@given(SEEDS)
def test_what_we_encode_is_decoded_by_the_package_and_by_us(seed: int) -> None:
    rng = random.Random(seed)
    encoder = FieldEncoder(
        rng.choice((100, 4096, 8192)), unindexed={"te", "x-mq-request-id"}, sensitive={"cookie"}
    )
    theirs, ours = Decoder(max_header_list_size=ENOUGH), FieldDecoder(list_bytes_max=ENOUGH)

    for _ in range(BLOCKS):
        while rng.random() < 0.2:
            size = rng.choice(TABLE_SIZES)
            encoder.resize(size)
            theirs.max_allowed_table_size = size
            ours.resize(size)
        fields = [field for field in random_fields(rng) if field[0].isascii()]
        block = encoder.encode(fields)
        assert read_by_package(theirs, block) == fields
        check_same(ours.decode(block), fields)


def read_alike(theirs: Decoder, ours: FieldDecoder, block: bytes) -> bool:
    """Hold both to the same fields of BLOCK, or the same refusal; return whether they go on."""
    expected, found = read_by_package(theirs, block), read(ours, block)
    if expected is None or found is None:
        assert expected is None
        assert found is None
        return False
    check_same(found, expected)
    return True


@given(SEEDS)
def test_any_block_is_refused_by_both_or_read_alike(seed: int) -> None:
    rng = random.Random(seed)
    theirs, ours = Decoder(max_header_list_size=ENOUGH), FieldDecoder(list_bytes_max=ENOUGH)

    for _ in range(BLOCKS):
        if rng.random() < 0.1:
            size = rng.choice(TABLE_SIZES)
            theirs.max_allowed_table_size = size
            ours.resize(size)
        block = random_block(rng)
        if not read_alike(theirs, ours, block):
            return


@given(SEEDS)
def test_mutated_blocks_are_refused_by_both_or_read_alike(seed: int) -> None:
    rng = random.Random(seed)
    encoder = Encoder()
    theirs, ours = Decoder(max_header_list_size=ENOUGH), FieldDecoder(list_bytes_max=ENOUGH)

    for _ in range(BLOCKS):
        block = mutated(rng, encoded(rng, encoder, random_fields(rng)))
        if not read_alike(theirs, ours, block):
            return


@given(SEEDS)
def test_literals_are_read_and_leave_the_table_alone(seed: int) -> None:
    rng = random.Random(seed)
    fields = [field for field in random_fields(rng) if field[0].isascii()]
    block = b"".join(literal(*field, sensitive=rng.random() < 0.5) for field in fields)
    theirs, ours = Decoder(), FieldDecoder(list_bytes_max=ENOUGH)

    assert read_by_package(theirs, block) == fields
    check_same(ours.decode(block), fields)
    assert not theirs.header_table.dynamic_entries
    assert read(ours, b"\xbe") is None
