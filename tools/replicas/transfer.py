"""`pocketmq replicas transfer`: a planned change of master, without loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ...proto.errors import MasterFenced
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.time_text import parse_duration
from ..options import COUNT, WAIT_MAX_MS, json_option
from ..output import print_json
from .options import registry_options
from .sets import opened


@click.command()
@click.argument("name", metavar="SET")
@click.argument("replica", type=COUNT)
@click.option(
    "--timeout",
    metavar="5s",
    default="5s",
    show_default=True,
    help="Time in which the replica must have all records.",
)
@registry_options
@json_option("what was done")
def transfer(
    name: str,
    replica: int,
    *,
    timeout: str,
    zookeeper: str,
    cluster_name: str,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Make REPLICA, which is in sync, the master of SET.

    Nothing is lost, and sends wait for about 0.1 s. If REPLICA does not have all records in time, the old master
    continues, and the command fails.

    \b
    Example: pocketmq replicas transfer broker-a 2
    """
    timeout_ms = parse_duration(timeout, field="--timeout", max_ms=WAIT_MAX_MS)
    if not timeout_ms:
        raise click.UsageError(f"--timeout {timeout} is too short: give 1ms or more.")

    async def change_master() -> tuple[int, int, int]:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            found = await sets.look(name)
            cell = found.known()
            found.address(replica)
            if cell.master == replica:
                return cell.master, cell.epoch, 0
            if not cell.master:
                raise MasterFenced(
                    f"replica set {name!r} has no master: see `pocketmq replicas status {name}`"
                )
            request = pb.MoveMasterRequest(set=name, to=replica, timeout_ms=timeout_ms)
            done = await sets.move_master(found.address(cell.master), request)
            return cell.master, done.epoch, done.refused_ms

    before, epoch, refused_ms = asyncio.run(change_master())
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
        click.echo(f"{name}: replica {replica} is already the master, in epoch {epoch}.")
    else:
        click.echo(
            f"{name}: replica {replica} is the master in place of replica {before}; sends were refused for"
            f" {refused_ms} ms."
        )
