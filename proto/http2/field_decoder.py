"""Header blocks in, lists of fields out (RFC 7541; the format stands in hpack.py). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Final

from . import huffman
from .fields import (
    FIELD_OVERHEAD_BYTES,
    TABLE_BYTES_DEFAULT,
    Field,
    flaw_of,
    is_legal_name,
    is_legal_value,
)
from .static_table import STATIC_TABLE

_INTEGER_BYTES_MAX: Final = 5  # behind the prefix: 35 bits

# Both tables are one list, in which an entry stands at its index.
_STATIC_ENTRIES: Final[list[Field]] = [("", ""), *STATIC_TABLE]
_NEWEST: Final = len(_STATIC_ENTRIES)
_STATIC_FIELD_BYTES_MAX: Final = (
    max(len(name) + len(value) for name, value in STATIC_TABLE) + FIELD_OVERHEAD_BYTES
)

_NAME_FOLLOWS: Final = 0
_INDEX_GOES_ON: Final = -1


def _index_of_name(byte: int) -> int:
    """Return the index of the entry whose name a literal that begins with BYTE takes, or what follows instead."""
    index, all_ones = (byte & 0x3F, 0x3F) if byte & 0x40 else (byte & 0x0F, 0x0F)
    return _INDEX_GOES_ON if index == all_ones else index


_INDICES_OF_NAMES: Final = tuple(map(_index_of_name, range(0x80)))


class CompressionError(Exception):
    """A block cannot be decoded; the tables of both ends differ from here on, so that the connection is over."""


@dataclass(slots=True)
class FieldList:
    """What a block says. Whatever is wrong with the list, the connection and its table are sound.

    FIELDS are in their order. FLAW says what makes the request or response malformed (RFC 9113, §8.1.1), or is None;
    illegal fields are left out. TOO_LARGE: they count more than is allowed, and only the beginning is kept.
    """

    fields: list[Field]
    flaw: str | None = None
    too_large: bool = False


class FieldDecoder:
    """Decode the header blocks of one direction of one connection.

    TABLE_BYTES_MAX is the value of SETTINGS_HEADER_TABLE_SIZE that holds from the start; one that is announced takes
    effect by `resize`. A list counts up to LIST_BYTES_MAX, with 32 for each field. While a block is decoded, its list
    takes memory in proportion to the block, whose length the caller bounds.
    """

    def __init__(
        self, table_bytes_max: int = TABLE_BYTES_DEFAULT, list_bytes_max: int = 16_384
    ) -> None:
        self._list_bytes_max = list_bytes_max
        self._setting = table_bytes_max
        # An encoder that was allowed more than the default says so before it uses it.
        self._table_bytes_max = min(table_bytes_max, TABLE_BYTES_DEFAULT)
        self._table_bytes = 0
        self._entries = _STATIC_ENTRIES.copy()
        self._update_due: int | None = None
        # No field that was met so far is larger: it spares the normal list its sum.
        self._field_bytes_max = _STATIC_FIELD_BYTES_MAX
        # From the first illegal field on, which may stay in the table, each list is looked through.
        self._illegal_seen = False

    def resize(self, table_bytes_max: int) -> None:
        """Allow the peer TABLE_BYTES_MAX, as it has acknowledged: the next block reduces the table if it is larger."""
        self._setting = table_bytes_max
        due = self._table_bytes_max if self._update_due is None else self._update_due
        if table_bytes_max < due:
            self._update_due = table_bytes_max

    def decode(self, block: bytes) -> FieldList:
        """Return the fields of BLOCK, a whole one, and take its changes into the table.

        Raises CompressionError; the decoder is of no use afterwards.
        """
        fields: list[Field] = []
        keep = fields.append
        entries = self._entries
        end = len(block)
        position = byte = 0
        try:
            if self._update_due is not None:
                position = self._due_updates(block)
            while position < end:
                byte = block[position]
                position += 1
                if 0x80 < byte < 0xFF:
                    keep(entries[byte - 0x80])
                elif byte >= 0x80:
                    field, position = self._far_field(block, position, byte)
                    keep(field)
                elif 0x20 <= byte < 0x40:
                    position = self._update(block, position, byte, fields)
                else:
                    field, position = self._literal(block, position, byte)
                    keep(field)
        except IndexError:
            if 0x80 < byte < 0xFF:
                raise self._absent(byte - 0x80) from None
            raise CompressionError(f"a block of {end} bytes ends inside a field") from None
        except huffman.InvalidHuffman as error:
            raise CompressionError(str(error)) from None
        if self._illegal_seen or len(fields) * self._field_bytes_max > self._list_bytes_max:
            return self._judged(fields)
        return FieldList(fields)

    def _literal(self, block: bytes, position: int, byte: int) -> tuple[Field, int]:
        """Return the literal that begins with BYTE and goes on at POSITION, and where it ends."""
        index = _INDICES_OF_NAMES[byte]
        if index == _NAME_FOLLOWS:
            name, position = self._name(block, position)
        else:
            if index == _INDEX_GOES_ON:
                index, position = _integer(block, position, 0x3F if byte & 0x40 else 0x0F)
            name = self._entry(index)[0]

        length = block[position]
        position += 1
        if length < 0x7F:
            end = position + length
            value = block[position:end].decode("latin-1")
            if end > len(block):
                raise IndexError
        else:
            value, end = _string(block, position, length)

        if not is_legal_value(value):
            self._illegal_seen = True
        field = (name, value)
        size = len(name) + len(value) + FIELD_OVERHEAD_BYTES
        if size > self._field_bytes_max:
            self._field_bytes_max = size
        if byte & 0x40:
            self._insert(field, size)
        return field, end

    def _name(self, block: bytes, position: int) -> tuple[str, int]:
        name, position = _string(block, position + 1, block[position])
        if not is_legal_name(name):
            self._illegal_seen = True
        return name, position

    def _far_field(self, block: bytes, position: int, byte: int) -> tuple[Field, int]:
        """Return the field of a table that BYTE alone does not tell."""
        if byte == 0x80:
            raise self._absent(0)
        index, position = _integer(block, position, 0x7F)
        return self._entry(index), position

    def _entry(self, index: int) -> Field:
        try:
            return self._entries[index]
        except IndexError:
            raise self._absent(index) from None

    def _absent(self, index: int) -> CompressionError:
        count = len(self._entries) - 1
        return CompressionError(f"index {index} is not in the table, which has 1 to {count}")

    def _insert(self, field: Field, size: int) -> None:
        room = self._table_bytes_max - size
        if self._table_bytes > room:
            self._evict(room)
        # A field larger than the table empties it, and is no error (§4.4).
        if room >= 0:
            self._entries.insert(_NEWEST, field)
            self._table_bytes += size

    def _evict(self, bytes_max: int) -> None:
        """Let the oldest entries fall until the rest counts BYTES_MAX at most, or nothing is left."""
        entries = self._entries
        while self._table_bytes > bytes_max and len(entries) > _NEWEST:
            name, value = entries.pop()
            self._table_bytes -= len(name) + len(value) + FIELD_OVERHEAD_BYTES

    def _due_updates(self, block: bytes) -> int:
        """Take the updates that BLOCK must begin with; return where they end."""
        position = 0
        while position < len(block) and 0x20 <= block[position] < 0x40:
            position = self._update(block, position + 1, block[position], [])
        if self._update_due is not None:
            raise CompressionError(
                f"the block must begin with an update of the table's size to {self._update_due} or less"
            )
        return position

    def _update(self, block: bytes, position: int, byte: int, before: list[Field]) -> int:
        """Change the table's size as BYTE and what follows say; return where that ends."""
        if before:
            raise CompressionError("an update of the table's size stands behind a field")
        size = byte & 0x1F
        if size == 0x1F:
            size, position = _integer(block, position, 0x1F)
        if size > self._setting:
            raise CompressionError(
                f"the table is to have {size} bytes, {self._setting} are allowed"
            )
        # If the setting fell and rose again, an update to its lowest value is due (§4.2).
        if self._update_due is not None and size <= self._update_due:
            self._update_due = None
        self._table_bytes_max = size
        self._evict(size)
        return position

    def _judged(self, fields: list[Field]) -> FieldList:
        """Return FIELDS without what is illegal or too much, and say so."""
        size = FIELD_OVERHEAD_BYTES * len(fields) + sum(map(len, chain.from_iterable(fields)))
        too_large = size > self._list_bytes_max
        flaw = None
        if self._illegal_seen:
            flaws = [flaw_of(field) for field in fields]
            flaw = next(filter(None, flaws), None)
        if too_large:
            _shorten(fields, self._list_bytes_max)
        if flaw is not None:
            fields = [field for field in fields if flaw_of(field) is None]
        return FieldList(fields, flaw, too_large)


def _integer(block: bytes, position: int, prefix: int) -> tuple[int, int]:
    """Return the integer that goes on at POSITION behind PREFIX, which is all ones, and where it ends."""
    value = prefix
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise CompressionError(f"an integer has more than {_INTEGER_BYTES_MAX} bytes behind its prefix")


def _string(block: bytes, position: int, length: int) -> tuple[str, int]:
    """Return the string whose first byte was LENGTH and that goes on at POSITION, and where it ends."""
    size = length & 0x7F
    if size == 0x7F:
        size, position = _integer(block, position, 0x7F)
    end = position + size
    if end > len(block):
        raise IndexError
    data = block[position:end]
    return (huffman.decode(data) if length & 0x80 else data.decode("latin-1")), end


def _shorten(fields: list[Field], bytes_max: int) -> None:
    """Keep as many of FIELDS as count BYTES_MAX at most."""
    for count, (name, value) in enumerate(fields):
        bytes_max -= len(name) + len(value) + FIELD_OVERHEAD_BYTES
        if bytes_max < 0:
            del fields[count:]
            return
