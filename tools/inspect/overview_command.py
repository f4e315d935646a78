"""`pocketmq inspect STORE`: the overview of a store as a command.

Exit code 1 if a broker would refuse the store.
"""

from __future__ import annotations

from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from ...proto.time_text import format_instant
from ..counted import counted
from .output import Column, Output, Row, format_options, opened, people, table
from .overview import Overview

_ROWS_MAX: Final = 50
_STYLES: Final = {"refused": "red", "wrong": "red", "note": "yellow"}

TOPICS: Final = (
    Column("topic"),
    Column("queues", "used queues", "number"),
    Column("min_offset", "from", "number"),
    Column("max_offset", "to", "number"),
    Column("messages", kind="number"),
)
GROUPS: Final = (
    Column("group"),
    Column("topic"),
    Column("queues", kind="number"),
    Column("lag", kind="number"),
)
FILES: Final = (
    Column("folder"),
    Column("files", kind="number"),
    Column("size_bytes", "bytes (length)", "number"),
)


@click.command()
@format_options
@click.pass_context
def overview(context: click.Context, *, as_json: bool, as_jsonl: bool) -> None:
    """Show files, topics, groups and health: the default view.

    It reads names, sizes, beginnings and ends of files, within about a second for a store of any size, and says what
    it has not checked. `verify` checks everything.
    """
    output = Output.of(as_json, as_jsonl)
    document = Overview(opened()).document()
    output.document(document, lambda: _print(document))
    if document["refused"]:
        context.exit(1)


def _print(document: dict[str, Any]) -> None:
    console = people()
    console.print(Text.assemble((document["store"], "bold"), f"  {_owner(document)}"))
    _print_log(console, document["log"])
    waiting = document["waiting"]
    if any(waiting.values()):
        levels, timed, halves, delivered = waiting.values()
        text = f"waiting: {levels:,} by delay level, {timed:,} timed, {counted(halves, 'open transaction')}"
        console.print(
            f"{text}, {delivered:,} delivered and not acknowledged" if delivered else text
        )
    held = [row for row in document["topics"] if row["messages"] or row["max_offset"]]
    _print_rows(console, held, TOPICS, "topics", len(document["topics"]) - len(held))
    _print_rows(console, document["groups"], GROUPS, "consumer groups")
    _print_rows(console, document["files"], FILES, "files")
    if document["checkpoint"] is not None:
        console.print(_print_checkpoint(document["checkpoint"]))
    if document["replica"] is not None:
        console.print(_replica(document["replica"]))
    _print_health(console, document)


def _owner(document: Row) -> str:
    """Return what is known of the broker that has, or had, the store open."""
    if document["lock_held"]:
        return "a broker has it open"
    if document["abort_present"]:
        return "its broker was killed, or runs on another machine (abort is there)"
    return "stopped cleanly"


def _print_log(console: Console, log: Row) -> None:
    begin, end = log["min_log_offset"], log["max_log_offset"]
    console.print(
        f"log {begin:,}–{end:,}: {end - begin:,} bytes in {counted(log['files'], 'file')} of {log['file_size']:,}"
    )
    for name in ("first", "last"):
        row = log[name]
        if row is not None:
            place = f"{row['topic']}/{row['queue']}@{row['queue_offset']}"
            told = f"{format_instant(row['stored_ms'])}  {place}, log offset {row['log_offset']:,}"
            console.print(Text(f"  {name:<5}  {told}"))


def _print_rows(
    console: Console, rows: list[Row], columns: tuple[Column, ...], title: str, empty: int = 0
) -> None:
    if rows:
        console.print(table(rows[:_ROWS_MAX], columns, title))
    if len(rows) > _ROWS_MAX:
        console.print(f"… and {len(rows) - _ROWS_MAX:,} more {title}", style="dim")
    if empty:
        console.print(f"… and {empty:,} {title} without messages", style="dim")


def _print_checkpoint(values: Row) -> str:
    log, queues, index = (
        format_instant(values[name]) if values[name] else "never"
        for name in ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")
    )
    return f"checkpoint: log {log}, queues {queues}, index {index}"


def _replica(replica: Row) -> str:
    name, epochs = replica["broker"], replica["epochs"]
    who = (
        f"{name} of {replica['cluster']}, id {replica['broker_id']}" if name else "of no known set"
    )
    if not epochs:
        return f"replica: {who}; no epoch has started"
    last = epochs[-1]
    return (
        f"replica: {who}; epoch {last['epoch']} from log offset {last['start_offset']:,}"
        f" ({len(epochs):,} epochs)"
    )


def _print_health(console: Console, document: dict[str, Any]) -> None:
    found = document["health"]
    if not found:
        console.print("health: nothing wrong was seen", style="green")
    for one in found[:_ROWS_MAX]:
        console.print(
            Text.assemble((one["severity"], _STYLES[one["severity"]]), f"  {one['text']}")
        )
    if len(found) > _ROWS_MAX:
        console.print(f"… and {len(found) - _ROWS_MAX:,} more findings", style="dim")
    if document["not_examined"]:
        told = "; ".join(document["not_examined"])
        console.print(f"not checked: {told}. `verify` checks everything", style="dim")
