"""The Huffman code of RFC 7541: equal to the `hpack` package's on every byte, and strict about EOS and padding."""

from __future__ import annotations

import pytest
from hpack import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import example, given, strategies as st

from pocketmq.proto.rpc.huffman import InvalidHuffman, huffman_decoded, huffman_encoded

THEIRS = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_has_the_code_of_the_rfc(byte: int) -> None:
    text = bytes((byte,))

    assert huffman_encoded(text) == THEIRS.encode(text)
    assert huffman_decoded(huffman_encoded(text)) == text.decode("latin-1")


@given(st.binary(max_size=200))
@example(b"")
def test_strings_come_back(text: bytes) -> None:
    assert huffman_encoded(text) == THEIRS.encode(text)
    assert huffman_decoded(huffman_encoded(text)) == text.decode("latin-1")


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_or_read_as_by_the_other_decoder(data: bytes) -> None:
    try:
        expected = decode_huffman(data)
    except HPACKDecodingError:
        with pytest.raises(InvalidHuffman):
            huffman_decoded(data)
    else:
        assert huffman_decoded(data) == expected.decode("latin-1")


def of_bits(bits: str) -> bytes:
    assert len(bits) % 8 == 0
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


ZERO = "00000"  # the code of the character 0
EOS = "1" * 30


@pytest.mark.parametrize("ones", range(8))
def test_up_to_seven_ones_fill_the_last_byte(ones: int) -> None:
    # Codes of five bits, as many as leave so many bits of the last byte.
    count = next(count for count in range(1, 9) if -5 * count % 8 == ones)

    assert huffman_decoded(of_bits(ZERO * count + "1" * ones)) == "0" * count


@pytest.mark.parametrize(
    "bits",
    [
        pytest.param(ZERO + "000", id="zeros as padding"),
        pytest.param(ZERO + "110", id="a zero in the padding"),
        pytest.param("1" * 8, id="a whole byte of padding alone"),
        pytest.param(ZERO + "111" + "1" * 8, id="a whole byte of padding behind padding"),
        pytest.param(EOS + "11", id="EOS alone"),
        pytest.param(ZERO + EOS + "11111", id="EOS behind a character"),
        pytest.param(ZERO + EOS + ZERO * 5 + "1" * 4, id="characters behind EOS"),
        pytest.param("1" * 64, id="EOS twice"),
        pytest.param("1" * 28 + "0000", id="zeros behind a long code"),
    ],
)
def test_strings_that_do_not_end_as_they_must_are_refused(bits: str) -> None:
    with pytest.raises(InvalidHuffman, match="contains EOS, or ends with wrong padding"):
        huffman_decoded(of_bits(bits))
