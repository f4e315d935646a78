"""Fields in, header blocks out (RFC 7541; the format stands in hpack.py). Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Final

from . import huffman
from .fields import FIELD_OVERHEAD_BYTES, TABLE_BYTES_DEFAULT, Field
from .static_table import STATIC_INDEX, STATIC_NAME_INDEX, STATIC_TABLE

# The upper bits of a representation's first byte, and the lower ones, which its integer fills.
_INDEXED: Final = (0x80, 0x7F)
_ADDED: Final = (0x40, 0x3F)
_UPDATE: Final = (0x20, 0x1F)
_NEVER_ADDED: Final = (0x10, 0x0F)
_NOT_ADDED: Final = (0x00, 0x0F)
_PLAIN: Final = (0x00, 0x7F)
_HUFFMAN: Final = (0x80, 0x7F)

#: The index of the dynamic table's newest entry.
_NEWEST_INDEX: Final = len(STATIC_TABLE) + 1


class FieldEncoder:
    """Encode the header blocks of one direction of one connection, each of which must be sent, in this order.

    TABLE_BYTES_MAX bounds the dynamic table, however much the peer allows. Fields go into it when they are first sent,
    unless their name is in UNINDEXED: values that change with every call, of which the name alone is worth it; or in
    SENSITIVE: secrets, which nobody may put in a table (§7.1.3).
    """

    def __init__(
        self,
        table_bytes_max: int = TABLE_BYTES_DEFAULT,
        *,
        unindexed: Collection[str] = (),
        sensitive: Collection[str] = (),
    ) -> None:
        self._own_bytes_max = table_bytes_max
        self._unindexed = frozenset(unindexed)
        self._sensitive = frozenset(sensitive)
        # What the peer assumes until it is told otherwise, what it is to be told, and the least since it was told.
        self._table_bytes_max = TABLE_BYTES_DEFAULT
        self._wanted = self._least = min(table_bytes_max, TABLE_BYTES_DEFAULT)
        # Entries are numbered as they are added. No two are equal; of those with one name the newest is known.
        self._entries: deque[Field] = deque()
        self._table_bytes = 0
        self._last_number = 0
        self._numbers: dict[Field, int] = {}
        self._numbers_of_names: dict[str, int] = {}

    def resize(self, table_bytes_max: int) -> None:
        """Take the peer's SETTINGS_HEADER_TABLE_SIZE; the next block says what becomes of the table."""
        self._wanted = min(table_bytes_max, self._own_bytes_max)
        self._least = min(self._least, self._wanted)

    def encode(self, fields: Sequence[Field]) -> bytes:
        """Return the block of FIELDS, which are legal.

        Raises UnicodeEncodeError, before anything is changed, for characters beyond Latin-1.
        """
        "".join(chain.from_iterable(fields)).encode("latin-1")
        parts = self._updates()
        numbers = self._numbers
        for field in fields:
            number = numbers.get(field)
            if number is None:
                parts.append(self._encode(field))
            else:
                parts.append(_indexed(_NEWEST_INDEX + self._last_number - number))
        return b"".join(parts)

    def _updates(self) -> list[bytes]:
        """Return what the next block begins with, if the table's size changes: the least one, then the last (§4.2)."""
        updates = []
        for size in (self._least, self._wanted):
            if size != self._table_bytes_max:
                updates.append(_integer(size, _UPDATE))
                self._table_bytes_max = size
                self._evict(size)
        self._least = self._wanted
        return updates

    def _encode(self, field: Field) -> bytes:
        """Return FIELD, which is not in the dynamic table, and add it where that pays."""
        name, value = field
        if name in self._sensitive:
            return self._literal(field, _NEVER_ADDED)
        index = STATIC_INDEX.get(field)
        if index is not None:
            return _indexed(index)
        size = len(name) + len(value) + FIELD_OVERHEAD_BYTES
        if size > self._table_bytes_max // 2:  # it would drive out too much
            return self._literal(field, _NOT_ADDED)
        if name in self._unindexed and self._index_of_name(name):
            return self._literal(field, _NOT_ADDED)
        encoded = self._literal(field, _ADDED)
        self._insert(field, size)
        return encoded

    def _literal(self, field: Field, kind: tuple[int, int]) -> bytes:
        name, value = field
        index = self._index_of_name(name)
        begin = _integer(index, kind)
        if index == 0:
            begin += _shorter_string(name)
        return begin + _shorter_string(value)

    def _index_of_name(self, name: str) -> int:
        """Return an index whose field has NAME, or 0."""
        index = STATIC_NAME_INDEX.get(name)
        if index is not None:
            return index
        number = self._numbers_of_names.get(name)
        return 0 if number is None else _NEWEST_INDEX + self._last_number - number

    def _insert(self, field: Field, size: int) -> None:
        self._evict(self._table_bytes_max - size)
        self._entries.append(field)
        self._table_bytes += size
        self._last_number += 1
        self._numbers[field] = self._numbers_of_names[field[0]] = self._last_number

    def _evict(self, bytes_max: int) -> None:
        """Let the oldest entries fall until the rest counts BYTES_MAX at most."""
        while self._table_bytes > bytes_max:
            number = self._last_number - len(self._entries) + 1
            field = self._entries.popleft()
            name, value = field
            self._table_bytes -= len(name) + len(value) + FIELD_OVERHEAD_BYTES
            del self._numbers[field]
            if self._numbers_of_names[name] == number:
                del self._numbers_of_names[name]


def literal(name: str, value: str, *, sensitive: bool = False) -> bytes:
    """Return a field that neither reads the dynamic table nor changes it: the same bytes for every connection.

    NAME and VALUE are legal already. SENSITIVE forbids that those who pass the field on ever put it in a table. Raises
    UnicodeEncodeError for characters beyond Latin-1.
    """
    kind = _NEVER_ADDED if sensitive else _NOT_ADDED
    index = STATIC_NAME_INDEX.get(name)
    if index is not None:
        return _integer(index, kind) + _string(value)
    return _integer(0, kind) + _string(name) + _string(value)


def _string(text: str) -> bytes:
    data = text.encode("latin-1")
    return _integer(len(data), _PLAIN) + data


def _shorter_string(text: str) -> bytes:
    """Return TEXT in Huffman's code where that is shorter."""
    data = text.encode("latin-1")
    coded = huffman.encode(data)
    if len(coded) < len(data):
        return _integer(len(coded), _HUFFMAN) + coded
    return _integer(len(data), _PLAIN) + data


def _indexed(index: int) -> bytes:
    return _NEAR_FIELDS[index] if index < len(_NEAR_FIELDS) else _integer(index, _INDEXED)


def _integer(value: int, kind: tuple[int, int]) -> bytes:
    """Return VALUE in a byte with the bits of KIND, and more bytes as needed (§5.1)."""
    first, prefix = kind
    if value < prefix:
        return bytes((first | value,))
    encoded = bytearray((first | prefix,))
    value -= prefix
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


#: The fields that take one byte, by index.
_NEAR_FIELDS: Final = [_integer(index, _INDEXED) for index in range(0x7F)]
