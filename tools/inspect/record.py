"""`pocketmq inspect STORE record OFFSET`: one record, with position, bytes, value and meaning of each field.

Fields come from the table in proto/record.py. Where the lengths do not agree, the fields up to the first that reaches
beyond the available bytes are shown, and a problem says why the rest is missing.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.text import Text

from ...proto.errors import MessageNotFound
from ...proto.message_id import decode_offset_message_id
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
from ...proto.time_text import format_instant
from ...store.listing import RowFile
from ...store.log_view import LogWalk, next_sound
from ...store.view import StoreView
from .output import Output, format_options, offset_of, opened, people
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
_BYTES_A_LINE: Final = 16
_LINES_MAX: Final = 6
_NAME_WIDTH: Final = 26
#: A record may say that it is longer than any can be.
_SIZE_MAX: Final = 64 << 20
_LEAST: Final = 8
#: Digits of an offset message id; an offset has fewer.
_ID_SIZES: Final = (32, 56)


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
    """Reads fields one after the other from DATA, which begins with a record."""

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
    return _with(field, "", f"the record is at {offset:,}")


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


@click.command()
@click.argument("offset", metavar="OFFSET")
@click.option("--all-bytes", is_flag=True, help="Show every byte of long fields.")
@format_options
def record(*, offset: str, all_bytes: bool, as_json: bool, as_jsonl: bool) -> None:
    """Show the record at OFFSET of the commit log, field by field.

    Prints position, bytes, value and meaning of each field. OFFSET is a log offset, or an offset message id, which
    contains one. If no record begins there, the record around it is named.

    \b
    Example: pocketmq inspect data/store record 63173
    """
    output = Output.of(as_json, as_jsonl)
    files = opened()
    at = _place(offset)
    walk = LogWalk(files)
    file = walk.row.at(at)
    if file is None:
        raise MessageNotFound(_outside(walk, at), offset=at)
    data = _bytes(files, file, at)
    fields, problem = record_fields(data, at)
    if not _is_record(fields):
        raise MessageNotFound(_no_record(walk, file, files.view(file), at), offset=at)
    output.document(
        _document(data, file, at, fields, problem),
        lambda: _print(data, file, at, fields, problem, all_bytes),
    )


def _place(text: str) -> int:
    """Return the log offset that TEXT is, or that is part of it if it is an offset message id."""
    if len(text) in _ID_SIZES:
        return decode_offset_message_id(text)[2]
    return offset_of(text)


def _bytes(files: StoreView, file: RowFile, at: int) -> memoryview:
    view = files.view(file)
    position = at - file.start
    size = int.from_bytes(view[position : position + 4], "big", signed=True)
    return view[position : position + (size if _LEAST <= size <= _SIZE_MAX else _LEAST)]


def _is_record(fields: list[RecordField]) -> bool:
    return len(fields) > 1 and fields[1].value in (MAGIC_V1, MAGIC_V2)


def _outside(walk: LogWalk, at: int) -> str:
    if not walk.row.files:
        return "the log has no file"
    if walk.begin <= at < walk.row.end:
        return f"offset {at:,} is in a gap: its file is missing"
    gone = ": its file is gone" if at < walk.begin else ""
    return f"offset {at:,} is outside the log, {walk.begin:,} to {walk.end:,}{gone}"


def _no_record(walk: LogWalk, file: RowFile, view: memoryview, at: int) -> str:
    """Return what is at AT instead, and where the nearest records begin."""
    told = f"no record begins at {at:,} of {file.name}"
    position = at - file.start
    inside = _record_around(file, view, position)
    if inside is not None:
        begin, size = inside
        told += f": it is in the record at {begin:,}, {size:,} bytes"
    following = next_sound(view, file.start, position, len(view))
    if following is not None:
        told += f"; the next one begins at {file.start + following:,}"
    elif at >= walk.end:
        told += f": the log ends at {walk.end:,}"
    return told


def _record_around(file: RowFile, view: memoryview, position: int) -> tuple[int, int] | None:
    """Return log offset and size of the record that POSITION is in; None if none is found in front of it."""
    size = 4 << 10
    while True:
        begin = max(0, position - size)
        found = None
        at = next_sound(view, file.start, begin, position + _LEAST)
        while at is not None:
            found = at
            length = int.from_bytes(view[at : at + 4], "big")
            at = next_sound(view, file.start, at + max(1, length), position + _LEAST)
        if found is not None:
            length = int.from_bytes(view[found : found + 4], "big")
            if found < position < found + length:
                return file.start + found, length
            return None
        if begin == 0 or size > _SIZE_MAX:
            return None
        size *= 8


def _document(
    data: memoryview, file: RowFile, at: int, fields: list[RecordField], problem: str
) -> dict[str, Any]:
    wrong = [f"{field.name.strip()}: {field.wrong}" for field in fields if field.wrong]
    return {
        "log_offset": at,
        "file": file.name,
        "file_position": at - file.start,
        "store_size": len(data),
        "problems": wrong + ([problem] if problem else []),
        "fields": [
            {
                "name": field.name.strip(),
                "is_property": field.name.startswith(" "),
                "at": field.at,
                "size": field.size,
                "hex": data[field.at : field.at + field.size].hex(),
                "value": field.value,
                "means": field.means or None,
                "wrong": field.wrong or None,
            }
            for field in fields
        ],
        "base64": base64.b64encode(data).decode(),
    }


def _print(
    data: memoryview,
    file: RowFile,
    at: int,
    fields: list[RecordField],
    problem: str,
    all_bytes: bool,
) -> None:
    console = people()
    place = f"  {len(data):,} bytes, file {file.name} from byte {at - file.start:,}"
    console.print(Text.assemble((f"record at {at:,}", "bold"), place))
    lines_max = None if all_bytes else _LINES_MAX
    for field in fields:
        for line in _lines(data, field, lines_max):
            console.print(line)
    for text in [f"{field.name.strip()}: {field.wrong}" for field in fields if field.wrong]:
        console.print(Text(text, style="red"))
    if problem:
        console.print(Text(problem, style="red"))


def _lines(data: memoryview, field: RecordField, lines_max: int | None) -> list[Text]:
    """Return the lines of FIELD: the first has its name and value, the others more of its bytes."""
    rows = [
        bytes(data[at : min(at + _BYTES_A_LINE, field.at + field.size)])
        for at in range(field.at, field.at + field.size, _BYTES_A_LINE)
    ] or [b""]
    shown = rows if lines_max is None else rows[:lines_max]
    lines = []
    for number, row in enumerate(shown):
        line = Text(f"{field.at + number * _BYTES_A_LINE:>7}  ", style="dim")
        line.append(f"{_hex(row):<{_BYTES_A_LINE * 3}}", style="cyan")
        if len(rows) > 1:
            line.append(f"{_printable(row):<{_BYTES_A_LINE + 1}}", style="dim")
        else:
            line.append(" " * (_BYTES_A_LINE + 1))
        if number == 0:
            line.append(f" {_cut(field.name, _NAME_WIDTH):<{_NAME_WIDTH}} ", style="bold")
            line.append(_value(field))
        line.rstrip()
        lines.append(line)
    if len(rows) > len(shown):
        rest = field.size - len(shown) * _BYTES_A_LINE
        lines.append(Text(f"{'':>7}  … {rest:,} bytes more: --all-bytes", style="dim"))
    return lines


def _hex(row: bytes) -> str:
    return row.hex(" ")


def _printable(row: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "\N{MIDDLE DOT}" for byte in row)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def _value(field: RecordField) -> Text:
    value = field.value
    shown = f"{value:,}" if isinstance(value, int) else _cut(repr(value)[1:-1] if value else "", 60)
    text = Text(shown)
    if field.means:
        text.append(f"  {field.means}", style="dim")
    if field.wrong:
        text.append(f"  {field.wrong}", style="red")
    return text
