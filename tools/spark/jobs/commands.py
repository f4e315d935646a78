"""`pocketmq spark audit`, `dead-letters`, `tags`, `keys`, `rates`, `export` and `replay`: jobs as commands.

Each command runs the function of the same name in a session, and prints or writes the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ....proto.clock import SystemClock
from ....proto.errors import ConfigError
from ... import options
from ...counted import counted
from . import audit as audits, export as exports, replay as replays, reports
from .options import OUT, READING, job_options, reading_of, running
from .output import check_out, show, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOP = click.option(
    "--limit",
    "top",
    type=options.COUNT,
    default=100,
    show_default=True,
    help="Maximum number of rows.",
)


@click.command(cls=options.StoreCommand)
@job_options(options.stores_argument, options.broker_settings_option, OUT)
@options.json_option("one line per queue and kind of fault")
@click.pass_context
def audit(context: click.Context, /, *, as_json: bool, out: str | None, **given: Any) -> None:
    """Check log, queues, index and CRCs of stores.

    Prints each kind of fault of each queue.

    \b
    Example: pocketmq spark audit '/data/broker-*/store'

    Exit code 1: a fault was found.
    """
    stores = options.chosen_stores(given.pop("stores"))
    settings = options.broker_settings(given.pop("settings"))
    check_out(out)
    with running(**given) as spark:
        faults = audits.audit(spark, *stores, settings=settings).cache()
        if out is not None:
            write(faults, out, SystemClock().unix_ms())
        else:
            show(faults, as_json=as_json, empty="no faults")
        is_wrong = not faults.isEmpty()
    if is_wrong:
        context.exit(1)


@click.command("dead-letters", cls=options.StoreCommand)
@job_options(*READING, OUT)
@options.json_option("one dead letter per line")
def dead_letters(**given: Any) -> None:
    """List the dead letters of all groups.

    Prints their origin, when they were moved to the dead-letter queue, and how often they were delivered.
    """
    _report(reports.dead_letters, given, "there are no dead letters")


@click.command(cls=options.StoreCommand)
@job_options(*READING, OUT)
@_TOP
@options.json_option("one line per topic and tag")
def tags(**given: Any) -> None:
    """Count messages and bytes by topic and tag, most frequent first."""
    _report(reports.tags, given, "there are no messages")


@click.command(cls=options.StoreCommand)
@job_options(*READING, OUT)
@_TOP
@options.json_option("one line per topic and key")
def keys(**given: Any) -> None:
    """Find the most frequent keys of each topic."""
    _report(reports.keys, given, "no message has a key")


@click.command(cls=options.StoreCommand)
@job_options(*READING, OUT)
@options.json_option("one line per topic and minute")
def rates(**given: Any) -> None:
    """Count messages and bytes by topic and minute.

    The minute is that of the store time, in UTC.
    """
    _report(reports.rates, given, "there are no messages")


def _report(report: Callable[..., DataFrame], given: dict[str, Any], empty: str) -> None:
    stores, out = options.chosen_stores(given.pop("stores")), given.pop("out")
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


@click.command(cls=options.StoreCommand)
@job_options(*READING)
@click.option(
    "--output", "to", required=True, metavar="FOLDER", help="Folder of the files: a path or a URL."
)
@click.option(
    "--mode",
    type=click.Choice(("new", "add", "replace")),
    default="new",
    show_default=True,
    help="Require a new folder; add files; or replace the written topics and days.",
)
def export(*, to: str, mode: Any, **given: Any) -> None:
    """Write messages to Parquet, by topic and day.

    The day is that of the store time, in UTC.

    \b
    Example: pocketmq spark export '/data/broker-*/store' --output s3a://bucket/messages
    """
    stores = options.chosen_stores(given.pop("stores"))
    reading = reading_of(given)
    if "=" in to.rsplit("/", 1)[-1]:
        raise ConfigError(
            f"--output {to}: a folder of the form name=value is a column for Spark. Use another name",
            field="to",
        )
    with running(**given) as spark:
        done = exports.export(spark, *stores, to=to, reading=reading, mode=mode)
    click.echo(f"{counted(done.messages, 'message')}, {done.size_bytes:,} bytes of log, to {to}")


@click.command(
    cls=options.StoreCommand,
    epilog=f"The property {replays.REPLAYED_FROM} of each message has its old place, by which you can find duplicates.",
)
@job_options(*READING)
@click.option(
    "--to-topic",
    "to",
    metavar="TOPIC",
    help="Topic to send to.  [default: the topic of each message]",
)
@options.nameserver_option
def replay(*, to: str | None, nameserver: str, **given: Any) -> None:
    """Send stored messages to a topic again.

    Each message is sent at least once, to the brokers of --nameserver.
    """
    stores = options.chosen_stores(given.pop("stores"))
    reading = reading_of(given)
    with running(**given) as spark:
        count = replays.replay(spark, *stores, nameserver=nameserver, topic=to, reading=reading)
    click.echo(f"{counted(count, 'message')} sent")
