"""HPACK, the compression of HTTP/2's header fields (RFC 7541): blocks of bytes to lists of fields, and back.

A block is a sequence of representations. Brackets mark an integer: it fills the rest of its first byte, and if these
bits are all ones it continues in bytes of seven bits, lowest first (§5.1, §6):

    1[index]                          a field of the table
    01[index] (name) value            a literal, which both ends then add to the dynamic table
    001[size]                         a new size of the dynamic table; only at the start of a block
    0000[index] (name) value          a literal that is not added
    0001[index] (name) value          the same; proxies must not add it either (a secret)

Index 0 means that the name follows as a string. A string is H[length] and its bytes, Huffman-coded if the bit H is set.
Indices 1 to 61 are the static table; the dynamic one starts at 62, newest first. A field counts as its bytes + 32, both
in the table and in the size of a list.

A block that breaks these rules raises CompressionError, and the connection ends. A block with forbidden or too many
fields only ends its stream (`FieldList`). Each connection has one FieldDecoder and one FieldEncoder; not thread-safe.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

from .huffman import InvalidHuffman, huffman_decoded, huffman_encoded

#: A name and a value. A character is a byte (Latin-1); names are ASCII.
Field: TypeAlias = tuple[str, str]

#: The size of a field in addition to its own bytes, in a table and in a list (RFC 7541, §4.1; RFC 9113, §6.5.2).
FIELD_OVERHEAD_BYTES: Final = 32
#: The size of a dynamic table until a setting changes it (RFC 9113, §6.5.2).
TABLE_BYTES_DEFAULT: Final = 4096

#: A token (RFC 9110, §5.6.2) without upper case.
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_PSEUDO_NAMES: Final = frozenset({":authority", ":method", ":path", ":scheme", ":status"})


def is_legal_name(name: str) -> bool:
    """Return whether NAME is a token in lower case, or a pseudo name of requests or responses."""
    return _NAME.fullmatch(name) is not None or name in _PSEUDO_NAMES


def is_legal_value(value: str) -> bool:
    """Return whether VALUE has no NUL, CR or LF, and no white space around it."""
    return not ("\n" in value or "\r" in value or "\0" in value or value.strip(" \t") != value)


def flaw_of(field: Field) -> str | None:
    """Return what HTTP/2 forbids in FIELD (RFC 9113, §8.2.1), or None."""
    name, value = field
    if not is_legal_name(name):
        what = "not a known pseudo name" if name.startswith(":") else "not a token in lower case"
        return f"the name {name[:64]!r} is {what}"
    if not is_legal_value(value):
        return f"the value of {name[:64]} contains NUL, CR or LF, or has white space around it"
    return None


#: The entries in order: the first has index 1.
STATIC_TABLE: Final[tuple[Field, ...]] = (
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
)

#: The index of a whole field.
STATIC_INDEX: Final[dict[Field, int]] = {
    field: index for index, field in enumerate(STATIC_TABLE, 1)
}

#: The lowest index of a field with this name.
STATIC_NAME_INDEX: Final[dict[str, int]] = {
    name: len(STATIC_TABLE) - index for index, (name, _) in enumerate(reversed(STATIC_TABLE))
}


_INTEGER_BYTES_MAX: Final = 5  # after the prefix: 35 bits

# Both tables are one list; an entry is at its index.
_STATIC_ENTRIES: Final[list[Field]] = [("", ""), *STATIC_TABLE]
_NEWEST: Final = len(_STATIC_ENTRIES)
_STATIC_FIELD_BYTES_MAX: Final = (
    max(len(name) + len(value) for name, value in STATIC_TABLE) + FIELD_OVERHEAD_BYTES
)

_NAME_FOLLOWS: Final = 0
_INDEX_GOES_ON: Final = -1


def _index_of_name(byte: int) -> int:
    """Return the index of the entry whose name a literal starting with BYTE uses, or what follows instead."""
    index, all_ones = (byte & 0x3F, 0x3F) if byte & 0x40 else (byte & 0x0F, 0x0F)
    return _INDEX_GOES_ON if index == all_ones else index


_INDICES_OF_NAMES: Final = tuple(map(_index_of_name, range(0x80)))


class CompressionError(Exception):
    """A block cannot be decoded. The tables of both ends differ from here on, so the connection must end."""


@dataclass(slots=True)
class FieldList:
    """The fields of a block. Whatever is wrong with them, the connection and its table remain usable.

    FIELDS are in their order. FLAW is the reason why the request or response is malformed (RFC 9113, §8.1.1), or None;
    illegal fields are left out. TOO_LARGE: the list exceeds its limit, and only its beginning is kept.
    """

    fields: list[Field]
    flaw: str | None = None
    too_large: bool = False


class FieldDecoder:
    """Decode the header blocks of one direction of one connection.

    TABLE_BYTES_MAX is the initial SETTINGS_HEADER_TABLE_SIZE; call `resize` when you announce another one. The size of
    a list is limited to LIST_BYTES_MAX, with 32 bytes for each field. While a block is decoded, its list takes memory
    in proportion to the block, whose length the caller limits.
    """

    def __init__(
        self, table_bytes_max: int = TABLE_BYTES_DEFAULT, list_bytes_max: int = 16_384
    ) -> None:
        self._list_bytes_max = list_bytes_max
        self._setting = table_bytes_max
        # An encoder that may use more than the default announces that before it does.
        self._table_bytes_max = min(table_bytes_max, TABLE_BYTES_DEFAULT)
        self._table_bytes = 0
        self._entries = _STATIC_ENTRIES.copy()
        self._update_due: int | None = None
        # The largest field so far: a list that is safe by this measure need not be summed up.
        self._field_bytes_max = _STATIC_FIELD_BYTES_MAX
        # After the first illegal field, which may stay in the table, each list is checked.
        self._illegal_seen = False

    def resize(self, table_bytes_max: int) -> None:
        """Set the limit that the peer has acknowledged. If its table is larger, the next block must reduce it."""
        self._setting = table_bytes_max
        due = self._table_bytes_max if self._update_due is None else self._update_due
        if table_bytes_max < due:
            self._update_due = table_bytes_max

    def decode(self, block: bytes) -> FieldList:
        """Return the fields of BLOCK, a complete block, and apply its changes to the table.

        Raises CompressionError. After that the decoder cannot be used any more.
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
        except InvalidHuffman as error:
            raise CompressionError(str(error)) from None
        if self._illegal_seen or len(fields) * self._field_bytes_max > self._list_bytes_max:
            return self._judged(fields)
        return FieldList(fields)

    def _literal(self, block: bytes, position: int, byte: int) -> tuple[Field, int]:
        """Return the literal that starts with BYTE and continues at POSITION, and where it ends."""
        index = _INDICES_OF_NAMES[byte]
        if index == _NAME_FOLLOWS:
            name, position = self._name(block, position)
        else:
            if index == _INDEX_GOES_ON:
                index, position = _read_integer(block, position, 0x3F if byte & 0x40 else 0x0F)
            name = self._entry(index)[0]

        length = block[position]
        position += 1
        if length < 0x7F:
            end = position + length
            value = block[position:end].decode("latin-1")
            if end > len(block):
                raise IndexError
        else:
            value, end = _read_string(block, position, length)

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
        name, position = _read_string(block, position + 1, block[position])
        if not is_legal_name(name):
            self._illegal_seen = True
        return name, position

    def _far_field(self, block: bytes, position: int, byte: int) -> tuple[Field, int]:
        """Return the field of a table whose index does not fit BYTE alone."""
        if byte == 0x80:
            raise self._absent(0)
        index, position = _read_integer(block, position, 0x7F)
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
        """Evict the oldest entries until the rest counts no more than BYTES_MAX, or nothing is left."""
        entries = self._entries
        while self._table_bytes > bytes_max and len(entries) > _NEWEST:
            name, value = entries.pop()
            self._table_bytes -= len(name) + len(value) + FIELD_OVERHEAD_BYTES

    def _due_updates(self, block: bytes) -> int:
        """Apply the size updates at the start of BLOCK; return where they end."""
        position = 0
        while position < len(block) and 0x20 <= block[position] < 0x40:
            position = self._update(block, position + 1, block[position], [])
        if self._update_due is not None:
            raise CompressionError(
                f"the block must begin with a table size update to {self._update_due} or less"
            )
        return position

    def _update(self, block: bytes, position: int, byte: int, before: list[Field]) -> int:
        """Change the table's size as BYTE and the following bytes say; return where the update ends."""
        if before:
            raise CompressionError("a table size update follows a field")
        size = byte & 0x1F
        if size == 0x1F:
            size, position = _read_integer(block, position, 0x1F)
        if size > self._setting:
            raise CompressionError(
                f"a table size update to {size} bytes, the limit is {self._setting}"
            )
        # If the setting fell and rose again, an update to its lowest value is due (§4.2).
        if self._update_due is not None and size <= self._update_due:
            self._update_due = None
        self._table_bytes_max = size
        self._evict(size)
        return position

    def _judged(self, fields: list[Field]) -> FieldList:
        """Return FIELDS without illegal ones and those beyond the limit, and with the reason."""
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


def _read_integer(block: bytes, position: int, prefix: int) -> tuple[int, int]:
    """Return the integer that continues at POSITION after PREFIX, which is all ones, and where it ends."""
    value = prefix
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise CompressionError(f"an integer has more than {_INTEGER_BYTES_MAX} bytes after its prefix")


def _read_string(block: bytes, position: int, length: int) -> tuple[str, int]:
    """Return the string whose first byte was LENGTH and that continues at POSITION, and where it ends."""
    size = length & 0x7F
    if size == 0x7F:
        size, position = _read_integer(block, position, 0x7F)
    end = position + size
    if end > len(block):
        raise IndexError
    data = block[position:end]
    return (huffman_decoded(data) if length & 0x80 else data.decode("latin-1")), end


def _shorten(fields: list[Field], bytes_max: int) -> None:
    """Keep as many of FIELDS as fit into BYTES_MAX."""
    for count, (name, value) in enumerate(fields):
        bytes_max -= len(name) + len(value) + FIELD_OVERHEAD_BYTES
        if bytes_max < 0:
            del fields[count:]
            return


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
    """Encode the header blocks of one direction of one connection. Each block must be sent, in this order.

    TABLE_BYTES_MAX limits the dynamic table, however much the peer allows. Fields are added to it when they are first
    sent. Exceptions: names in UNINDEXED, whose values change with every call (only the name is added), and names in
    SENSITIVE, secrets that must never be in a table (§7.1.3).
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
        # The table size that the peer assumes now, the one to announce, and the smallest since the last announcement.
        self._table_bytes_max = TABLE_BYTES_DEFAULT
        self._wanted = self._least = min(table_bytes_max, TABLE_BYTES_DEFAULT)
        # Entries are numbered as they are added. No two are equal; of those with one name the newest is known.
        self._entries: deque[Field] = deque()
        self._table_bytes = 0
        self._last_number = 0
        self._numbers: dict[Field, int] = {}
        self._numbers_of_names: dict[str, int] = {}

    def resize(self, table_bytes_max: int) -> None:
        """Use the peer's SETTINGS_HEADER_TABLE_SIZE. The next block announces the change."""
        self._wanted = min(table_bytes_max, self._own_bytes_max)
        self._least = min(self._least, self._wanted)

    def encode(self, fields: Sequence[Field]) -> bytes:
        """Return the block of FIELDS, which must be legal.

        Raises UnicodeEncodeError for characters beyond Latin-1, before anything is changed.
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
        """Return the start of the next block, if the table's size changes: the smallest size, then the last (§4.2)."""
        updates = []
        for size in (self._least, self._wanted):
            if size != self._table_bytes_max:
                updates.append(_integer(size, _UPDATE))
                self._table_bytes_max = size
                self._evict(size)
        self._least = self._wanted
        return updates

    def _encode(self, field: Field) -> bytes:
        """Return FIELD, which is not in the dynamic table, encoded; add it to the table if that pays."""
        name, value = field
        if name in self._sensitive:
            return self._literal(field, _NEVER_ADDED)
        index = STATIC_INDEX.get(field)
        if index is not None:
            return _indexed(index)
        size = len(name) + len(value) + FIELD_OVERHEAD_BYTES
        if size > self._table_bytes_max // 2:  # It would evict too much.
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
        """Evict the oldest entries until the rest counts no more than BYTES_MAX."""
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

    NAME and VALUE must be legal. SENSITIVE forbids proxies to put the field into a table. Raises
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
    """Return TEXT in Huffman's code if that is shorter."""
    data = text.encode("latin-1")
    coded = huffman_encoded(data)
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
