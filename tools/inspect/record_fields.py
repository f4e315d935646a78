"""One record field by field: where each stands, its bytes, its value and what that means.

Fields come from the table in proto/record.py. Where the lengths do not agree, the fields up to the first that reaches
beyond the bytes at hand are told, and a problem says why it goes no further. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...proto.instant import format_instant
from ...proto.properties import NAME_END, PAIR_END
from ...proto.record import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_V6,
    SYS_COMMIT,
    SYS_COMPRESSED,
    SYS_COMPRESSION,
    SYS_INNER_BATCH,
    SYS_MULTI_TAGS,
    SYS_NEEDS_UNWRAP,
    SYS_PREPARED,
    SYS_ROLLBACK,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    body_crc,
)
from .record_rows import host_at

_MAGICS: Final = {
    MAGIC_V1: "a message, V1: the topic's length has one byte",
    MAGIC_V2: "a message, V2: the topic's length has two bytes",
    MAGIC_BLANK: "a blank: the rest of the file means nothing",
}
_BITS: Final = {
    SYS_COMPRESSED: "compressed",
    SYS_MULTI_TAGS: "multi-tags",
    SYS_BORN_V6: "born host IPv6",
    SYS_STORE_V6: "store host IPv6",
    SYS_NEEDS_UNWRAP: "needs unwrap",
    SYS_INNER_BATCH: "inner batch",
}
_TRANSACTIONS: Final = {
    SYS_PREPARED: "transaction prepared",
    SYS_COMMIT: "transaction committed",
    SYS_ROLLBACK: "transaction rolled back",
}
_COMPRESSIONS: Final = {
    0: "ZLIB (type 0)",
    COMPRESSION_LZ4: "LZ4",
    COMPRESSION_ZSTD: "ZSTD",
    COMPRESSION_ZLIB: "ZLIB",
}
_KNOWN_BITS: Final = 0x7FF


@dataclass(frozen=True, slots=True)
class RecordField:
    """The bytes [AT, AT + SIZE) of a record: their VALUE, what it MEANS, and what is WRONG with it ("" for nothing)."""

    name: str
    at: int
    size: int
    value: int | str | None
    means: str = ""
    wrong: str = ""


class _Reader:
    """Reads fields one behind the other from DATA, the bytes from a record's beginning on."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def number(self, name: str, size: int, means: str = "", wrong: str = "") -> RecordField:
        """Return the signed number of SIZE bytes."""
        value = int.from_bytes(self.take(size), "big", signed=True)
        return RecordField(name, self.at - size, size, value, means, wrong)

    def take(self, size: int) -> memoryview:
        """Return the next SIZE bytes; struct.error if there are fewer."""
        if size < 0 or self.at + size > len(self.data):
            raise struct.error(
                f"{size:,} bytes at {self.at:,}, {len(self.data) - self.at:,} are left"
            )
        self.at += size
        return self.data[self.at - size : self.at]


def record_fields(data: memoryview, offset: int) -> tuple[list[RecordField], str]:
    """Return the fields of the record at OFFSET of the log, which DATA begins with, and what ended them early or ""."""
    fields: list[RecordField] = []
    try:
        for field in _fields(_Reader(data), offset):
            fields.append(field)  # noqa: PERF402 - what was read before an error is kept
    except struct.error as error:
        return fields, f"the bytes end within a field: {error}"
    return fields, ""


def _fields(reader: _Reader, offset: int) -> Iterator[RecordField]:
    total = reader.number("totalSize", 4)
    yield total
    magic = reader.number("magicCode", 4)
    yield _with(magic, *_magic(_int(magic)))
    if _int(magic) not in (MAGIC_V1, MAGIC_V2):
        return
    crc = reader.number("bodyCRC", 4)
    held_back = [
        crc,
        reader.number("queueId", 4),
        reader.number("flag", 4, "the application's own"),
    ]
    held_back.append(reader.number("queueOffset", 8))
    held_back.append(_own_offset(reader.number("physicalOffset", 8), offset))
    sys_flag = reader.number("sysFlag", 4)
    flags = _int(sys_flag)
    held_back.append(_with(sys_flag, sys_flag_means(flags)))
    held_back.append(_instant(reader.number("bornTimestamp", 8)))
    held_back.append(_host(reader, "bornHost", bool(flags & SYS_BORN_V6)))
    held_back.append(_instant(reader.number("storeTimestamp", 8)))
    held_back.append(_host(reader, "storeHost", bool(flags & SYS_STORE_V6)))
    held_back.append(reader.number("reconsumeTimes", 4))
    prepared = reader.number("preparedTransactionOffset", 8)
    where = "log offset of its half message" if prepared.value else ""
    held_back.append(_with(prepared, where))
    length = reader.number("bodyLength", 4)
    body_at = reader.at
    body = bytes(reader.take(_int(length))) if _int(length) >= 0 else b""
    held_back[0] = _crc(crc, body)
    yield from held_back
    yield length
    if _int(length) < 0:
        raise struct.error(f"bodyLength {length.value} at {length.at}")
    yield RecordField("body", body_at, len(body), text_of(body), _body_means(flags))
    topic_length = _topic_length(reader, _int(magic))
    yield topic_length
    topic_at = reader.at
    topic = bytes(reader.take(_int(topic_length)))
    yield RecordField("topic", topic_at, len(topic), text_of(topic))
    properties_length = reader.number("propertiesLength", 2)
    yield properties_length
    yield from _properties(reader, _int(properties_length))
    if reader.at != total.value:
        yield RecordField(
            "(end)",
            reader.at,
            0,
            None,
            wrong=f"totalSize says {total.value:,}, the fields end at {reader.at:,}",
        )


def _int(field: RecordField) -> int:
    assert isinstance(field.value, int)
    return field.value


def _with(field: RecordField, means: str, wrong: str = "") -> RecordField:
    return RecordField(field.name, field.at, field.size, field.value, means, wrong)


def _magic(magic: int) -> tuple[str, str]:
    text = f"{magic & 0xFFFFFFFF:08X}"
    known = _MAGICS.get(magic)
    return (f"{text}: {known}", "") if known else (text, "no message and no blank")


def _own_offset(field: RecordField, offset: int) -> RecordField:
    if field.value == offset:
        return _with(field, "its own place")
    return _with(field, "", f"the record stands at {offset:,}")


def _instant(field: RecordField) -> RecordField:
    return _with(field, format_instant(_int(field)))


def _host(reader: _Reader, name: str, is_v6: bool) -> RecordField:
    size = 16 if is_v6 else 4
    at = reader.at
    reader.take(size + 4)
    return RecordField(name, at, size + 4, str(host_at(reader.data, at, size)))


def _crc(field: RecordField, body: bytes) -> RecordField:
    wanted = body_crc(body)
    if not body or field.value == wanted:
        return _with(field, "fits the body" if body else "no body")
    return _with(field, "", f"the body's CRC is {wanted}")


def _topic_length(reader: _Reader, magic: int) -> RecordField:
    if magic == MAGIC_V2:
        return reader.number("topicLength", 2)
    at = reader.at
    return RecordField("topicLength", at, 1, reader.take(1)[0])


def _body_means(flags: int) -> str:
    if not flags & SYS_COMPRESSED:
        return ""
    kind = flags & SYS_COMPRESSION
    return f"compressed: {_COMPRESSIONS.get(kind, f'type {kind >> 8}, unknown')}"


def sys_flag_means(flags: int) -> str:
    """Return the names of the bits that are set in sysFlag FLAGS."""
    names = [name for bit, name in _BITS.items() if flags & bit]
    names += [_TRANSACTIONS[flags & SYS_TRANSACTION]] if flags & SYS_TRANSACTION else []
    kind = flags & SYS_COMPRESSION
    if kind:
        names.append(_COMPRESSIONS.get(kind, f"compression type {kind >> 8}"))
    rest = flags & ~_KNOWN_BITS
    if rest:
        names.append(f"unknown bits {rest & 0xFFFFFFFF:#x}")
    return ", ".join(names) or "nothing"


def _properties(reader: _Reader, size: int) -> Iterator[RecordField]:
    """Yield each pair of the property string: its name, value and separators."""
    if size < 0:
        raise struct.error(f"propertiesLength {size} at {reader.at - 2}")
    at = reader.at
    string = bytes(reader.take(size))
    pair_end = PAIR_END.encode()
    while string:
        pair, end, string = string.partition(pair_end)
        name, separator, value = pair.partition(NAME_END.encode())
        ends = "closed by 02" if end else "not closed: the string ends"
        wrong = "" if separator and name and value else "no name and value: readers pass over it"
        yield RecordField(
            f"  {text_of(name)}", at, len(pair) + len(end), text_of(value), ends, wrong
        )
        at += len(pair) + len(end)


def text_of(data: bytes) -> str:
    """Return DATA as text, and bytes that are none as \\xNN."""
    return data.decode("utf-8", "backslashreplace")
