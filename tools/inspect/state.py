"""The views `checkpoint`, `offsets`, `topics` and `groups`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click
from rich.text import Text

from ...proto.errors import StoreMismatch
from ...proto.time_text import format_instant
from ...store.log_view import LogWalk
from ...store.queue_view import QueueExtent, QueueView
from ...store.view import StoreView
from ..counted import counted
from .document import checkpoint as checkpoint_fields
from .output import Column, Output, Row, format_options, limit_option, opened, people
from .overview import Overview
from .stored_tables import Tables, or_unknown

OFFSETS: Final = (
    Column("group"),
    Column("topic"),
    Column("queue", kind="number"),
    Column("committed_offset", "committed", "number"),
    Column("pulled_offset", "pulled", "number"),
    Column("min_offset", "from", "number"),
    Column("max_offset", "to", "number"),
    Column("lag", kind="number"),
    Column("problem", kind="problem"),
)
TOPICS: Final = (
    Column("topic"),
    Column("queues", kind="number"),
    Column("min_offset", "from", "number"),
    Column("max_offset", "to", "number"),
    Column("messages", kind="number"),
    Column("read_queues", "read queues", "number"),
    Column("write_queues", "write queues", "number"),
    Column("permission"),
    Column("attributes"),
)
GROUPS: Final = (
    Column("group"),
    Column("consume_enable", "may consume"),
    Column("retry_max_times", "retries", "number"),
    Column("retry_queues", "retry queues", "number"),
    Column("orderly"),
    Column("topics", kind="number"),
    Column("lag", kind="number"),
)
_TIMES: Final = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")
_MEANS: Final = {
    "physicMsgTimestamp": "store time of the last record known to be on disk",
    "logicsMsgTimestamp": "store time of the last record whose queue entry was flushed thoroughly",
    "indexMsgTimestamp": "end time of the last full index file that was flushed",
    "masterFlushedOffset": "replication",
    "confirmPhyOffset": "start of the last valid record at the last recovery",
    "logicsPhysicalOffset": "start of the last record whose queue entry was flushed thoroughly",
}
_PERMISSIONS: Final = ((4, "read"), (2, "write"), (1, "inherit"))


@click.command()
@format_options
def checkpoint(*, as_json: bool, as_jsonl: bool) -> None:
    """Show the checkpoint: how far each part of the store is on disk."""
    output = Output.of(as_json, as_jsonl)
    files = opened()
    there = files.has("checkpoint")
    values = files.checkpoint()
    data = values.pack()
    fields = [
        {
            "name": name,
            "at": 8 * number,
            "hex": data[8 * number : 8 * number + 8].hex(),
            "value": value,
            "means": _MEANS[name],
        }
        for number, (name, value) in enumerate(checkpoint_fields(values).items())
    ]
    size = files.disk.size(files.path("checkpoint")) if there else 0
    document: dict[str, Any] = {"present": there, "size_bytes": size, "fields": fields}
    output.document(document, lambda: _print_checkpoint(document))


def _print_checkpoint(document: dict[str, Any]) -> None:
    console = people()
    if not document["present"]:
        console.print("no checkpoint: a broker starts with zeros", style="yellow")
        return
    console.print(Text.assemble(("checkpoint", "bold"), f"  {document['size_bytes']:,} bytes"))
    for field in document["fields"]:
        value, shown = field["value"], f"{field['value']:,}"
        if field["name"] in _TIMES:
            shown = format_instant(value) if value else "never"
        line = Text(f"{field['at']:>4}  ", style="dim")
        line.append(" ".join(field["hex"][at : at + 2] for at in range(0, 16, 2)), style="cyan")
        line.append(f"  {field['name']:<21}", style="bold")
        line.append(f"{shown:<26}")
        line.append(field["means"], style="dim")
        console.print(line)


@click.command()
@click.option("--group", metavar="GROUP", help="Only offsets of this group.")
@click.option("--topic", metavar="TOPIC", help="Only offsets in this topic.")
@limit_option
@format_options
def offsets(
    *, group: str | None, topic: str | None, limit: int | None, as_json: bool, as_jsonl: bool
) -> None:
    """List committed offsets, with the offsets of their queues.

    They are shown as stored. `pocketmq lag` shows the lag with verdicts, bytes and ages.
    """
    files = opened()
    tables = Tables(files)
    rows = or_unknown(
        _offset_rows(files, tables, group, topic),
        tables,
        topics=[topic] if topic is not None else (),
        groups=[group] if group is not None else (),
    )
    output = Output.of(as_json, as_jsonl, limit)
    output.rows(rows, OFFSETS, what="committed offsets")
    _require_readable(tables)


def _require_readable(tables: Tables) -> None:
    """Raise StoreMismatch if a table could not be read: the output is incomplete."""
    if tables.refused:
        raise StoreMismatch(tables.refused[0], path=tables.files.path("config"))


def _offset_rows(
    files: StoreView, tables: Tables, group: str | None, topic: str | None
) -> Iterator[Row]:
    log_begin = LogWalk(files).begin
    table = tables.offsets()
    for key, queues in sorted(table.offsets.items()):
        of_topic, _, of_group = key.partition("@")
        if group not in (None, of_group) or topic not in (None, of_topic):
            continue
        pulled = table.pull_offsets.get(key, {})
        for queue_id, committed in sorted(queues.items()):
            row: dict[str, Any] = {
                "group": of_group,
                "topic": of_topic,
                "queue": queue_id,
                "committed_offset": committed,
                "pulled_offset": pulled.get(queue_id),
            }
            bounds = _bounds(files, tables, (of_topic, queue_id), log_begin)
            yield row | _against(bounds, committed)


def _bounds(
    files: StoreView, tables: Tables, place: tuple[str, int], log_begin: int
) -> QueueExtent | None:
    """Return what the queue at PLACE holds: nothing if its topic has it and it was never written; None if not."""
    topic, queue_id = place
    folder = files.queue(topic, queue_id)
    if folder is not None:
        return QueueView(files, folder, log_begin).bounds()
    config = tables.topics().topics.get(topic)
    if config is None or queue_id >= max(config.read_queues, config.write_queues):
        return None
    return QueueExtent(first=0, end=0, min_offset=0, max_offset=0, log_end=None)


def _against(bounds: QueueExtent | None, committed: int) -> dict[str, Any]:
    if bounds is None:
        return {"min_offset": None, "max_offset": None, "lag": None, "problem": "no such queue"}
    problem = None
    if committed > bounds.max_offset:
        problem = "ahead of the queue"
    elif committed < bounds.min_offset:
        problem = (
            f"{counted(bounds.min_offset - committed, 'message')} before the beginning of the queue"
        )
    return {
        "min_offset": bounds.min_offset,
        "max_offset": bounds.max_offset,
        "lag": max(0, bounds.max_offset - committed),
        "problem": problem,
    }


@click.command()
@limit_option
@format_options
def topics(*, limit: int | None, as_json: bool, as_jsonl: bool) -> None:
    """List topics: their queues and their configuration."""
    output = Output.of(as_json, as_jsonl, limit)
    found = Overview(opened())
    found.look_at_queues(queues_max=None)
    rows: Iterator[dict[str, Any]] = found.topics()
    if output.for_people:
        rows = (row | _for_people(row) for row in rows)
    output.rows(rows, TOPICS, what="topics")
    _require_readable(found.tables)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    attributes = ", ".join(f"{name}={value}" for name, value in sorted(row["attributes"].items()))
    perm = row["permission"]
    names = None if perm is None else " ".join(name for bit, name in _PERMISSIONS if perm & bit)
    return {"attributes": attributes or None, "permission": names}


@click.command()
@limit_option
@format_options
def groups(*, limit: int | None, as_json: bool, as_jsonl: bool) -> None:
    """List consumer groups: their configuration and their lag."""
    output = Output.of(as_json, as_jsonl, limit)
    found = Overview(opened())
    found.look_at_queues(queues_max=None)
    output.rows(_group_rows(found), GROUPS, what="groups")
    _require_readable(found.tables)


def _group_rows(found: Overview) -> Iterator[Row]:
    progress: dict[str, list[dict[str, Any]]] = {}
    for row in found.groups():
        progress.setdefault(row["group"], []).append(row)
    known = found.tables.groups().groups
    for name in sorted({*known, *progress}):
        config, read = known.get(name), progress.get(name, [])
        yield {
            "group": name,
            "consume_enable": None if config is None else config.consume_enable,
            "retry_max_times": None if config is None else config.retry_times_max,
            "retry_queues": None if config is None else config.retry_queues,
            "orderly": None if config is None else config.consume_message_orderly,
            "topics": len(read),
            "lag": sum(row["lag"] for row in read) if read else None,
        }
