"""`pocketmq cluster move` and `elect`: another master, by a hand-over that loses nothing, or by accepting a loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ...proto.duration import parse_duration
from ...proto.errors import CellChanged, MasterFenced, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..options import json_option
from ..output import print_json
from .sets import ReplicaSet, opened, registry_options


@click.command()
@click.argument("name", metavar="SET")
@click.argument("replica", type=click.IntRange(1))
@click.option(
    "--timeout", default="5s", show_default=True, help="How long the replica may take to have all."
)
@registry_options
@json_option("what was done")
def move(
    name: str,
    replica: int,
    *,
    timeout: str,
    zookeeper: str,
    cluster_name: str,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Have the master of SET hand over to REPLICA, which is in sync: nothing is lost, and sends wait some 0.1 s.

    If REPLICA does not have all in time, the old master goes on, and this fails.
    """
    timeout_ms = parse_duration(timeout, field="--timeout")
    if not timeout_ms:
        raise click.UsageError(f"--timeout {timeout}: it is 1ms at least.")

    async def hand_over() -> tuple[int, int, int]:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            found = await sets.look(name)
            cell = found.known()
            found.address(replica)
            if cell.master == replica:
                return cell.master, cell.epoch, 0
            if not cell.master:
                raise MasterFenced(
                    f"replica set {name!r} has no master to hand over: see `pocketmq cluster status {name}`"
                )
            request = pb.MoveMasterRequest(set=name, to=replica, timeout_ms=timeout_ms)
            done = await sets.move_master(found.address(cell.master), request)
            return cell.master, done.epoch, done.refused_ms

    before, epoch, refused_ms = asyncio.run(hand_over())
    if as_json:
        print_json(
            {
                "set": name,
                "before": before,
                "master": replica,
                "epoch": epoch,
                "refused_ms": refused_ms,
            }
        )
    elif before == replica:
        click.echo(f"{name}: replica {replica} is the master already, in epoch {epoch}.")
    else:
        click.echo(
            f"{name}: replica {before} has handed over to replica {replica}; sends were refused for {refused_ms} ms."
        )


@click.command()
@click.argument("name", metavar="SET")
@click.option(
    "--accept-loss",
    "replica",
    type=click.IntRange(1),
    metavar="REPLICA",
    required=True,
    help="The replica that becomes master, whatever others have beyond it.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@registry_options
@json_option("what may be lost")
def elect(
    name: str,
    *,
    replica: int,
    yes: bool,
    zookeeper: str,
    cluster_name: str,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Have a replica stand for master of SET though others may have more of the log: what only they have is lost.

    For when no replica that has all that was acknowledged comes back. One that comes back later follows: what it has
    beyond is cut off and kept beside, or its store is set aside.
    """

    async def look() -> ReplicaSet:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            return await sets.look(name)

    async def stand() -> None:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            request = pb.AcceptLossRequest(set=name, replica_id=replica)
            await sets.accept_loss(found.address(replica), request)

    found = asyncio.run(look())
    found.address(replica)
    _check_no_master(found)
    said = found.told[replica]
    if isinstance(said, PocketMQError):
        raise said
    losses = _losses(found, replica, said.end)
    if not as_json:
        for loss in losses:
            click.echo(loss, err=True)
    if not yes:
        click.confirm(f"Have replica {replica} stand all the same?", abort=True, err=True)
    asyncio.run(stand())
    if as_json:
        print_json({"set": name, "replica": replica, "end": said.end, "may_be_lost": losses})
    else:
        click.echo(
            f"{name}: replica {replica} stands; `pocketmq cluster status {name}` shows the outcome."
        )


def _check_no_master(found: ReplicaSet) -> None:
    """Raise CellChanged while a master runs, which is never unclean."""
    master = found.known().master
    node = found.live.get(master)
    if node is not None and not node.unclean:
        raise CellChanged(
            f"replica {master} is the master of {found.name!r}, and runs: to have another one, "
            f"`pocketmq cluster move {found.name} REPLICA` loses nothing",
            set=found.name,
        )


def _losses(found: ReplicaSet, replica: int, end: int) -> list[str]:
    """Return what may be lost if REPLICA, whose log ends at END, becomes master: a sentence each."""
    cell = found.known()
    losses = []
    if replica not in cell.in_sync:
        losses.append(f"Replica {replica} is not in sync: acknowledged messages may be lost.")
    for one in sorted(cell.replicas.keys() - {replica}):
        said = found.told[one]
        in_sync = "in sync" if one in cell.in_sync else "not in sync"
        if isinstance(said, PocketMQError):
            losses.append(
                f"Replica {one}, {in_sync}, does not answer: what only it has is lost, and not known."
            )
        elif said.end > end:
            losses.append(
                f"Replica {one}, {in_sync}, has {said.end - end:,} bytes beyond the {end:,} of replica {replica}."
            )
    return losses or [
        f"No other replica is known to have more than replica {replica}: {end:,} bytes."
    ]
