"""`pocketmq inspect STORE record OFFSET`: one record, every field with its bytes."""

from __future__ import annotations

import base64
from typing import Any, Final

import click
from rich.text import Text

from ....proto.errors import MessageNotFound
from ....proto.message_id import decode_offset_message_id
from ....proto.record import MAGIC_V1, MAGIC_V2
from ....store.listing import RowFile
from ....store.view import StoreView
from ..log_walk import LogWalk, next_sound
from ..output import Output, format_options, offset_of, opened, people
from ..record_fields import RecordField, record_fields

_BYTES_A_LINE: Final = 16
_LINES_MAX: Final = 6
_NAME_WIDTH: Final = 26
#: A record may say that it is longer than any can be.
_SIZE_MAX: Final = 64 << 20
_LEAST: Final = 8
#: Digits of an offset message id; an offset has fewer.
_ID_SIZES: Final = (32, 56)


@click.command()
@click.argument("offset", metavar="OFFSET")
@click.option("--all-bytes", is_flag=True, help="Show every byte of long fields.")
@format_options
def record(*, offset: str, all_bytes: bool, as_json: bool, as_jsonl: bool) -> None:
    """Show what stands at OFFSET of the commit log: offsets, names, bytes, values and meaning of every field.

    OFFSET may be an offset message id, which ends in the log offset. If no record begins there, the one that OFFSET
    lies in is named.
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
        return f"offset {at:,} lies in a hole: its file is missing"
    gone = ": its file is gone" if at < walk.begin else ""
    return f"offset {at:,} lies outside the log, {walk.begin:,} to {walk.end:,}{gone}"


def _no_record(walk: LogWalk, file: RowFile, view: memoryview, at: int) -> str:
    """Return what stands at AT instead, and where the nearest records begin."""
    told = f"no record begins at {at:,} of {file.name}"
    position = at - file.start
    inside = _record_around(file, view, position)
    if inside is not None:
        begin, size = inside
        told += f": it lies in the record at {begin:,}, {size:,} bytes"
    following = next_sound(view, file.start, position, len(view))
    if following is not None:
        told += f"; the next one begins at {file.start + following:,}"
    elif at >= walk.end:
        told += f": the log ends at {walk.end:,}"
    return told


def _record_around(file: RowFile, view: memoryview, position: int) -> tuple[int, int] | None:
    """Return log offset and size of the record that POSITION lies in; None if none is found in front of it."""
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
        "physicalOffset": at,
        "file": file.name,
        "filePosition": at - file.start,
        "storeSize": len(data),
        "problems": wrong + ([problem] if problem else []),
        "fields": [
            {
                "name": field.name.strip(),
                "isProperty": field.name.startswith(" "),
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
    console.print(
        f"[bold]record at {at:,}[/bold]  {len(data):,} bytes, file {file.name} from byte {at - file.start:,}"
    )
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
