"""`pocketmq cluster init` and `replicas`: the record of a replica set, made anew after a loss too, and who is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from ...broker.replication.registry import Cell, render_cell
from ...proto.errors import CellChanged, ConfigError, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..options import json_option
from ..output import print_json
from .sets import ReplicaSet, opened, registry_options

#: How often a change is tried while the master changes the record, too.
_TRIES: Final = 20


@click.command()
@click.argument("name", metavar="SET")
@click.argument("replicas", metavar="ID=HOST:PORT…", nargs=-1, required=True)
@click.option(
    "--from",
    "source",
    type=click.IntRange(1),
    metavar="ID",
    help="The replica whose log goes on, where there are logs already.",
)
@click.option(
    "--if-missing", is_flag=True, help="Do nothing where the set has these replicas already."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@registry_options
@json_option("the record")
def init(
    name: str,
    replicas: Sequence[str],
    *,
    source: int | None,
    zookeeper: str,
    cluster_name: str,
    config_file: Path | None,
    **flags: bool,
) -> None:
    """Make the replica set SET of the replicas at ID=HOST:PORT, where the others reach each.

    The first record of a set comes before its replicas start. One by which there was a master is never overwritten.

    If ZooKeeper has lost its data, or a broker that has a log becomes a replica, --from says whose log goes on: the
    others follow it, and set aside what only they have. Have all replicas run that can: the new record gets a later
    epoch than any of them has seen.
    """
    addresses = _parsed(name, replicas)
    if source is not None and source not in addresses:
        raise click.UsageError(f"--from {source}: it is none of the replicas that are given.")

    async def make() -> Cell:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            registry = sets.registry(name)
            found = await registry.read()
            if found is not None:
                if flags["if_missing"] and found.cell.replicas == addresses:
                    return found.cell
                if found.cell.master:
                    raise _there_already(name, found.cell)
            told = await sets.ask(addresses)
            cell = _first(addresses, _logs(told, cluster_name, name), source)
            if source is not None:
                _confirm(told, source, yes=flags["yes"])
            if found is None:
                await registry.create(cell)
            else:
                cell = replace(cell, epoch=max(cell.epoch, found.cell.epoch))
                await registry.compare_and_set(cell, found.version)
            return cell

    cell = asyncio.run(make())
    if flags["as_json"]:
        print_json(
            {
                "cluster": cluster_name,
                "set": name,
                "epoch": cell.epoch,
                "in_sync": sorted(cell.in_sync),
                "replicas": {str(one): cell.replicas[one] for one in sorted(cell.replicas)},
            }
        )
        return
    first = f"replica {min(cell.in_sync)} is" if len(cell.in_sync) == 1 else "one of them is"
    click.echo(
        f"{name} of {cluster_name}: {len(addresses)} replicas; once they run, {first} elected master."
        if not cell.master
        else f"{name} of {cluster_name} is there: epoch {cell.epoch}, master {cell.master}."
    )


@click.command()
@click.argument("name", metavar="SET")
@click.argument("given", metavar="[ID=HOST:PORT]…", nargs=-1)
@click.option(
    "--remove",
    "removed",
    type=click.IntRange(1),
    metavar="ID",
    multiple=True,
    help="Take this one out of the set; may be repeated. It has stopped, and is not in sync any more.",
)
@registry_options
@json_option("the replicas that the set has then")
def replicas(
    name: str,
    given: Sequence[str],
    *,
    removed: Sequence[int],
    zookeeper: str,
    cluster_name: str,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Add replicas to SET, change where the others reach them, or take some out, while the set goes on.

    One that is new starts with an empty store, follows, and is in sync once it has all.
    """
    addresses = _parsed(name, given)
    if not addresses and not removed:
        raise click.UsageError("Say which: ID=HOST:PORT, or --remove ID.")
    if both := addresses.keys() & set(removed):
        raise click.UsageError(f"--remove {min(both)}: it is given an address, too.")

    async def change() -> Cell:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            registry = sets.registry(name)
            for _ in range(_TRIES):
                found = await registry.read()
                cell = _changed(
                    ReplicaSet(cluster=cluster_name, name=name, cell=found and found.cell).known(),
                    addresses,
                    removed,
                )
                with suppress(CellChanged):
                    assert found is not None
                    await registry.compare_and_set(cell, found.version)
                    return cell
        raise CellChanged(f"replica set {name!r} changes all the time: try again later", set=name)

    cell = asyncio.run(change())
    if as_json:
        print_json({"set": name, "replicas": {str(one): at for one, at in cell.replicas.items()}})
        return
    for one, address in cell.replicas.items():
        click.echo(f"{one}={address}")


def _changed(cell: Cell, addresses: Mapping[int, str], removed: Sequence[int]) -> Cell:
    """Return CELL with ADDRESSES, and without REMOVED. Raises ConfigError if one of these is needed."""
    for one in removed:
        if one not in cell.replicas:
            known = ", ".join(map(str, sorted(cell.replicas)))
            raise ConfigError(
                f"--remove {one}: the set has the replicas {known}, and no {one}",
                field="--remove",
                value=one,
            )
        if one in cell.in_sync:
            raise ConfigError(
                f"--remove {one}: it is in sync, and what is acknowledged rests on it: stop it first, and wait until "
                "`pocketmq cluster status` says that it is not",
                field="--remove",
                value=one,
            )
    left = {one: at for one, at in cell.replicas.items() if one not in removed} | dict(addresses)
    owners: dict[str, int] = {}
    for one, address in sorted(left.items()):
        if (other := owners.setdefault(address, one)) != one:
            raise ConfigError(
                f"replicas {other} and {one} would both be at {address}: give each an address of its own",
                field="replicas",
                value=address,
            )
    return replace(cell, replicas=dict(sorted(left.items())))


def _parsed(name: str, words: Sequence[str]) -> dict[int, str]:
    """Return the addresses by id in WORDS, "ID=HOST:PORT" each. Raises UsageError, ConfigError."""
    addresses: dict[int, str] = {}
    for word in words:
        key, _, address = word.partition("=")
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and address):
            raise click.UsageError(
                f"{word}: write a replica as ID=HOST:PORT, as in 1=10.0.0.1:8082."
            )
        if int(key) in addresses or address in addresses.values():
            raise click.UsageError(f"{word}: each replica has an id and an address of its own.")
        addresses[int(key)] = address
    try:
        render_cell(Cell(epoch=0, master=0, in_sync=frozenset(), replicas=addresses))
    except ConfigError as error:
        raise click.UsageError(
            str(error).partition(";")[0].replace("the cell to write", name)
        ) from None
    return addresses


def _there_already(name: str, cell: Cell) -> CellChanged:
    return CellChanged(
        f"replica set {name!r} is there already, in epoch {cell.epoch}, with the replicas "
        f"{', '.join(map(str, sorted(cell.replicas)))}: see `pocketmq cluster status {name}`",
        set=name,
    )


def _logs(
    told: Mapping[int, pb.ReplicaStatusReply | PocketMQError], cluster: str, name: str
) -> dict[int, pb.ReplicaStatusReply]:
    """Return what those said who answered. Raises ConfigError if one is another replica than it should be."""
    logs = {one: said for one, said in told.items() if not isinstance(said, PocketMQError)}
    for one, said in logs.items():
        if (said.cluster, said.set, said.replica_id) != (cluster, name, one):
            raise ConfigError(
                f"what was given as replica {one} of {name!r} in {cluster!r} is replica {said.replica_id} of "
                f"{said.set!r} in {said.cluster!r}: correct its address",
                field="replica",
                value=one,
            )
    return logs


def _first(
    addresses: Mapping[int, str], logs: Mapping[int, pb.ReplicaStatusReply], source: int | None
) -> Cell:
    """Return the record of a set in which nobody is master yet. Raises ConfigError if --from has to be said."""
    used = [one for one, said in logs.items() if said.epoch or said.end]
    if used and source is None:
        have = "; ".join(_has(one, logs[one]) for one in used)
        raise ConfigError(
            f"there are logs already ({have}): say with --from whose log goes on",
            field="--from",
        )
    epoch = max((said.epoch for said in logs.values()), default=0)
    return Cell(
        epoch=epoch + 1 if epoch else 0,
        master=0,
        in_sync=frozenset(addresses) if source is None else frozenset({source}),
        replicas=addresses,
    )


def _confirm(
    told: Mapping[int, pb.ReplicaStatusReply | PocketMQError], source: int, *, yes: bool
) -> None:
    """Say on standard error what each replica has, and ask; raise click.Abort at a no."""
    for one, said in sorted(told.items()):
        if isinstance(said, PocketMQError):
            click.echo(
                f"replica {one} does not answer, what it has is unknown: {said.message}", err=True
            )
        else:
            click.echo(f"replica {_has(one, said)}", err=True)
    click.echo(
        f"The log of replica {source} goes on; what only others have is set aside.", err=True
    )
    if not yes:
        click.confirm("Go on?", abort=True, err=True)


def _has(replica_id: int, said: pb.ReplicaStatusReply) -> str:
    return f"{replica_id} has {said.end:,} bytes, {said.confirm:,} of them confirmed, in epoch {said.epoch}"
