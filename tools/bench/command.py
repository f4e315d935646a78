"""`pocketmq bench`: one benchmark per name, each with its baseline."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from ...proto.carriers import need_grpcio
from ...proto.clock import SystemClock
from ...proto.errors import ConfigError, PocketMQError
from ...proto.time_text import format_instant
from ..options import COUNT, Seconds, json_option
from ..output import print_json, print_table
from .measure import LANGUAGES, BenchConditions, Figure, beside_line, figures_table, machine
from .plot import drawn

#: Name, (module and function, what it measures).
BENCHES: Final = {
    "store": (
        "stores:store",
        "Append, queue and key index: 200 B records with one key in batches of 1,000, no network.",
    ),
    "produce": (
        "async_sending:produce",
        "Client to broker on loopback, 128 B, acknowledged in memory.",
    ),
    "send": (
        "sending:send",
        "Single messages through the complete producer, 128 B and 1 KiB; one after the other.",
    ),
    "ordinary": (
        "ordinary:ordinary",
        "Typical programs: 64 sends in flight, batches of 100, one at a time, listeners.",
    ),
    "growth": (
        "growth:growth",
        "Sends over 100 connections, to 100,000 queues, of 1 MiB; a store ten times the page cache.",
    ),
    "send-many": (
        "async_sending:send_many",
        "`send_many` with lists of bodies, 128 B, acknowledged in memory.",
    ),
    "sync": (
        "async_sending:sync",
        "The same as produce, acknowledged on disk, 64 sends in flight.",
    ),
    "consume": (
        "reading:consume",
        "Read a queue that is not in memory, and decode its messages, 128 B.",
    ),
    "push": ("listening:push", "A listener, called once per message, 128 B, default settings."),
    "poll": (
        "reading:poll",
        "Poll queues that are not in memory, and read the columns of batches, 128 B.",
    ),
    "start": (
        "idle:start",
        "Time from the start of `pocketmq serve` to the first acknowledged send.",
    ),
    "memory": ("idle:memory", "Resident memory of an idle `pocketmq serve`."),
    "idle-consumers": (
        "idle_consumers:idle_consumers",
        "A thousand idle consumers: memory and CPU time of the broker.",
    ),
    "idle-receives": (
        "idle_receives:idle_receives",
        "Ten thousand waiting ReceiveMessage calls: memory and CPU time of the broker.",
    ),
    "recovery": (
        "recovery:recovery",
        "Time from the start to serving, with a log of 1 GiB after kill -9.",
    ),
    "scan": (
        "scanning:scan",
        "Messages and queue entries from files to Arrow columns, compared with pyarrow and Parquet.",
    ),
    "spark": (
        "spark_scans:spark",
        "The same on Spark (local[2], warm), a filter, the lag job; needs the extra spark.",
    ),
    "inspect": (
        "inspection:inspect",
        "`inspect` of a store of 100 GiB; `verify` of half a GiB of 1 KiB messages.",
    ),
    "delay": (
        "delay:delay",
        "How late scheduled messages are: a million over a minute with --seconds 15; see --pending.",
    ),
    "lookup": (
        "lookup:lookup",
        "Look up a key in a full index file of 20 M entries, cold and warm.",
    ),
    "v2": (
        "official:official",
        "An official client of Apache RocketMQ (see --client): sends, receives; handlers alone.",
    ),
    "unary": (
        "unary:unary",
        "CPU time of the server for one SendMessage, with the built-in HTTP/2 and with grpcio.",
    ),
    "replicas": (
        "replicas:replicas",
        "Three replicas with ZooKeeper (see --zookeeper-home): failover, transfer, sends, catch-up.",
    ),
    "tasks": (
        "tasks:tasks",
        "Celery and dramatiq, compared with Redis; needs the extras celery and dramatiq.",
    ),
    "wheel": (
        "wheel:wheel",
        "Timers on the timing wheel, compared with heapq and call_later: 10 k, 100 k and 1 M.",
    ),
}

#: Benchmarks that need grpcio for their baseline, an echo or its server.
_NEED_GRPCIO: Final = frozenset(
    {"produce", "send", "send-many", "sync", "consume", "push", "poll", "delay", "unary"}
)


@click.command(
    epilog="\b\nNames:\n" + "\n".join(f"  {name:14} {what}" for name, (_, what) in BENCHES.items())
)
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME…|all", type=click.Choice([*BENCHES, "all"])
)
@click.option(
    "--seconds",
    type=Seconds(0.1, 600),
    default=3.0,
    show_default=True,
    help="Duration of each measurement.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder for temporary stores.  [default: the system's folder for temporary files]",
)
@click.option(
    "--pending",
    type=COUNT,
    metavar="N",
    help="With `delay`: number of messages, due within a day, whose cost while they wait is measured.",
)
@click.option(
    "--client",
    type=click.Choice(LANGUAGES),
    help="With `v2`: language of the official client.  [default: the first whose tools are installed]",
)
@click.option(
    "--zookeeper-home",
    type=click.Path(exists=True, file_okay=False),
    help="With `replicas`: folder of ZooKeeper's jars.",
)
@click.option(
    "--apache",
    type=click.Path(exists=True, file_okay=False),
    help="With `ordinary` and `replicas`: folder of the jars of Apache RocketMQ, which is measured for comparison.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE.svg",
    help="With `ordinary`: draw the rates next to those of Apache RocketMQ (--apache), else of an echo.",
)
@json_option("one object per line")
def bench(
    names: tuple[str, ...],
    *,
    seconds: float,
    folder: Path | None,
    plot: Path | None,
    as_json: bool,
    **of_one: Any,
) -> None:
    """Measure PocketMQ on this machine.

    Prints each result with a baseline: what the machine does with the same bytes. `all` runs every benchmark, and
    reports those that need something that is not installed.

    \b
    Example: pocketmq bench produce consume --seconds 5
    """
    wanted = list(BENCHES) if "all" in names else list(dict.fromkeys(names))
    if of_one["pending"] and "delay" not in wanted:
        raise click.UsageError("--pending needs `bench delay`.")
    if of_one["client"] and "v2" not in wanted:
        raise click.UsageError("--client needs `bench v2`.")
    if plot is not None and "ordinary" not in wanted:
        raise click.UsageError("--plot needs `bench ordinary`.")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise click.UsageError(f"--plot: there is no folder {plot.absolute().parent}.")
    here = machine()
    figures = []
    options = {
        "seconds": seconds,
        **{name: value for name, value in of_one.items() if value is not None},
    }
    for figure in _figures(wanted, folder, options, are_all="all" in names):
        figures.append(figure)
        if plot is not None and figure.name == "ordinary":
            date = format_instant(SystemClock().unix_ms())[:10]
            plot.write_text(drawn(figure, machine=here, date=date), encoding="utf-8")
        if as_json:
            print_json(figure.document())
        else:
            click.echo(
                f"{figure.name}: {figure.what}\n  baseline: {beside_line(figure.beside) or '-'}"
            )
            for note in figure.notes:
                click.echo(f"  {note}")
    if not as_json:
        click.echo()
        print_table(*figures_table(figures))


def _figures(
    names: list[str], folder: Path | None, options: dict[str, Any], *, are_all: bool
) -> Iterator[Figure]:
    for name in names:
        measure: Callable[[BenchConditions], Figure]
        module, _, function = BENCHES[name][0].partition(":")
        with tempfile.TemporaryDirectory(prefix="pocketmq-bench-", dir=folder) as place:
            try:
                if name in _NEED_GRPCIO:
                    need_grpcio(f"bench {name} is compared with grpcio")
                measure = getattr(importlib.import_module(f".{module}", __package__), function)
                yield measure(BenchConditions(folder=Path(place), **options))
            except ConfigError as error:
                if not are_all:
                    raise
                yield Figure(name=name, what=f"not measured: {error.message}")
            except OSError as error:
                raise PocketMQError(f"bench {name}: {error}") from error
