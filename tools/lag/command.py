"""`pocketmq lag`: the lag of every consumer group, from the files of stores or from a cluster that runs.

Exit codes: 0 done, 1 a limit given with --max-lag is passed, 2 wrong arguments, 3 no such group or topic, 5 a store
that no broker would open.
"""

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
    TakesStores,
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

#: Verdicts that no limit of messages excuses.
_WRONG = frozenset(
    {
        LagVerdict.EXPIRED_UNREAD,
        LagVerdict.OFFSET_PAST_END,
        LagVerdict.QUEUE_MISSING,
        LagVerdict.STALLED,
    }
)


@click.command(cls=TakesStores)
@stores_argument
@cluster_option
@read_from_option("look at the queues, and may be a moment behind")
@pattern_options
@click.option(
    "--output",
    "out",
    metavar="FILE",
    help="Also write the rows to FILE: .json, .jsonl, .csv or .parquet.",
)
@click.option(
    "--compare",
    metavar="FILE",
    help="Compare with the rows that --output wrote to FILE (.json) earlier.",
)
@watch_options
@click.option(
    "--max-lag",
    type=OFFSET,
    help="Exit with 1 if more messages are unread, or a row is wrong.",
)
@broker_name_option
@broker_settings_option
@recovery_option
@json_option("a row a line")
def lag(*, stores: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Tell how far consumer groups are behind: messages, bytes, the age of the oldest unread one, and a verdict.

    STORE is the folder of a store, a URL (s3://bucket/store), or a pattern over many brokers ("/data/broker-*/store").
    It may be live, stopped, copied or damaged; not a byte of it is written. Without a STORE the brokers are asked.
    A group or a topic that does not exist is exit code 3; a pattern may match nothing.
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
    """What the command line asks for; without STORES a cluster."""

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
        """Are there two moments to compare?"""
        return self.compared is not None or self.interval_ms is not None


def _asked(context: click.Context, stores: tuple[str, ...], given: dict[str, Any]) -> _Asked:
    named = context.get_parameter_source("nameserver") is ParameterSource.COMMANDLINE
    if stores and named:
        raise click.UsageError(
            "Give a STORE or --nameserver: files are read, or brokers are asked."
        )
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
            f"{path} cannot be read ({why}): give a file that `pocketmq lag --output FILE.json` wrote",
            param_hint="--compare",
        ) from error


def _looks(asked: _Asked, clock: Clock) -> Iterator[tuple[list[LagProgress], str]]:
    """Yield what each look finds: one, or with an interval one after the other. With no rows a sentence says why."""
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


#: The rows of an instant, and what returns the names that were known then.
_Look: TypeAlias = tuple[list[LagRow], Callable[[], KnownNames]]


def _look_at(asked: _Asked, stack: ExitStack) -> Callable[[int], _Look]:
    """Return what finds the rows of an instant; what it opens is closed with STACK."""
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
    """Return the rows of all stores; one that no broker would open ends it, unless there are others."""
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
    """Return why there is no row. Raises TopicNotFound or GroupNotFound for a name that is no pattern and not KNOWN."""
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
