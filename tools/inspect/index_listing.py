"""`pocketmq inspect STORE index [FILE]`: the index files, or the entries of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click
import numpy as np

from ...proto.errors import MessageNotFound
from ...store.index_entries import IndexEntries, IndexName, index_names, open_index
from ...store.log_view import LogWalk
from ...store.view import StoreView
from ..counted import counted
from ..options import NUMBER
from .output import Column, Output, Row, format_options, limit_option, offset_or_time, opened

FILES: Final = (
    Column("file"),
    Column("entries", kind="number"),
    Column("capacity", kind="number"),
    Column("slots_used", "slots used", "number"),
    Column("slots", kind="number"),
    Column("begin_ms", "from", "time"),
    Column("end_ms", "to", "time"),
    Column("begin_log_offset", "log offset from", "number"),
    Column("end_log_offset", "to", "number"),
    Column("problem", kind="problem"),
)
ENTRIES: Final = (
    Column("number", "entry", "number"),
    Column("slot", kind="number"),
    Column("key_hash", "key hash", "plain"),
    Column("log_offset", "log offset", "number"),
    Column("stored_ms", "stored", "time"),
    Column("previous", kind="number"),
    Column("problem", kind="problem"),
)
_ENTRIES_AT_ONCE: Final = 1024


@click.command()
@click.argument("file", required=False)
@click.option(
    "--since",
    "begin",
    metavar="OFFSET|TIME",
    help="Only entries of records from this log offset or store time on.",
)
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
    """List the index files, or the entries of one.

    FILE is the name of an index file, or `last` for the newest.
    """
    output = Output.of(as_json, as_jsonl, limit)
    files = opened()
    if file is None:
        if begin is not None or key_hash is not None:
            raise click.UsageError("--since and --hash need a FILE.")
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
        raise MessageNotFound(f"no index file {name!r} with a header: {known}", file=name)
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
        "slots_used": header.slots_used,
        "slots": found.slot_count,
        "begin_ms": header.begin_ms,
        "end_ms": header.end_ms,
        "begin_log_offset": header.begin_log_offset,
        "end_log_offset": header.end_log_offset,
        "size_bytes": name.size,
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
                "key_hash": hashed,
                "log_offset": offset,
                "stored_ms": begin_ms + 1000 * int(part["seconds"][row]),
                "previous": int(part["previous"][row]) or None,
                "problem": _entry_problem(walk, offset, bool(sound[row])),
            }


def _entry_problem(walk: LogWalk, offset: int, sound: bool) -> str | None:
    if offset < walk.begin:
        return "its record is gone with its file"
    return None if sound else "points to no record"
