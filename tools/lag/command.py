"""`pocketmq lag`: the lag of every consumer group, from the files of stores or from live brokers."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import click
from click.core import ParameterSource

from ...client import Admin
from ...client.config import ReadFrom
from ...client.name_server_addresses import DEFAULT_NAME_SERVERS
from ...proto.clock import Clock, SystemClock
from ...proto.errors import StoreMismatch
from ..hidden_names import HiddenNames
from ..options import (
    OFFSET,
    StoreCommand,
    broker_name_option,
    broker_settings,
    broker_settings_option,
    cluster_option,
    json_option,
    pattern_options,
    read_from_of,
    read_from_option,
    recovery_option,
    stores_argument,
    watch_interval_ms,
    watch_options,
)
from ..output import warn
from ..stores import RecoveryName
from ..stores.cold_store import open_cold
from ..stores.locations import locate
from ..stores.names import KnownNames
from .cold import store_rows
from .live import cluster_rows
from .output import check_out, print_rows, write_rows
from .rows import LagRow, LagVerdict
from .snapshots import LagProgress, LagSnapshot, compare

#: Verdicts that count as a failure whatever --max-lag is.
_WRONG = frozenset(
    {
        LagVerdict.EXPIRED_UNREAD,
        LagVerdict.OFFSET_PAST_END,
        LagVerdict.QUEUE_MISSING,
        LagVerdict.STALLED,
    }
)


@click.command(cls=StoreCommand)
@stores_argument
@cluster_option
@read_from_option("report the queues; they may be a moment behind")
@pattern_options
@click.option(
    "--output",
    "out",
    metavar="FILE",
    help="Also write the rows to FILE (.json, .jsonl, .csv, .parquet).",
)
@click.option(
    "--compare",
    metavar="FILE",
    help="Compare with FILE (.json), which --output wrote earlier, and show rates.",
)
@watch_options
@click.option(
    "--max-lag",
    type=OFFSET,
    help="Exit with code 1 if a row has more unread messages, or its verdict is a fault.",
)
@broker_name_option
@broker_settings_option
@recovery_option
@json_option("one row per line")
def lag(*, stores: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show the lag of consumer groups and its cause.

    Prints for each queue and group the unread messages, their bytes, the age of the oldest, and a verdict with its
    cause. Without a STORE the brokers are asked. STORE is a folder, a URL (s3://bucket/store), or a pattern over many
    brokers ("/data/broker-*/store"); it may be live, stopped, copied or damaged, and is only read.

    \b
    Example: pocketmq lag --group billing --max-lag 1000

    Exit code 1: --max-lag is exceeded; 3: a group or topic does not exist (a pattern may match nothing).
    """
    context = click.get_current_context()
    asked = _asked(context, stores, options)
    passed = False
    for found, empty in _looks(asked, SystemClock()):
        print_rows(found, as_json=as_json, with_rates=asked.has_rates, empty=empty)
        passed = asked.max_lag is not None and any(
            _is_wrong(one.row, asked.max_lag) for one in found
        )
    if passed:
        context.exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The arguments. Without STORES, brokers are asked."""

    stores: tuple[str, ...]
    nameserver: str
    read_from: ReadFrom
    group: str
    topic: str
    out: str | None
    compared: LagSnapshot | None
    interval_ms: int | None
    iterations: int | None
    max_lag: int | None
    broker_name: str | None
    settings: dict[str, str]
    recovery: RecoveryName

    @property
    def has_rates(self) -> bool:
        """Are there two points in time to compare?"""
        return self.compared is not None or self.interval_ms is not None


def _asked(context: click.Context, stores: tuple[str, ...], given: dict[str, Any]) -> _Asked:
    named = context.get_parameter_source("nameserver") is ParameterSource.COMMANDLINE
    if stores and named:
        raise click.UsageError("Give either a STORE or --nameserver.")
    read_from = read_from_of(given.pop("read_from"), stores)
    interval_ms = watch_interval_ms(
        given.pop("watch"), given.pop("interval"), given["iterations"], stores
    )
    if given["out"] is not None:
        check_out(given["out"])
    compared = given.pop("compare")
    return _Asked(
        stores=stores,
        nameserver=given.pop("nameserver") or DEFAULT_NAME_SERVERS,
        read_from=read_from,
        group=given.pop("group") or "*",
        topic=given.pop("topic") or "*",
        compared=None if compared is None else _snapshot(Path(compared)),
        interval_ms=interval_ms,
        settings=broker_settings(given.pop("settings")),
        **given,
    )


def _snapshot(path: Path) -> LagSnapshot:
    """Return the rows that --output wrote to PATH. Raises BadParameter, InvalidArgument."""
    try:
        return LagSnapshot.parse(path.read_bytes())
    except OSError as error:
        why = "it is a folder" if path.is_dir() else error.strerror
        raise click.BadParameter(
            f"cannot read {path} ({why}): give a file that `pocketmq lag --output FILE.json` wrote",
            param_hint="--compare",
        ) from error


def _looks(asked: _Asked, clock: Clock) -> Iterator[tuple[list[LagProgress], str]]:
    """Yield the rows of each report, and if there are none the reason. Without an interval there is one report."""
    before = asked.compared
    with ExitStack() as stack:
        look = _look_at(asked, stack)
        for number in count(1):
            looked_ms, now_ms = clock.now_ms(), clock.unix_ms()
            looked, known = look(now_ms)
            rows = [row for row in looked if _is_wanted(asked, row)]
            empty = "" if rows else _why_empty(asked, known())
            found = compare(before, rows, now_ms)
            if asked.out is not None:
                write_rows(asked.out, [one.row for one in found], now_ms)
            yield found, empty
            if asked.interval_ms is None or number == asked.iterations:
                return
            before = LagSnapshot.of(rows, now_ms)
            asyncio.run(clock.sleep_until(looked_ms + asked.interval_ms))


#: The rows of one report, and a function that returns the names known then.
_Look: TypeAlias = tuple[list[LagRow], Callable[[], KnownNames]]


def _look_at(asked: _Asked, stack: ExitStack) -> Callable[[int], _Look]:
    """Return the function that makes the rows of one report. STACK closes its resources."""
    if asked.stores:
        return lambda now_ms: _rows_of_stores(asked, now_ms)
    admin = stack.enter_context(Admin(asked.nameserver))

    def known() -> KnownNames:
        names = KnownNames()
        names.add_cluster(admin)
        return names

    hidden = HiddenNames()

    def look(now_ms: int) -> _Look:
        rows = cluster_rows(admin, hidden, asked.read_from)
        hidden.warn_once(admin)
        return rows, known

    return look


def _rows_of_stores(asked: _Asked, now_ms: int) -> _Look:
    """Return the rows of all stores. Raises StoreMismatch if no store can be opened; others are left out."""
    rows: list[LagRow] = []
    names = KnownNames()
    refused: list[StoreMismatch] = []
    locations = locate(asked.stores, broker_name=asked.broker_name, settings=asked.settings)
    for location in locations:
        try:
            store = open_cold(
                location,
                now_ms=now_ms,
                given=asked.settings,
                recovery=asked.recovery,
                index=False,
            )
        except StoreMismatch as error:
            refused.append(error)
            continue
        warn(store.warnings)
        rows += store_rows(store, now_ms)
        names.add_store(store)
    if refused and len(refused) == len(locations):
        raise refused[0]
    for refusal in refused:
        click.echo(f"pocketmq: left out: {refusal.message}", err=True)
    return sorted(rows, key=lambda row: row.key), lambda: names


def _why_empty(asked: _Asked, known: KnownNames) -> str:
    """Return why there is no row. Raises TopicNotFound or GroupNotFound for a full name that is not KNOWN."""
    known.check(topics=[asked.topic], groups=[asked.group])
    for kind, pattern, names in (
        ("group", asked.group, known.groups),
        ("topic", asked.topic, known.topics),
    ):
        if pattern != "*" and not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return f"no {kind} matches {pattern!r}"
    groups = "" if asked.group == "*" else f" that matches {asked.group!r}"
    topic = "a topic" if asked.topic == "*" else f"a topic that matches {asked.topic!r}"
    return f"no group{groups} has committed an offset of {topic}, or is known to read one"


def _is_wanted(asked: _Asked, row: LagRow) -> bool:
    return fnmatch.fnmatchcase(row.facts.group, asked.group) and fnmatch.fnmatchcase(
        row.facts.topic, asked.topic
    )


def _is_wrong(row: LagRow, max_lag: int) -> bool:
    return (row.lag or 0) > max_lag or row.verdict in _WRONG
