"""`pocketmq replicas force-elect`: makes a replica the master although others may have more records."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ...broker.replication.registry import EndMark
from ...proto.errors import MetadataConflict, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..options import COUNT, json_option, yes_option
from ..output import print_json
from .options import registry_options
from .sets import ReplicaSet, missing_acknowledged, opened


@click.command()
@click.argument("name", metavar="SET")
@click.option(
    "--accept-loss",
    "replica",
    type=COUNT,
    metavar="REPLICA",
    required=True,
    help="Replica that becomes master, even if others have more records.",
)
@yes_option
@registry_options
@json_option("what may be lost")
def force_elect(
    name: str,
    *,
    replica: int,
    yes: bool,
    zookeeper: str,
    cluster_name: str,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Make a replica the master of SET, even if that loses records.

    Use it only if no replica with all acknowledged records will return. The command shows what may be lost, and asks.
    A replica that returns later follows the new master: it cuts its other records off and keeps them in a file, or
    moves its store to another folder.
    """

    async def look() -> ReplicaSet:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            return await sets.look(name)

    async def accept_loss() -> None:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            request = pb.AcceptLossRequest(set=name, replica_id=replica)
            await sets.accept_loss(found.address(replica), request)

    found = asyncio.run(look())
    found.address(replica)
    _check_no_master(found)
    said = found.told[replica]
    if isinstance(said, PocketMQError):
        raise said
    losses = [
        *missing_acknowledged(found.mark or EndMark(), replica, said),
        *_losses(found, replica, said.end),
    ]
    if not as_json:
        for loss in losses:
            click.echo(loss, err=True)
    if not yes:
        click.confirm(
            f"Make replica {replica} the master, and lose these records?", abort=True, err=True
        )
    asyncio.run(accept_loss())
    if as_json:
        print_json({"set": name, "replica": replica, "end": said.end, "may_be_lost": losses})
    else:
        click.echo(
            f"{name}: replica {replica} will become the master; check with `pocketmq replicas status {name}`"
        )


def _check_no_master(found: ReplicaSet) -> None:
    """Raise MetadataConflict while a master runs, which is never unclean."""
    master = found.known().master
    node = found.live.get(master)
    if node is not None and not node.unclean:
        raise MetadataConflict(
            f"replica {master} is the master of {found.name!r}, and runs. To change the master without loss, use "
            f"`pocketmq replicas transfer {found.name} REPLICA`.",
            set=found.name,
        )


def _losses(found: ReplicaSet, replica: int, end: int) -> list[str]:
    """Return what may be lost if REPLICA, whose log ends at END, becomes master, one sentence for each loss."""
    cell = found.known()
    losses = []
    if replica not in cell.in_sync:
        losses.append(f"Replica {replica} is not in sync: acknowledged messages may be lost.")
    for one in sorted(cell.replicas.keys() - {replica}):
        said = found.told[one]
        in_sync = "in sync" if one in cell.in_sync else "not in sync"
        if isinstance(said, PocketMQError):
            losses.append(
                f"Replica {one}, {in_sync}, does not answer: records that only it has are lost."
            )
        elif said.end > end:
            losses.append(
                f"Replica {one}, {in_sync}, has {said.end - end:,} bytes beyond the {end:,} of replica {replica}."
            )
    return losses or [
        f"No other replica is known to have more than replica {replica}: {end:,} bytes."
    ]
