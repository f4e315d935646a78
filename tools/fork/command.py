"""`pocketmq fork STORE --at TIME --output DIR`: a store of its own with what STORE held at a moment, in a second.

Exit codes: 0 done, 1 it failed (DIR is as it was), 2 wrong arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ...proto.clock import SystemClock
from ...proto.time_text import format_instant
from ..counted import counted
from ..instants import past_instant_of
from ..options import TakesStores, broker_settings, broker_settings_option, store_argument
from ..output import print_json
from .cut import END_OF_TIME_MS
from .forking import Forked, make_fork


@click.command(cls=TakesStores)
@store_argument
@click.option(
    "--at",
    "at_time",
    metavar="TIME",
    default="now",
    show_default=True,
    help="The moment: ISO 8601 or Unix milliseconds, by the messages' store time.",
)
@click.option("--output", "target", metavar="DIR", required=True, help="A new or empty folder.")
@broker_settings_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def fork(*, store: str, at_time: str, target: str, settings: Sequence[str], as_json: bool) -> None:
    """Make DIR a store with everything that STORE held at TIME, ready to be served.

    Closed files are linked, so on one file system it costs little room and time; the files that a broker writes to are
    copied. STORE may be live; it is only read, and stays as it is whatever becomes of the fork.
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
            f"{forked.clamped.offsets:,} of {forked.clamped.of_offsets:,} committed offsets were beyond the moment: cut"
            " back to the fork's end"
        )
    findings = forked.recovery.findings if forked.recovery is not None else []
    lines += [f"found: {finding.text()}" for finding in findings[:10]]
    lines += [f"not known: {sentence}" for sentence in forked.unknown()]
    return [*lines, f"serve it: pocketmq serve --store {target}"]
