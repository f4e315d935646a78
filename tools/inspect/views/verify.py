"""`pocketmq inspect STORE verify`: is the store sound? Exit code 1 when anything is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from ....proto.clock import SystemClock
from ..output import Output, format_options, people
from ..verify.verification import Verification
from .opened import opened

_PLACES_SHOWN = 5


@click.command()
@click.option("--quiet", is_flag=True, help="No progress bar.")
@format_options
@click.pass_context
def verify(context: click.Context, *, quiet: bool, as_json: bool, as_jsonl: bool) -> None:
    """Read the whole store: every record and its CRC, every queue entry, every index entry, and what is missing.

    A progress bar stands on standard error, if that is a terminal. Exit code 1 when anything is wrong.
    """
    output = Output.of(as_json, as_jsonl)
    clock = SystemClock()
    began_ms = clock.now_ms()
    verification = Verification(opened())
    _run(verification, quiet)
    document = verification.tally.document()
    document["elapsedMs"] = max(1, clock.now_ms() - began_ms)
    document["bytesPerSecond"] = document["logBytes"] * 1000 // document["elapsedMs"]
    output.document(document, lambda: _print(document))
    if document["wrong"]:
        context.exit(1)


def _run(verification: Verification, quiet: bool) -> None:
    console = Console(stderr=True)
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
    seconds = document["elapsedMs"] / 1000
    megabytes = document["bytesPerSecond"] / 1e6
    console.print(
        f"{document['records']:,} records, {document['logBytes']:,} bytes; {document['entries']:,} queue entries; "
        f"{document['indexEntries']:,} index entries: {seconds:.1f} s, {megabytes:,.0f} MB/s"
    )
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
