"""Fields in, header blocks out (RFC 7541; the format stands in hpack.py). Pure."""

from __future__ import annotations

from .static_table import STATIC_NAME_INDEX


def literal(name: str, value: str, *, sensitive: bool = False) -> bytes:
    """Return a field that neither reads the dynamic table nor changes it: the same bytes for every connection.

    NAME and VALUE are legal already. SENSITIVE forbids that those who pass the field on ever put it in a table. Raises
    UnicodeEncodeError for characters beyond Latin-1.
    """
    first = 0x10 if sensitive else 0x00
    index = STATIC_NAME_INDEX.get(name)
    data = value.encode("latin-1")
    if index is None:
        spelled = name.encode("ascii")
        begin = bytes((first,)) + _encode_integer(len(spelled), 0x7F, 0) + spelled
    else:
        begin = _encode_integer(index, 0x0F, first)
    return begin + _encode_integer(len(data), 0x7F, 0) + data


def _encode_integer(value: int, prefix: int, first: int) -> bytes:
    """Return VALUE in a byte whose upper bits are FIRST and whose lower ones are PREFIX, and more bytes as needed."""
    if value < prefix:
        return bytes((first | value,))
    encoded = bytearray((first | prefix,))
    value -= prefix
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
