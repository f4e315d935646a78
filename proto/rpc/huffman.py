"""HPACK's Huffman code (RFC 7541, §5.2 and appendix B). Pure."""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

# The code is canonical: codes of one length are consecutive numbers in the order of the symbols, and the first code of
# the next length continues them with zeros appended. So the symbols of each length define it. EOS, thirty ones, never
# occurs in a string; its leading ones pad the last byte.
#
# Decoding is a state machine that takes one byte per step. A state is a prefix of a code: the bits so far that do not
# make a complete code. A row has, for each byte, the next state and the decoded characters. All 256 rows would take
# 7 MB and 14 ms, and headers need few of them, so a row is filled when it is first used.


#: The symbols of each code length in bits. EOS would be the last one of the longest.
_SYMBOLS: Final = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e"
    b"\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf\xc5\xe7\xef",
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f"
    b"\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\x7f\xdc\xf9",
    30: b"\n\r\x16",
}

#: For each byte: the row of the next state, and the completed text. Empty until its first use.
_Row: TypeAlias = "list[tuple[_Row, str]]"
#: For a state: the next state after some bits, and the text that they complete.
_Steps: TypeAlias = "dict[str, list[tuple[str, str]]]"

_BETWEEN_CODES: Final = ""
_AFTER_EOS: Final = "EOS"
_PADDING_BITS_MAX: Final = 7

_FIRST_ROW: Final[_Row] = []


class InvalidHuffman(Exception):
    """The bytes are not a complete string of codes: they contain EOS, or the padding is wrong or too long."""


def huffman_encoded(text: bytes) -> bytes:
    """Return TEXT encoded; the result may be longer."""
    if not text:
        return b""
    bits = "".join(map(_codes().__getitem__, text))
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def huffman_decoded(data: bytes) -> str:
    """Return the text encoded in DATA, one character per byte.

    Raises InvalidHuffman.
    """
    row = _FIRST_ROW
    texts: list[str] = []
    keep = texts.append
    for byte in data:
        try:
            row, text = row[byte]
        except IndexError:
            row, text = _filled(row)[byte]
        keep(text)
    if row is not _FIRST_ROW and id(row) not in _ids_of_last_rows():
        raise InvalidHuffman("a Huffman-coded string contains EOS, or ends with wrong padding")
    return "".join(texts)


@cache
def _codes() -> tuple[str, ...]:
    """Return the code of each byte as the digits 0 and 1."""
    codes = {}
    code = length_before = 0
    for length, symbols in _SYMBOLS.items():
        code <<= length - length_before
        length_before = length
        for symbol in symbols:
            codes[symbol] = f"{code:0{length}b}"
            code += 1
    return tuple(codes[symbol] for symbol in range(256))


@cache
def _rows() -> dict[str, _Row]:
    """Return the row of each state."""
    rows: dict[str, _Row] = {state: [] for state in _steps_by_four_bits()}
    rows[_BETWEEN_CODES] = _FIRST_ROW
    return rows


@cache
def _ids_of_last_rows() -> frozenset[int]:
    """Return the rows in which a string may end: between codes, or in padding."""
    return frozenset(id(_rows()["1" * count]) for count in range(_PADDING_BITS_MAX + 1))


def _filled(row: _Row) -> _Row:
    """Fill the empty ROW with the result for each byte, and return it."""
    rows, steps = _rows(), _steps_by_four_bits()
    state = next(state for state, other in rows.items() if other is row)
    row[:] = [(rows[last], text) for last, text in _twice(steps, state)]
    return row


@cache
def _steps_by_four_bits() -> _Steps:
    characters = {code: chr(symbol) for symbol, code in enumerate(_codes())}
    states = {code[:length] for code in characters for length in range(len(code))}

    def after(bits: str) -> tuple[str, str]:
        if bits in characters:
            return _BETWEEN_CODES, characters[bits]
        return (bits, "") if bits in states else (_AFTER_EOS, "")

    by_one = {state: [after(state + bit) for bit in "01"] for state in states}
    by_one[_AFTER_EOS] = [(_AFTER_EOS, "")] * 2
    by_two = {state: _twice(by_one, state) for state in by_one}
    return {state: _twice(by_two, state) for state in by_one}


def _twice(steps: _Steps, state: str) -> list[tuple[str, str]]:
    """Return the result for STATE with twice as many bits as STEPS have."""
    return [
        (last, begun + rest) for between, begun in steps[state] for last, rest in steps[between]
    ]
