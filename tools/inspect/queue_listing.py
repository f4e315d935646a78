"""`pocketmq inspect STORE queue TOPIC QUEUE`: the entries of one consume queue, and whether they fit their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click
import numpy as np
from rich.text import Text

from ...proto.errors import QueueNotFound
from ...store.format.rows import Rows
from ...store.log_view import LogWalk
from ...store.queue_view import QueueExtent, QueueView
from ...store.view import QueueFolder, StoreView
from ..counted import counted
from ..options import COUNT, NUMBER
from .entry_check import EntryCheck, fault_of
from .output import (
    Column,
    Output,
    Row,
    format_options,
    limit_option,
    offset_or_time,
    opened,
    people,
)

ENTRY_COLUMNS: Final = (
    Column("queue_offset", "offset", "number"),
    Column("messages", kind="number"),
    Column("log_offset", "log offset", "number"),
    Column("size", kind="number"),
    Column("tags_code", "tags code", "plain"),
    Column("stored_ms", "stored", "time"),
    Column("problem", kind="problem"),
)


@click.command()
@click.argument("topic")
@click.argument("queue_id", metavar="QUEUE", type=NUMBER)
@click.option("--since", "begin", metavar="OFFSET|TIME", help="First queue offset or store time.")
@click.option(
    "--until", "end", metavar="OFFSET|TIME", help="Queue offset or store time to end before."
)
@click.option(
    "--last", type=COUNT, metavar="N", help="Number of entries before the end to begin with."
)
@click.option("--all", "hidden", is_flag=True, help="Also entries whose records are gone.")
@limit_option
@format_options
def queue(
    *, topic: str, queue_id: int, limit: int | None, as_json: bool, as_jsonl: bool, **words: Any
) -> None:
    """List the entries of a consume queue, each compared with its record.

    \b
    Example: pocketmq inspect data/store queue orders 0 --last 20
    """
    output = Output.of(as_json, as_jsonl, limit)
    files = opened()
    folder = files.queue(topic, queue_id)
    if folder is None:
        raise QueueNotFound(_unknown(files, topic, queue_id), topic=topic, queue=queue_id)
    listed = QueueListing(files, folder)
    if output.for_people:
        people().print(listed.title())
    first, end = listed.range(**words)
    output.rows(listed.rows(first, end), ENTRY_COLUMNS, what="entries")


def _unknown(files: StoreView, topic: str, queue_id: int) -> str:
    known = [one.queue_id for one in files.queues() if one.topic == topic]
    if not known:
        return f"the store has no queue of topic {topic!r}"
    return f"topic {topic!r} has no queue {queue_id}: it has {', '.join(map(str, known[:32]))}"


class QueueListing:
    """The entries of the queue in FOLDER as rows."""

    def __init__(self, files: StoreView, folder: QueueFolder) -> None:
        self._walk = walk = LogWalk(files)
        self._check = EntryCheck(files, walk)
        self._entries = QueueView(files, folder, walk.begin)
        self._folder = folder
        self.bounds: QueueExtent = self._entries.bounds()

    def title(self) -> Text:
        """Return one line about the queue."""
        bounds, row = self.bounds, self._entries.row
        what = "batch queue" if self._folder.is_batch else "queue"
        return Text.assemble(
            (f"{what} {self._folder.topic}/{self._folder.queue_id}", "bold"),
            f"  offsets {bounds.min_offset:,}–{bounds.max_offset:,},"
            f" {counted(len(row.files), 'file')} of {row.usual_size:,} bytes",
        )

    def range(
        self, *, begin: str | None, end: str | None, last: int | None, hidden: bool
    ) -> tuple[int, int]:
        """Return the entry numbers [first, end) that the words ask for."""
        low = 0 if hidden else self.bounds.first
        first = low if begin is None else max(low, self._number(begin))
        stop = self.bounds.end if end is None else min(self.bounds.end, self._number(end))
        return (max(first, stop - last) if last is not None else first), stop

    def _number(self, text: str) -> int:
        """Return the number of the entry that holds the queue offset or time TEXT, or of the next one."""
        offset, time_ms = offset_or_time(text)
        if time_ms is not None or offset is None:
            return self._entries.first_from(self._walk.at_time(time_ms or 0))
        if not self._folder.is_batch:
            return offset
        for number, entries in self._entries.read(self.bounds.first, self.bounds.end):
            ends = entries["base"] + entries["count"]
            if int(ends[-1]) > offset:
                return number + int(np.argmax(ends > offset))
        return self.bounds.end

    def rows(self, first: int, end: int) -> Iterator[Row]:
        """Yield the entries [FIRST, END) and the ranges that no file covers."""
        at = first
        for number, entries in self._entries.read(first, end):
            if number > at:
                yield _hole(at, number)
            # In pieces that a table shows, so that a short list costs little.
            for begin in range(0, len(entries), 1024):
                part = entries[begin : begin + 1024]
                yield from self._piece(number + begin, part)
            at = number + len(entries)
        if at < end:
            yield _hole(at, end)

    def _piece(self, first: int, entries: Rows) -> Iterator[Row]:
        codes = self._check.check(self._folder, first, entries).tolist()
        for number, entry, code in zip(
            range(first, first + len(entries)), entries, codes, strict=True
        ):
            row: dict[str, Any] = {
                "queue_offset": number,
                "log_offset": int(entry["log_offset"]),
                "size": int(entry["size"]),
                "tags_code": int(entry["tags_code"]),
            }
            if self._folder.is_batch:
                row["queue_offset"] = int(entry["base"])
                row |= {"messages": int(entry["count"]), "stored_ms": int(entry["store_ms"])}
            yield row | {"problem": fault_of(code)}


def _hole(first: int, end: int) -> Row:
    return {
        "queue_offset": first,
        "problem": f"no file covers {counted(end - first, 'entry')} from here on",
    }
