"""`pocketmq bench`: one benchmark per name, each with its baseline."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from ...proto.carriers import need_grpcio
from ...proto.errors import ConfigError, PocketMQError
from ..options import COUNT, Seconds, json_option
from ..output import print_json, print_table
from .measure import LANGUAGES, BenchConditions, Figure, beside_line, figures_table, machine
from .plot import drawn

#: Name, (module and function, what it measures).
BENCHES: Final = {
    "store": (
        "stores:store",
        "Append, queue and key index: 200 B records with one key in runs of 1,000, no network.",
    ),
    "produce": (
        "async_sending:produce",
        "Our client to our broker on loopback, 128 B, acknowledged in memory.",
    ),
    "send": (
        "sending:send",
        "Single messages through the full producer, 128 B and 1 KiB; one after the other.",
    ),
    "ordinary": (
        "ordinary:ordinary",
        "Shapes of ordinary programs: 64 in flight, lists of 100, one at a time, listeners.",
    ),
    "growth": (
        "growth:growth",
        "Sends by 100 connections, to 100,000 queues, of 1 MiB; a store ten times the page cache.",
    ),
    "send-many": (
        "async_sending:send_many",
        "Lists of bodies, encoded by the column, 128 B, acknowledged in memory.",
    ),
    "sync": (
        "async_sending:sync",
        "The same as produce, acknowledged on the device, 64 sends in flight.",
    ),
    "consume": ("reading:consume", "A cold queue to decoded messages, 128 B."),
    "push": ("listening:push", "A listener called once a message, 128 B, default settings."),
    "poll": ("reading:poll", "Cold queues to batches whose columns are read, 128 B."),
    "start": ("idle:start", "From the start of `pocketmq serve` to the first acknowledged send."),
    "memory": ("idle:memory", "Resident memory of an idle `pocketmq serve`."),
    "idle-consumers": (
        "idle_consumers:idle_consumers",
        "A thousand consumers that have nothing to do: memory and CPU time of the broker.",
    ),
    "idle-receives": (
        "idle_receives:idle_receives",
        "Ten thousand ReceiveMessage that wait: memory and CPU time of the broker.",
    ),
    "recovery": (
        "recovery:recovery",
        "From the start to serving, over a log of 1 GiB that was left by kill -9.",
    ),
    "scan": (
        "scanning:scan",
        "Messages and queue entries from files to Arrow columns, beside pyarrow reading Parquet.",
    ),
    "spark": (
        "spark_scans:spark",
        "The same on Spark, local[2] and warm, a filter, the lag job; needs the extra spark.",
    ),
    "inspect": (
        "inspection:inspect",
        "The overview of a store of 100 GiB; verify half a GiB of 1 KiB messages.",
    ),
    "delay": (
        "delay:delay",
        "A million messages over a minute (with --seconds 15): how late each is; or --pending.",
    ),
    "lookup": (
        "lookups:lookup",
        "A key in a full index file of 20 M entries, from the files: cold and warm.",
    ),
    "v2": (
        "official:official",
        "An official client of Apache RocketMQ (--client): sends, receives; our handlers alone.",
    ),
    "unary": (
        "unary:unary",
        "CPU time of the server for one SendMessage, by our own HTTP/2 and by grpcio's.",
    ),
    "replicas": (
        "replicas:replicas",
        "Three replicas and ZooKeeper (--zookeeper-home): failover, hand-over, sends, catch-up.",
    ),
    "tasks": (
        "tasks:tasks",
        "Celery and dramatiq, on Redis beside it; needs the extras celery and dramatiq.",
    ),
    "wheel": (
        "wheel:wheel",
        "Timers on the timing wheel, beside heapq and call_later: 10 k, 100 k and 1 M.",
    ),
}

#: What is measured next to gRPC's own library, an echo or its server.
_BESIDE_GRPC: Final = frozenset(
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
    help="Where stores are put while measuring.  [default: the system's folder for temporary files]",
)
@click.option(
    "--pending",
    type=COUNT,
    metavar="N",
    help="With `delay`: send N messages that are due within a day, and tell what they cost while they wait.",
)
@click.option(
    "--client",
    type=click.Choice(LANGUAGES),
    help="With `v2`: the language of the official client.  [default: the first whose tools are there]",
)
@click.option(
    "--zookeeper-home",
    type=click.Path(exists=True, file_okay=False),
    help="With `replicas`: the folder of a ZooKeeper's jars.",
)
@click.option(
    "--apache",
    type=click.Path(exists=True, file_okay=False),
    help="With `ordinary` and `replicas`: the folder of Apache RocketMQ's jars, whose broker (and slave) runs beside.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE.svg",
    help="With `ordinary`: draw the rates beside those of Apache RocketMQ (--apache), else of an echo.",
)
@json_option("an object a line")
def bench(
    names: tuple[str, ...],
    *,
    seconds: float,
    folder: Path | None,
    plot: Path | None,
    as_json: bool,
    **of_one: Any,
) -> None:
    """Measure PocketMQ on this machine, each figure next to what the machine does with the same bytes.

    With `all`, what needs something that is not installed is left out, and told.
    """
    wanted = list(BENCHES) if "all" in names else list(dict.fromkeys(names))
    if of_one["pending"] and "delay" not in wanted:
        raise click.UsageError("--pending belongs to `bench delay`.")
    if of_one["client"] and "v2" not in wanted:
        raise click.UsageError("--client belongs to `bench v2`.")
    if plot is not None and "ordinary" not in wanted:
        raise click.UsageError("--plot belongs to `bench ordinary`.")
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
            date = time.strftime("%Y-%m-%d")
            plot.write_text(drawn(figure, machine=here, date=date), encoding="utf-8")
        if as_json:
            print_json(figure.document())
        else:
            click.echo(
                f"{figure.name}: {figure.what}\n  beside: {beside_line(figure.beside) or '-'}"
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
                if name in _BESIDE_GRPC:
                    need_grpcio(f"bench {name} measures beside gRPC's own library")
                measure = getattr(importlib.import_module(f".{module}", __package__), function)
                yield measure(BenchConditions(folder=Path(place), **options))
            except ConfigError as error:
                if not are_all:
                    raise
                yield Figure(name=name, what=f"not measured: {error.message}")
            except OSError as error:
                raise PocketMQError(f"bench {name}: {error}") from error
