"""What verbs print: JSON a line for programs, aligned columns for people, and messages in both forms."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ..proto.errors import PocketMQError
from ..proto.time_text import format_instant
from .terminal import one_line, printable

if TYPE_CHECKING:  # Who prints no message needs no client, nor what that imports.
    from ..client import ReceivedMessage


#: Bytes of a body that cannot be decoded, in a line for people.
_STORED_SHOWN: Final = 64


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print DOCUMENT on one line."""
    click.echo(json.dumps(document, ensure_ascii=False, separators=(", ", ": ")))


def warn(warnings: Iterable[str]) -> None:
    """Print WARNINGS on standard error, one a line."""
    for warning in warnings:
        click.echo(f"pocketmq: warning: {one_line(warning)}", err=True)


def print_bytes(body: bytes) -> None:
    """Print BODY as it is, and a newline."""
    sys.stdout.flush()
    sys.stdout.buffer.write(body + b"\n")


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print ROWS below TITLES in columns, one line per row; numbers are aligned to the right."""
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    values = list(rows) if isinstance(rows, list) else []
    widths = [
        max(len(title), *(len(row[at]) for row in cells)) if cells else len(title)
        for at, title in enumerate(titles)
    ]
    right = [
        bool(values) and all(isinstance(row[at], int | float) for row in values)
        for at in range(len(titles))
    ]
    for line in [list(titles), *cells]:
        padded = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def print_pairs(pairs: Mapping[str, object]) -> None:
    """Print names and values, a pair a line; further lines of a value are indented."""
    width = max(map(len, pairs))
    for name, value in pairs.items():
        lines = printable(str(value)).replace("\n", "\n" + " " * (width + 2))
        click.echo(f"{name.ljust(width)}  {lines}")


def instant(timestamp_ms: int) -> str:
    """Return TIMESTAMP_MS for people."""
    return format_instant(timestamp_ms)


def body_fields(body: bytes) -> dict[str, str | None]:
    """Return `body` as text, or null with `body_base64` where the bytes are not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(body).decode()}


def decoded_fields(message: ReceivedMessage) -> dict[str, str | None]:
    """Return `body_fields` of MESSAGE; of a body that cannot be decoded the stored bytes, and `body_fault` says why."""
    try:
        return body_fields(message.body)
    except PocketMQError as error:
        stored = base64.b64encode(message.stored_body).decode()
        return {"body": None, "body_base64": stored, "body_fault": error.message}


def undecodable(message: ReceivedMessage, fault: str) -> str:
    """Return what people read in place of the body of MESSAGE, which cannot be decoded because of FAULT."""
    stored = message.stored_body
    begin = stored[:_STORED_SHOWN].decode(errors="backslashreplace")
    rest = "…" if len(stored) > _STORED_SHOWN else ""
    return f"the body cannot be decoded: {fault}; its {len(stored):,} stored bytes: {begin}{rest}"


def text_of(message: ReceivedMessage) -> str:
    """Return the body of MESSAGE for people."""
    try:
        return message.body.decode(errors="backslashreplace")
    except PocketMQError as error:
        return undecodable(message, error.message)


def message_document(message: ReceivedMessage) -> dict[str, Any]:
    """Return MESSAGE as JSON shows it."""
    return {
        "topic": message.topic,
        "broker": message.broker,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "keys": list(message.keys),
        "tag": message.tag,
        "sharding_key": message.sharding_key,
        "priority": message.priority,
        "born_ms": message.born_timestamp_ms,
        "stored_ms": message.store_timestamp_ms,
        "due_ms": message.due_ms or None,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
        **decoded_fields(message),
    }


def print_message(message: ReceivedMessage) -> None:
    """Print MESSAGE for people, with everything known of it."""
    print_pairs(
        {
            "topic": message.topic,
            "place": f"broker {message.broker}, queue {message.queue}, offset {message.queue_offset}, "
            f"log offset {message.log_offset}",
            "id": message.message_id,
            "offset id": message.offset_message_id,
            "keys": " ".join(message.keys) or "-",
            "tag": message.tag or "-",
            **({} if message.sharding_key is None else {"sharding key": message.sharding_key}),
            **({} if message.priority is None else {"priority": message.priority}),
            "born": instant(message.born_timestamp_ms),
            "stored": instant(message.store_timestamp_ms),
            **({"due": instant(message.due_ms)} if message.due_ms else {}),
            "body": text_of(message),
        }
    )
