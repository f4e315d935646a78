"""`pocketmq spark lag`: the lag of every consumer group in many stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from ....proto.clock import Clock, SystemClock
from ....proto.errors import StoreMismatch
from ... import options
from ...lag.output import print_rows
from ...lag.rows import LagFacts, LagRow, LagVerdict
from ...lag.snapshots import LagProgress, LagSnapshot, compare
from ..store_options import Opening
from .lag import cluster_lag, lag as lag_rows
from .options import OUT, job_options, running
from .output import check_out, write
from .store_tasks import LeftOut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@click.command(cls=options.StoreCommand)
@job_options(
    options.stores_argument,
    options.broker_name_option,
    options.broker_settings_option,
    options.recovery_option,
    OUT,
)
@click.option("--nameserver", metavar="HOST:PORT[,…]", help="Name servers of a cluster to ask.")
@options.read_from_option("report the queues; they may be a moment behind")
@options.watch_options
@options.json_option("one row per line")
def lag(*, as_json: bool, master: str, conf: tuple[str, ...], **given: Any) -> None:
    """Show the lag of every consumer group and its cause.

    Prints the rows of `pocketmq lag`, with one task per store. Stores may be live, stopped, copied or damaged.
    """
    if bool(given["stores"]) == bool(given["nameserver"]):
        raise click.UsageError("Give either a STORE or --nameserver.")
    given["read_from"] = options.read_from_of(given["read_from"], given["stores"])
    interval_ms = options.watch_interval_ms(
        given["watch"], given["interval"], given["iterations"], given["stores"]
    )
    check_out(given["out"])
    settings = options.broker_settings(given["settings"])
    with running(master, conf) as spark:
        looks = _Looks(spark, given, settings, SystemClock())
        looks.run(interval_ms, given["iterations"], as_json=as_json)


@dataclass(slots=True)
class _Looks:
    """Makes one report, or one after the other."""

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
        queue_id=values["queue"],
        group=values["group"],
        committed_offset=values["committed_offset"],
        min_offset=values["min_offset"],
        max_offset=values["max_offset"],
        skipped=values["skipped"],
    )
    return LagRow(
        broker_name=values["broker"],
        facts=facts,
        lag_bytes=values["lag_bytes"],
        oldest_unread_age_ms=values["oldest_unread_age_ms"],
        verdict=LagVerdict(values["verdict"]),
        reasons=tuple(values["reasons"]),
    )


def _with_reasons(found: Iterable[LagProgress], rows: list[LagRow]) -> list[LagProgress]:
    """Return FOUND; a row that is stalled keeps all but the first of the reasons that it has in ROWS."""
    return [
        one
        if one.row.verdict is row.verdict
        else replace(one, row=replace(one.row, reasons=(one.row.reasons[0], *row.reasons[1:])))
        for one, row in zip(found, rows, strict=True)
    ]
