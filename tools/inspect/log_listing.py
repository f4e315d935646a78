"""`pocketmq inspect STORE log`: the records of the commit log, in order, and the gaps between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from ...store.log_view import Gap, LogWalk
from ..options import COUNT, NUMBER
from .output import Column, Output, Row, format_options, limit_option, offset_or_time, opened
from .record_rows import LogFollower, RecordFilter, follow_log, gap_row, record_rows
from .stored_tables import Tables, or_unknown

RECORD_COLUMNS: Final = (
    Column("log_offset", "log offset", "number"),
    Column("store_size", "size", "number"),
    Column("topic"),
    Column("queue", kind="number"),
    Column("queue_offset", "offset", "number"),
    Column("stored_ms", "stored", "time"),
    Column("body_size", "body", "number"),
    Column("tags"),
    Column("keys"),
    Column("message_id", "id"),
    Column("problem", kind="problem"),
)


@click.command()
@click.option("--since", "begin", metavar="OFFSET|TIME", help="First log offset or store time.")
@click.option(
    "--until", "end", metavar="OFFSET|TIME", help="Log offset or store time to end before."
)
@click.option(
    "--last", type=COUNT, metavar="N", help="Number of records before the end to begin with."
)
@click.option("--topic", metavar="TOPIC", help="Only records of this topic.")
@click.option("--queue", "queue_id", type=NUMBER, help="Only records of this queue.")
@click.option("--full", is_flag=True, help="In JSON: also all properties and the body.")
@click.option("--follow", is_flag=True, help="Continue with new records as they are written.")
@limit_option
@format_options
def log(*, limit: int | None, as_json: bool, as_jsonl: bool, **words: Any) -> None:
    """List the records of the commit log, and gaps between them.

    A blank closes a file; damaged bytes are shown with their place. With --follow it prints new records of a live
    broker, until Ctrl-C or --limit.

    \b
    Example: pocketmq inspect data/store log --last 20 --topic orders
    """
    chosen = _Chosen(**words)
    output = Output.of(as_json, as_jsonl, limit)
    files = opened()
    wanted = RecordFilter(topic=chosen.topic, queue_id=chosen.queue_id)
    walk = LogWalk(files)
    at = _begin(walk, chosen, wanted)
    if chosen.follow:
        followed = LogFollower(files, at, wanted, full=chosen.full)
        asyncio.run(follow_log(followed, output))
        return
    stop, to_ms = offset_or_time(chosen.end) if chosen.end is not None else (None, None)
    rows = or_unknown(
        _rows(walk, at, stop, replace(wanted, to_ms=to_ms), chosen.full),
        Tables(files),
        topics=[chosen.topic] if chosen.topic is not None else (),
    )
    output.rows(rows, RECORD_COLUMNS, what="records")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The view's own options."""

    begin: str | None
    end: str | None
    last: int | None
    topic: str | None
    queue_id: int | None
    follow: bool
    full: bool

    def __post_init__(self) -> None:
        if self.last is not None and self.begin is not None:
            raise click.UsageError("--last and --since: choose one.")
        if self.follow and self.end is not None:
            raise click.UsageError("--follow has no end: leave --until out.")


def _begin(walk: LogWalk, chosen: _Chosen, wanted: RecordFilter) -> int:
    """Return the log offset to begin at; following begins with what is new, if nothing else is said."""
    if chosen.last is not None:
        return walk.last(chosen.last, wanted.rows)
    if chosen.begin is None:
        return walk.records_end if chosen.follow else walk.begin
    offset, time_ms = offset_or_time(chosen.begin)
    return walk.at_time(time_ms) if time_ms is not None else offset or 0


def _rows(
    walk: LogWalk, begin: int, end: int | None, wanted: RecordFilter, full: bool
) -> Iterator[Row]:
    """Yield what is in [BEGIN, END), the records that are WANTED alone."""
    for part in walk.walk(begin, end):
        if isinstance(part, Gap):
            if wanted.topic is None and wanted.queue_id is None:
                yield gap_row(part)
            continue
        chosen = wanted.rows(part)
        yield from record_rows(part, chosen, full=full)
        if wanted.to_ms is not None and int(part.columns.store_ms[-1]) >= wanted.to_ms:
            return
