"""`pocketmq inspect STORE log`: the records of the commit log, in order, with what stands between them.

`pocketmq inspect STORE queue TOPIC QUEUE`: the entries of one consume queue, and whether they fit their records.

`pocketmq inspect STORE index [FILE]`: the index files, or the entries of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import click
import numpy as np
from rich.text import Text

from ...proto.errors import MessageNotFound, QueueNotFound
from ...store.format.rows import Rows
from ...store.index_entries import IndexEntries, IndexName, index_names, open_index
from ...store.log_view import Gap, LogWalk
from ...store.queue_view import QueueExtent, QueueView
from ...store.view import QueueFolder, StoreView
from ..counted import counted
from ..options import COUNT, NUMBER
from .entry_check import EntryCheck, fault_of
from .output import (
    Column,
    Output,
    Row,
    Tables,
    format_options,
    limit_option,
    offset_or_time,
    opened,
    or_unknown,
    people,
)
from .record_rows import (
    LogFollower,
    RecordFilter,
    follow_log,
    gap_row,
    record_rows,
)

RECORD_COLUMNS: Final = (
    Column("physicalOffset", "log offset", "number"),
    Column("storeSize", "size", "number"),
    Column("topic"),
    Column("queueId", "queue", "number"),
    Column("queueOffset", "offset", "number"),
    Column("storeTimestamp", "stored", "time"),
    Column("bodySize", "body", "number"),
    Column("tags"),
    Column("keys"),
    Column("messageId", "id"),
    Column("problem", kind="problem"),
)


@click.command()
@click.option(
    "--since", "begin", metavar="OFFSET|TIME", help="Begin at a log offset or store time."
)
@click.option("--until", "end", metavar="OFFSET|TIME", help="End before this offset or time.")
@click.option("--last", type=COUNT, metavar="N", help="Begin N records before the end.")
@click.option("--topic", help="Only records of this topic.")
@click.option("--queue", "queue_id", type=NUMBER, help="Only records of this queue.")
@click.option("--full", is_flag=True, help="In JSON: with all properties and the body.")
@click.option("--follow", is_flag=True, help="Continue with new records as they are written.")
@limit_option
@format_options
def log(*, limit: int | None, as_json: bool, as_jsonl: bool, **words: Any) -> None:
    """List the records of the commit log as they lie, and what stands between them.

    A blank closes a file; damaged bytes are told with their place. With --follow, new records are printed as a live
    broker appends them, until the command is interrupted or --limit is reached.
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
    """Yield what stands in [BEGIN, END), the records that are WANTED alone."""
    for part in walk.walk(begin, end):
        if isinstance(part, Gap):
            if wanted.topic is None and wanted.queue_id is None:
                yield gap_row(part)
            continue
        chosen = wanted.rows(part)
        yield from record_rows(part, chosen, full=full)
        if wanted.to_ms is not None and int(part.columns.store_ms[-1]) >= wanted.to_ms:
            return


# ---------------------------------------------------------------- `pocketmq inspect STORE queue TOPIC QUEUE`


ENTRY_COLUMNS: Final = (
    Column("queueOffset", "offset", "number"),
    Column("messages", kind="number"),
    Column("physicalOffset", "log offset", "number"),
    Column("size", kind="number"),
    Column("tagsCode", "tags code", "plain"),
    Column("storeTimestamp", "stored", "time"),
    Column("problem", kind="problem"),
)


@click.command()
@click.argument("topic")
@click.argument("queue_id", metavar="QUEUE", type=NUMBER)
@click.option(
    "--since", "begin", metavar="OFFSET|TIME", help="Begin at a queue offset or store time."
)
@click.option("--until", "end", metavar="OFFSET|TIME", help="End before this offset or time.")
@click.option("--last", type=COUNT, metavar="N", help="The last N entries.")
@click.option("--all", "hidden", is_flag=True, help="Also entries whose records are gone.")
@limit_option
@format_options
def queue(
    *, topic: str, queue_id: int, limit: int | None, as_json: bool, as_jsonl: bool, **words: Any
) -> None:
    """List the entries of queue QUEUE of TOPIC, each held against the record that it points to."""
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
                "queueOffset": number,
                "physicalOffset": int(entry["log_offset"]),
                "size": int(entry["size"]),
                "tagsCode": int(entry["tags_code"]),
            }
            if self._folder.is_batch:
                row["queueOffset"] = int(entry["base"])
                row |= {"messages": int(entry["count"]), "storeTimestamp": int(entry["store_ms"])}
            yield row | {"problem": fault_of(code)}


def _hole(first: int, end: int) -> Row:
    return {
        "queueOffset": first,
        "problem": f"no file covers {counted(end - first, 'entry')} from here on",
    }


# ---------------------------------------------------------------- `pocketmq inspect STORE index [FILE]`


FILES: Final = (
    Column("file"),
    Column("entries", kind="number"),
    Column("capacity", kind="number"),
    Column("slotsUsed", "slots used", "number"),
    Column("slots", kind="number"),
    Column("beginTimestamp", "from", "time"),
    Column("endTimestamp", "to", "time"),
    Column("beginPhyOffset", "log offset from", "number"),
    Column("endPhyOffset", "to", "number"),
    Column("problem", kind="problem"),
)
ENTRIES: Final = (
    Column("number", "entry", "number"),
    Column("slot", kind="number"),
    Column("keyHash", "key hash", "plain"),
    Column("physicalOffset", "log offset", "number"),
    Column("storeTimestamp", "stored", "time"),
    Column("previous", kind="number"),
    Column("problem", kind="problem"),
)
_ENTRIES_AT_ONCE: Final = 1024


@click.command()
@click.argument("file", required=False)
@click.option("--since", "begin", metavar="OFFSET|TIME", help="Entries of records from here on.")
@click.option("--hash", "key_hash", type=NUMBER, help="Only entries with this key hash.")
@limit_option
@format_options
def index(
    *,
    file: str | None,
    begin: str | None,
    key_hash: int | None,
    limit: int | None,
    as_json: bool,
    as_jsonl: bool,
) -> None:
    """List the index files, or the entries of FILE (its name; `last` for the newest)."""
    output = Output.of(as_json, as_jsonl, limit)
    files = opened()
    if file is None:
        if begin is not None or key_hash is not None:
            raise click.UsageError("--since and --hash choose entries: name a FILE.")
        output.rows(
            (_file_row(files, name) for name in index_names(files)), FILES, what="index files"
        )
        return
    found, walk = _named(files, file), LogWalk(files)
    first = 1
    if begin is not None:
        offset, time_ms = offset_or_time(begin)
        first = found.first_from(walk.at_time(time_ms) if time_ms is not None else offset or 0)
    output.rows(_entry_rows(found, walk, first, key_hash), ENTRIES, what="entries")


def _named(files: StoreView, name: str) -> IndexEntries:
    names = {one.name: one for one in index_names(files)}
    chosen = names[max(names)] if name == "last" and names else names.get(name)
    found = None if chosen is None else open_index(files, chosen)
    if found is None:
        known = ", ".join(names) or "none"
        raise MessageNotFound(f"there is no index file {name!r} with a header: {known}", file=name)
    return found


def _file_row(files: StoreView, name: IndexName) -> Row:
    found = open_index(files, name)
    if found is None:
        return {"file": name.name, "problem": f"{name.size:,} bytes: too short for a header"}
    header = found.header
    return {
        "file": name.name,
        "entries": header.next_entry - 1,
        "capacity": found.entry_count - 1,
        "slotsUsed": header.slots_used,
        "slots": found.slot_count,
        "beginTimestamp": header.begin_ms,
        "endTimestamp": header.end_ms,
        "beginPhyOffset": header.begin_log_offset,
        "endPhyOffset": header.end_log_offset,
        "sizeBytes": name.size,
        "problem": _problem(found),
    }


def _problem(found: IndexEntries) -> str | None:
    if not found.is_whole:
        wanted = f"{counted(found.slot_count, 'slot')} and {counted(found.entry_count, 'entry')}"
        return f"{found.name.size:,} bytes do not hold {wanted}"
    if not 1 <= found.header.next_entry <= found.entry_count:
        return f"entry {found.header.next_entry:,} cannot be next"
    return None


def _entry_rows(
    found: IndexEntries, walk: LogWalk, first: int, key_hash: int | None
) -> Iterator[Row]:
    begin_ms = found.header.begin_ms
    for begin in range(first, found.count, _ENTRIES_AT_ONCE):
        part = found.entries[begin : min(found.count, begin + _ENTRIES_AT_ONCE)]
        rows = (
            np.arange(len(part))
            if key_hash is None
            else np.flatnonzero(part["key_hash"] == key_hash)
        )
        offsets = part["log_offset"].astype(np.int64)
        sound = walk.sound(offsets)
        for row in rows.tolist():
            offset, hashed = int(offsets[row]), int(part["key_hash"][row])
            yield {
                "file": found.name.name,
                "number": begin + row,
                "slot": hashed % found.slot_count,
                "keyHash": hashed,
                "physicalOffset": offset,
                "storeTimestamp": begin_ms + 1000 * int(part["seconds"][row]),
                "previous": int(part["previous"][row]) or None,
                "problem": _entry_problem(walk, offset, bool(sound[row])),
            }


def _entry_problem(walk: LogWalk, offset: int, sound: bool) -> str | None:
    if offset < walk.begin:
        return "its record is gone with its file"
    return None if sound else "points to no record"
