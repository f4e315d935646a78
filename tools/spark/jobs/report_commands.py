"""`pocketmq spark dead-letters`, `tags`, `keys` and `rates`: what is in the messages of a fleet, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ....proto.clock import SystemClock
from ...options import TakesStores, chosen_stores, json_option
from . import reports
from .options import OUT, READING, check_out, reading_of, running, show, with_options, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOP = click.option(
    "--top", type=click.IntRange(1), default=100, show_default=True, help="So many rows at most."
)


@click.command("dead-letters", cls=TakesStores)
@with_options(*READING, OUT)
@json_option("a dead letter a line")
def dead_letters(**given: Any) -> None:
    """List the dead letters of all groups: where they came from, when they died, how often they were tried."""
    _report(reports.dead_letters, given, "there are no dead letters")


@click.command(cls=TakesStores)
@with_options(*READING, OUT)
@_TOP
@json_option("a topic and tag a line")
def tags(**given: Any) -> None:
    """Count messages and bytes by topic and tag, the most frequent first."""
    _report(reports.tags, given, "there are no messages")


@click.command(cls=TakesStores)
@with_options(*READING, OUT)
@_TOP
@json_option("a topic and key a line")
def keys(**given: Any) -> None:
    """Find the most frequent keys of each topic."""
    _report(reports.keys, given, "no message has a key")


@click.command(cls=TakesStores)
@with_options(*READING, OUT)
@json_option("a topic and minute a line")
def rates(**given: Any) -> None:
    """Count messages and bytes by topic and minute of the store time, in UTC."""
    _report(reports.rates, given, "there are no messages")


def _report(report: Callable[..., DataFrame], given: dict[str, Any], empty: str) -> None:
    stores, out = chosen_stores(given.pop("stores")), given.pop("out")
    check_out(out)
    top, as_json = given.pop("top", None), given.pop("as_json")
    reading = reading_of(given)
    with running(**given) as spark:
        rows = report(spark, *stores, reading=reading)
        if top is not None:
            rows = rows.limit(top)
        if out is None:
            show(rows, as_json=as_json, empty=empty)
        else:
            write(rows, out, SystemClock().unix_ms())
