"""`pocketmq fork STORE --at TIME --output DIR`: makes a store with the contents of another one at a given time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ...proto.clock import SystemClock
from ...proto.time_text import format_instant
from ..counted import counted
from ..instants import past_instant_of
from ..options import StoreCommand, broker_settings, broker_settings_option, store_argument
from ..output import print_json
from .cut import END_OF_TIME_MS
from .forking import Forked, make_fork


@click.command(cls=StoreCommand)
@store_argument
@click.option(
    "--at",
    "at_time",
    metavar="TIME",
    default="now",
    show_default=True,
    help="Store time of messages, ISO 8601 or Unix milliseconds.",
)
@click.option(
    "--output", "target", metavar="DIR", required=True, help="New or empty folder for the fork."
)
@broker_settings_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def fork(*, store: str, at_time: str, target: str, settings: Sequence[str], as_json: bool) -> None:
    """Create a store with the contents of another at a given time.

    You can serve the fork at once. Files that no broker writes to any more are linked, so that on one file system a
    fork takes little space and time; the others are copied. STORE may be live. It is only read, and changes to the fork
    do not affect it.

    \b
    Example: pocketmq fork data/store --at 2026-12-24T18:00:00 --output fork

    Exit code 1: it failed, and the folder is unchanged.
    """
    time_ms = END_OF_TIME_MS if at_time == "now" else past_instant_of(at_time)
    forked = make_fork(store, target, time_ms, broker_settings(settings), SystemClock().unix_ms)
    if as_json:
        print_json(to_json(store, target, forked))
        return
    for line in lines_of(store, target, forked):
        click.echo(line)


def to_json(store: str, target: str, forked: Forked) -> dict[str, Any]:
    """Return FORKED as plain values."""
    cut, copied = forked.cut, forked.copied
    return {
        "store": store,
        "fork": target,
        "cut_ms": None if cut.time_ms == END_OF_TIME_MS else cut.time_ms,
        "cut_offset": cut.log_offset,
        "is_end": cut.is_end,
        "log_begin": forked.log_begin,
        "log_end": forked.log_end,
        "newest_stored_ms": cut.last_ms or None,
        "linked_files": copied.linked_files,
        "linked_bytes": copied.linked_bytes,
        "copied_files": copied.copied_files,
        "copied_bytes": copied.copied_bytes,
        "committed_offsets_clamped": forked.clamped.offsets,
        "committed_offsets": forked.clamped.of_offsets,
        "verified": forked.verified,
        "unknown": forked.unknown(),
        "recovery": None if forked.recovery is None else forked.recovery.to_json(),
    }


def lines_of(store: str, target: str, forked: Forked) -> list[str]:
    """Return FORKED for people."""
    cut, copied = forked.cut, forked.copied
    when = "its end" if cut.is_end else format_instant(cut.time_ms)
    newest = f", newest message stored {format_instant(cut.last_ms)}" if cut.last_ms else ""
    lines = [
        f"{target}: {store} at {when}",
        f"log {forked.log_begin:,}–{forked.log_end:,}{newest}",
        f"{counted(copied.linked_files, 'file')} linked ({copied.linked_bytes:,} bytes),"
        f" {copied.copied_files:,} copied ({copied.copied_bytes:,} bytes)",
    ]
    if forked.clamped.of_offsets:
        lines.append(
            f"{forked.clamped.offsets:,} of {forked.clamped.of_offsets:,} committed offsets were beyond the end of the"
            " fork: set to its end"
        )
    findings = forked.recovery.findings if forked.recovery is not None else []
    lines += [f"found: {finding.text()}" for finding in findings[:10]]
    lines += [f"not known: {sentence}" for sentence in forked.unknown()]
    return [*lines, f"serve it: pocketmq serve --store {target}"]
