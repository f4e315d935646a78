"""`pocketmq spark audit`, `dead-letters`, `tags`, `keys`, `rates`, `export` and `replay`: jobs as commands.

Each takes its options apart, runs the function of the same name in a session, and prints or writes the rows.

`pocketmq spark lag`: how far every consumer group of a fleet is behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from ....proto.clock import Clock, SystemClock
from ....proto.errors import ConfigError, StoreMismatch
from ... import options
from ...counted import counted
from ...lag.command import print_rows
from ...lag.rows import LagFacts, LagProgress, LagRow, LagSnapshot, LagVerdict, compare
from ..store_options import Opening
from . import audit as audits, export as exports, replay as replays, reports
from .lag import cluster_lag, lag as lag_rows
from .options import OUT, READING, job_options, reading_of, running
from .output import check_out, show, write
from .reading import LeftOut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOP = click.option(
    "--top", type=options.COUNT, default=100, show_default=True, help="Maximum number of rows."
)


@click.command(cls=options.TakesStores)
@job_options(options.stores_argument, options.broker_settings_option, OUT)
@options.json_option("a kind of fault of a queue a line")
@click.pass_context
def audit(context: click.Context, /, *, as_json: bool, out: str | None, **given: Any) -> None:
    """Hold log, queues and index of stores together, and check every record's CRC.

    Exit code 1 where something is wrong.
    """
    stores = options.chosen_stores(given.pop("stores"))
    settings = options.broker_settings(given.pop("settings"))
    check_out(out)
    with running(**given) as spark:
        faults = audits.audit(spark, *stores, settings=settings).cache()
        if out is not None:
            write(faults, out, SystemClock().unix_ms())
        else:
            show(faults, as_json=as_json, empty="nothing is wrong")
        is_wrong = not faults.isEmpty()
    if is_wrong:
        context.exit(1)


@click.command("dead-letters", cls=options.TakesStores)
@job_options(*READING, OUT)
@options.json_option("a dead letter a line")
def dead_letters(**given: Any) -> None:
    """List the dead letters of all groups: where they came from, when they died, how often they were tried."""
    _report(reports.dead_letters, given, "there are no dead letters")


@click.command(cls=options.TakesStores)
@job_options(*READING, OUT)
@_TOP
@options.json_option("a topic and tag a line")
def tags(**given: Any) -> None:
    """Count messages and bytes by topic and tag, the most frequent first."""
    _report(reports.tags, given, "there are no messages")


@click.command(cls=options.TakesStores)
@job_options(*READING, OUT)
@_TOP
@options.json_option("a topic and key a line")
def keys(**given: Any) -> None:
    """Find the most frequent keys of each topic."""
    _report(reports.keys, given, "no message has a key")


@click.command(cls=options.TakesStores)
@job_options(*READING, OUT)
@options.json_option("a topic and minute a line")
def rates(**given: Any) -> None:
    """Count messages and bytes by topic and minute of the store time, in UTC."""
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


@click.command(cls=options.TakesStores)
@job_options(*READING)
@click.option("--to", required=True, metavar="FOLDER", help="Where the files go: a path or a URL.")
@click.option(
    "--mode",
    type=click.Choice(("new", "add", "replace")),
    default="new",
    show_default=True,
    help="FOLDER must be new; or files are added; or the topics and days that are written replace those there.",
)
def export(*, to: str, mode: Any, **given: Any) -> None:
    """Write messages to Parquet files, partitioned by topic and day of the store time, in UTC."""
    stores = options.chosen_stores(given.pop("stores"))
    reading = reading_of(given)
    if "=" in to.rsplit("/", 1)[-1]:
        raise ConfigError(f"--to {to}: Spark takes name=value in a path for a column", field="to")
    with running(**given) as spark:
        done = exports.export(spark, *stores, to=to, reading=reading, mode=mode)
    click.echo(f"{counted(done.messages, 'message')}, {done.size_bytes:,} bytes of log, to {to}")


@click.command(
    cls=options.TakesStores,
    epilog=f"Each message says where it stood, in its property {replays.REPLAYED_FROM}: repeats are told by that.",
)
@job_options(*READING)
@click.option("--to", metavar="TOPIC", help="Send all to TOPIC.  [default: each to its own]")
@options.nameserver_option
def replay(*, to: str | None, nameserver: str, **given: Any) -> None:
    """Send stored messages again, at least once: to a topic of a cluster that runs."""
    stores = options.chosen_stores(given.pop("stores"))
    reading = reading_of(given)
    with running(**given) as spark:
        count = replays.replay(spark, *stores, nameserver=nameserver, topic=to, reading=reading)
    click.echo(f"{counted(count, 'message')} sent")


# ---------------------------------------------------------------- `pocketmq spark lag`


@click.command(cls=options.TakesStores)
@job_options(
    options.stores_argument,
    options.broker_name_option,
    options.broker_settings_option,
    options.recovery_option,
    OUT,
)
@click.option("--nameserver", metavar="HOST:PORT[,…]", help="Ask the brokers of this cluster.")
@options.read_from_option("look at the queues, and may be a moment behind")
@options.watch_options
@options.json_option("a row a line")
def lag(*, as_json: bool, master: str, conf: tuple[str, ...], **given: Any) -> None:
    """Tell how far consumer groups are behind: messages, bytes, the age of the oldest unread one, and a verdict.

    The rows are those of `pocketmq lag`, one task a store. Stores may be live, stopped, copied or damaged.
    """
    if bool(given["stores"]) == bool(given["nameserver"]):
        raise click.UsageError(
            "Give a STORE or --nameserver: files are read, or brokers are asked."
        )
    given["read_from"] = options.read_from_of(given["read_from"], given["stores"])
    interval_ms = options.watch_interval_ms(given["watch"], given["iterations"])
    check_out(given["out"])
    settings = options.broker_settings(given["settings"])
    with running(master, conf) as spark:
        looks = _Looks(spark, given, settings, SystemClock())
        looks.run(interval_ms, given["iterations"], as_json=as_json)


@dataclass(slots=True)
class _Looks:
    """One look after the other."""

    spark: SparkSession
    given: dict[str, Any]
    settings: dict[str, str]
    clock: Clock
    before: LagSnapshot | None = None

    def run(self, interval_ms: int | None, iterations: int | None, *, as_json: bool) -> None:
        number = 0
        while True:
            looked_ms = self.clock.now_ms()
            self._look(self.clock.unix_ms(), as_json=as_json, with_rates=interval_ms is not None)
            number += 1
            if interval_ms is None or number == iterations:
                return
            asyncio.run(self.clock.sleep_until(looked_ms + interval_ms))

    def _look(self, now_ms: int, *, as_json: bool, with_rates: bool) -> None:
        left_out = LeftOut(self.spark)
        frame = self._frame(now_ms, left_out)
        if self.given["out"] is not None:
            write(frame, self.given["out"], now_ms)
            self._tell(left_out, any_rows=True)
            return
        rows = rows_of(frame)
        self._tell(left_out, any_rows=bool(rows))
        found = _with_reasons(compare(self.before, rows, now_ms), rows)
        print_rows(found, as_json=as_json, with_rates=with_rates)
        self.before = LagSnapshot.of(rows, now_ms)

    def _frame(self, now_ms: int, left_out: LeftOut) -> DataFrame:
        if self.given["nameserver"]:
            return cluster_lag(self.spark, self.given["nameserver"], self.given["read_from"])
        return lag_rows(
            self.spark,
            *self.given["stores"],
            broker_name=self.given["broker_name"],
            opening=Opening(now_ms=now_ms, settings=self.settings, recovery=self.given["recovery"]),
            left_out=left_out,
        )

    def _tell(self, left_out: LeftOut, *, any_rows: bool) -> None:
        messages = left_out.messages
        if messages and not any_rows:
            raise StoreMismatch(messages[0])
        for message in messages:
            click.echo(f"pocketmq: left out: {message}", err=True)


def rows_of(frame: DataFrame) -> list[LagRow]:
    """Return the rows of FRAME, as `lag` makes it, in order of broker, topic, queue and group."""
    found = [_row(values) for values in frame.toArrow().to_pylist()]
    return sorted(found, key=lambda row: row.key)


def _row(values: dict[str, Any]) -> LagRow:
    facts = LagFacts(
        topic=values["topic"],
        queue_id=values["queueId"],
        group=values["group"],
        committed_offset=values["committedOffset"],
        min_offset=values["minOffset"],
        max_offset=values["maxOffset"],
        skipped=values["skipped"],
    )
    return LagRow(
        broker_name=values["brokerName"],
        facts=facts,
        lag_bytes=values["lagBytes"],
        oldest_unread_age_ms=values["oldestUnreadAgeMs"],
        verdict=LagVerdict(values["verdict"]),
        reasons=tuple(values["reasons"]),
    )


def _with_reasons(found: Iterable[LagProgress], rows: list[LagRow]) -> list[LagProgress]:
    """Return FOUND; a row that stands still keeps all but the first of the reasons that it has in ROWS."""
    return [
        one
        if one.row.verdict is row.verdict
        else replace(one, row=replace(one.row, reasons=(one.row.reasons[0], *row.reasons[1:])))
        for one, row in zip(found, rows, strict=True)
    ]
