"""`pocketmq inspect STORE verify`: checks a whole store."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Any

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from ...proto.clock import SystemClock
from ...proto.time_text import format_instant
from ...store.scrub_notes import ScrubNotes
from ...store.view import StoreView
from .. import terminal
from ..counted import counted
from .output import Output, format_options, opened, people
from .verification import Verification

_PLACES_SHOWN = 5


@click.command()
@click.option("--quiet", is_flag=True, help="Show no progress bar.")
@format_options
@click.pass_context
def verify(context: click.Context, *, quiet: bool, as_json: bool, as_jsonl: bool) -> None:
    """Check the whole store: log, queues, index, CRC.

    Reads every record, every queue entry and every index entry. Also shows when PocketMQ verified each log file last,
    in the background (`store.scrub_bytes_per_s`). On a terminal a progress bar is shown on standard error.

    Exit code 1: a fault was found.
    """
    output = Output.of(as_json, as_jsonl)
    clock = SystemClock()
    began_ms = clock.now_ms()
    files = opened()
    verification = Verification(files)
    _run(verification, quiet)
    document = verification.tally.document()
    document["last_verified"] = _last_verified(files)
    document["elapsed_ms"] = max(1, clock.now_ms() - began_ms)
    document["bytes_per_s"] = document["log_bytes"] * 1000 // document["elapsed_ms"]
    output.document(document, lambda: _print(document))
    if document["wrong"]:
        context.exit(1)


def _last_verified(files: StoreView) -> list[dict[str, Any]]:
    """Return what the broker's scrubber noted of each log file; nothing if it never noted anything."""
    notes = ScrubNotes.load(files.disk, files.path("pocketmq")).files
    rows = [(file, notes.get(posixpath.basename(file.path))) for file in files.log().files]
    return [
        {
            "file": posixpath.basename(file.path),
            "verified_ms": None if note is None else note.verified_ms,
            "bytes": 0 if note is None else note.size_bytes,
            "damaged": 0 if note is None else note.damaged,
        }
        for file, note in rows
        if notes
    ]


def _told_to_people(row: dict[str, Any]) -> str:
    if row["verified_ms"] is None:
        return f"{row['file']}: not verified yet in the background"
    when = format_instant(row["verified_ms"])
    found = f", {row['damaged']:,} places damaged then" if row["damaged"] else ""
    return f"{row['file']}: {row['bytes']:,} bytes verified in the background at {when}{found}"


def _run(verification: Verification, quiet: bool) -> None:
    console = terminal.console(stderr=True)
    if quiet or not console.is_terminal:
        _exhaust(verification.run())
        return
    columns = (
        TextColumn("verifying"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("verify", total=max(1, verification.total_bytes))
        for done in verification.run():
            progress.update(task, completed=done)


def _exhaust(steps: Iterable[int]) -> None:
    for _ in steps:
        pass


def _print(document: dict[str, Any]) -> None:
    console = people()
    seconds = document["elapsed_ms"] / 1000
    megabytes = document["bytes_per_s"] / 1e6
    console.print(
        f"{counted(document['records'], 'record')}, {document['log_bytes']:,} bytes;"
        f" {counted(document['entries'], 'queue entry')}; "
        f"{counted(document['index_entries'], 'index entry')}: {seconds:.1f} s, {megabytes:,.0f} MB/s"
    )
    for row in document["last_verified"]:
        console.print(Text(_told_to_people(row), style="dim"))
    for finding in document["findings"]:
        style = "red" if finding["wrong"] else "yellow"
        console.print(Text.assemble((f"{finding['what']}: {finding['count']:,}", style)))
        places = finding["places"][:_PLACES_SHOWN]
        for place in places:
            console.print(Text(f"    {place}"))
        if finding["count"] > len(places):
            console.print(Text(f"    … and {finding['count'] - len(places):,} more", style="dim"))
    if not document["wrong"]:
        console.print("nothing is wrong", style="green")
