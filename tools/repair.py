"""`pocketmq repair STORE --output DIR`: makes a repaired copy of a store, which both brokers open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from ..proto.clock import SystemClock
from .counted import counted
from .doctor.report import reason_lines
from .options import StoreCommand, broker_settings, broker_settings_option, store_argument
from .output import print_json
from .repaired_copy import Repaired, make_repaired_copy

_LINES_MAX = 30


@click.command(cls=StoreCommand)
@store_argument
@click.option(
    "--output", "target", metavar="DIR", required=True, help="New or empty folder for the copy."
)
@broker_settings_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def repair(*, store: str, target: str, settings: Sequence[str], as_json: bool) -> None:
    """Write a repaired copy of a store.

    Prints what was repaired, and which messages are lost. Every valid message is in the copy. Files that no broker
    writes to any more are linked, not copied. STORE is only read. Run `pocketmq doctor STORE` first to see what will be
    lost.

    \b
    Example: pocketmq repair data/store --output data/repaired

    Exit code 1: it failed, and the folder is unchanged.
    """
    repaired = make_repaired_copy(store, target, broker_settings(settings), SystemClock().unix_ms)
    if as_json:
        print_json(to_json(store, target, repaired))
        return
    for line in lines_of(store, target, repaired):
        click.echo(line)


def to_json(store: str, target: str, repaired: Repaired) -> dict[str, Any]:
    """Return REPAIRED as plain values."""
    copied = repaired.copied
    return {
        "store": store,
        "copy": target,
        "log_begin": repaired.recovery.log_begin,
        "log_end": repaired.recovery.log_end,
        "fitted": repaired.fitted.sentences,
        "recovery": repaired.recovery.to_json(),
        "lost": repaired.losses.to_json(),
        "linked_files": copied.linked_files,
        "copied_files": copied.copied_files,
    }


def lines_of(store: str, target: str, repaired: Repaired) -> Iterator[str]:
    """Yield REPAIRED for people."""
    report, losses = repaired.recovery, repaired.losses
    yield f"{target}: a repaired copy of {store}"
    yield f"log {report.log_begin:,}–{report.log_end:,}, {counted(report.scanned_records, 'record')} checked"
    repairs = [
        *repaired.fitted.sentences,
        *(finding.text().replace(f"{target}/", "") for finding in report.findings),
    ]
    yield from (f"repaired: {sentence}" for sentence in repairs[:_LINES_MAX])
    if len(repairs) > _LINES_MAX:
        yield f"… and {len(repairs) - _LINES_MAX:,} more"
    if not repairs:
        yield "nothing was damaged"
    if not losses.messages:
        yield "no message is lost"
    for reason in losses.to_json()["reasons"]:
        yield f"lost: {reason['messages']:,} {reason['reason']}: {reason['why']}"
        yield from reason_lines(reason)
