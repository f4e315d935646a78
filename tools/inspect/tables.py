"""The view `tables`: the journal of tables in a store."""

from __future__ import annotations

from typing import Any, Final

import click

from ...store.disk import Disk
from ...store.format.table_frames import OWN_TABLE
from ...store.table_files import FOLDER, TableFiles, read_tables
from ...store.tables import raw_table
from .output import Column, Output, Row, format_options, opened, people, table

TABLES: Final = (
    Column("number", kind="number"),
    Column("name"),
    Column("entries", kind="number"),
    Column("counter", kind="number"),
    Column("snapshot", kind="number"),
    Column("snapshot_bytes", "snapshot bytes", "number"),
    Column("journal_bytes", "bytes since", "number"),
    Column("incomplete"),
)
GAPS: Final = (
    Column("file"),
    Column("at", kind="number"),
    Column("bytes", kind="number"),
    Column("problem", kind="problem"),
)


@click.command()
@format_options
def tables(*, as_json: bool, as_jsonl: bool) -> None:
    """Show the broker's own tables, and damage in their journal.

    Entries for records that the log has lost are counted; a broker skips them.
    """
    files = opened()
    folder = files.path(f"pocketmq/{FOLDER}")
    document = tables_in(files.disk, folder)
    output = Output.of(as_json, as_jsonl)
    output.document(document, lambda: _print(document))


def tables_in(disk: Disk, folder: str) -> dict[str, Any]:
    """Return the contents of the files in FOLDER."""
    # The numbers of the tables are in the files: a first pass finds them.
    known = read_tables(disk, folder, ())
    snapshots = TableFiles.of(disk, folder).snapshots
    numbers = sorted({*known.names, *snapshots} - {OWN_TABLE})
    raw = [raw_table(number, known.names.get(number, "")) for number in numbers]
    found = read_tables(disk, folder, raw)
    return {
        "present": found.number > 0,
        "closed": found.ended,
        "tables": [
            {
                "number": one.number,
                "name": one.name or None,
                "entries": len(one),
                "counter": None if one.version is None else one.version.counter,
                "snapshot": found.bases.get(one.number),
                "snapshot_bytes": found.kept.get(one.number),
                "journal_bytes": found.since.get(one.number, 0),
                "incomplete": one.number in found.incomplete,
            }
            for one in raw
        ],
        "gaps": [
            {
                "file": gap.path.rpartition("/")[2],
                "at": gap.at,
                "bytes": gap.bytes,
                "problem": gap.problem,
            }
            for gap in found.gaps
        ],
    }


def _print(document: Row) -> None:
    console = people()
    if not document["present"]:
        console.print("no journal of tables: no PocketMQ broker has used this store yet")
        return
    console.print(table(document["tables"], TABLES, "tables"))
    if document["gaps"]:
        console.print(table(document["gaps"], GAPS, "gaps"))
    if not document["closed"]:
        console.print("not closed: a broker uses the store, or was killed", style="yellow")
