"""`pocketmq replicas init`: creates the metadata of a replica set in ZooKeeper, also after ZooKeeper lost it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from ...broker.replication.registry import EndMark, ReplicaSetState, VersionedCell, VersionedEndMark
from ...broker.replication.zookeeper import ZooKeeperRegistry
from ...proto.errors import ConfigError, MetadataConflict, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..counted import counted
from ..options import COUNT, json_option, yes_option
from ..output import print_json
from .options import registry_options
from .sets import missing_acknowledged, opened, parse_replicas


@click.command()
@click.argument("name", metavar="SET")
@click.argument("replicas", metavar="ID=HOST:PORT…", nargs=-1, required=True)
@click.option(
    "--seed-from",
    "source",
    type=COUNT,
    metavar="ID",
    help="Replica whose log the set continues, if replicas already have logs.",
)
@click.option(
    "--if-missing",
    is_flag=True,
    help="Succeed if the set exists with these replicas; do not change it.",
)
@yes_option
@registry_options
@json_option("the metadata")
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
    """Create the metadata of a replica set in ZooKeeper.

    ID=HOST:PORT is the number of a replica, and its address for the other replicas. Run the command once, before the
    replicas start. It never overwrites the metadata of a set that has had a master.

    If ZooKeeper has lost its data, or if a broker with a log becomes a replica, --seed-from names the replica whose log
    the set continues. The others follow it; records that only they have are moved to a file or folder. First start all
    replicas that you can: the new metadata gets a later epoch than any of them has seen.

    \b
    Example: pocketmq replicas init broker-a 1=10.0.0.1:8082 2=10.0.0.2:8082 3=10.0.0.3:8082

    Exit code 5: the set exists already.
    """
    addresses = parse_replicas(name, replicas)
    if source is not None and source not in addresses:
        raise click.UsageError(f"--seed-from {source}: give the ID of one of the replicas.")

    async def make() -> ReplicaSetState:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            registry = sets.registry(name)
            found = await registry.read()
            if found is not None:
                if flags["if_missing"] and found.cell.replicas == addresses:
                    return found.cell
                if found.cell.master:
                    raise _exists(name, found.cell)
            told = await sets.ask(addresses)
            cell = _first(addresses, _logs(told, cluster_name, name), source)
            mark = await registry.read_mark()
            if source is not None:
                _confirm(told, source, mark.mark if mark else EndMark(), yes=flags["yes"])
            if found is not None:
                cell = replace(cell, epoch=max(cell.epoch, found.cell.epoch))
            await _write(registry, cell, found, mark)
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
        f"{name} of {cluster_name}: {counted(len(addresses), 'replica')}; when they run, {first} elected master."
        if not cell.master
        else f"{name} of {cluster_name} exists: epoch {cell.epoch}, master {cell.master}."
    )


async def _write(
    registry: ZooKeeperRegistry,
    cell: ReplicaSetState,
    found: VersionedCell | None,
    mark: VersionedEndMark | None,
) -> None:
    """Write CELL in place of FOUND. First lower the MARK, which would prevent an election."""
    if mark is not None and mark.mark.end:
        await registry.write_mark(EndMark(accepted=cell.epoch + 1), mark.version)
    if found is None:
        await registry.create(cell)
    else:
        await registry.compare_and_set(cell, found.version)


def _exists(name: str, cell: ReplicaSetState) -> MetadataConflict:
    return MetadataConflict(
        f"replica set {name!r} exists already, in epoch {cell.epoch}, with the replicas "
        f"{', '.join(map(str, sorted(cell.replicas)))}: see `pocketmq replicas status {name}`",
        set=name,
    )


def _logs(
    told: Mapping[int, pb.ReplicaStatusReply | PocketMQError], cluster: str, name: str
) -> dict[int, pb.ReplicaStatusReply]:
    """Return the answers. Raises ConfigError if another replica answers at an address."""
    logs = {one: said for one, said in told.items() if not isinstance(said, PocketMQError)}
    for one, said in logs.items():
        if (said.cluster, said.set, said.replica_id) != (cluster, name, one):
            raise ConfigError(
                f"the address of replica {one} of {name!r} in {cluster!r} belongs to replica {said.replica_id} of "
                f"{said.set!r} in {said.cluster!r}: correct it",
                field="replica",
                value=one,
            )
    return logs


def _first(
    addresses: Mapping[int, str], logs: Mapping[int, pb.ReplicaStatusReply], source: int | None
) -> ReplicaSetState:
    """Return the metadata of a set without a master. Raises ConfigError if --seed-from is required."""
    used = [one for one, said in logs.items() if said.epoch or said.end]
    if used and source is None:
        have = "; ".join(_has(one, logs[one]) for one in used)
        raise ConfigError(
            f"replicas have logs already ({have}). Give --seed-from with the replica whose log continues",
            field="--seed-from",
        )
    epoch = max((said.epoch for said in logs.values()), default=0)
    return ReplicaSetState(
        epoch=epoch + 1 if epoch else 0,
        master=0,
        in_sync=frozenset(addresses) if source is None else frozenset({source}),
        replicas=addresses,
    )


def _confirm(
    told: Mapping[int, pb.ReplicaStatusReply | PocketMQError],
    source: int,
    mark: EndMark,
    *,
    yes: bool,
) -> None:
    """Print the log of each replica on standard error, and ask. Raises click.Abort if the answer is no."""
    for one, said in sorted(told.items()):
        if isinstance(said, PocketMQError):
            click.echo(
                f"replica {one} does not answer, its log is unknown: {said.message}", err=True
            )
        else:
            click.echo(f"replica {_has(one, said)}", err=True)
    said = told[source]
    if not isinstance(said, PocketMQError):
        for line in missing_acknowledged(mark, source, said):
            click.echo(line, err=True)
    click.echo(
        f"The log of replica {source} continues. Records that only others have are moved away.",
        err=True,
    )
    if not yes:
        click.confirm("Continue?", abort=True, err=True)


def _has(replica_id: int, said: pb.ReplicaStatusReply) -> str:
    return f"{replica_id} has {said.end:,} bytes, {said.confirm:,} of them confirmed, in epoch {said.epoch}"
