"""`pocketmq replicas change`: adds replicas to a set, changes their addresses, or removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from ...broker.replication.registry import ReplicaSetState
from ...proto.errors import ConfigError, MetadataConflict
from ..options import COUNT, json_option
from ..output import print_json
from .options import registry_options
from .sets import ReplicaSet, opened, parse_replicas

#: Limit of tries: the master changes the metadata, too.
_TRIES: Final = 20


@click.command()
@click.argument("name", metavar="SET")
@click.argument("given", metavar="[ID=HOST:PORT]…", nargs=-1)
@click.option(
    "--remove",
    "removed",
    type=COUNT,
    metavar="ID",
    multiple=True,
    help="Replica to remove. It must be stopped and not in sync. Repeatable.",
)
@registry_options
@json_option("the replicas of the set")
def change(
    name: str,
    given: Sequence[str],
    *,
    removed: Sequence[int],
    zookeeper: str,
    cluster_name: str,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Add replicas to a set, change their addresses, or remove them.

    The set serves meanwhile. A new replica starts with an empty store, follows the master, and is in sync when it has
    the complete log. Prints the replicas of the set.

    \b
    Example: pocketmq replicas change broker-a 4=10.0.0.4:8082 --remove 3
    """
    addresses = parse_replicas(name, given)
    if not addresses and not removed:
        raise click.UsageError("Give ID=HOST:PORT, or --remove ID.")
    if both := addresses.keys() & set(removed):
        raise click.UsageError(
            f"--remove {min(both)}: the replica has an address as well. Give only one."
        )

    async def write() -> ReplicaSetState:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            registry = sets.registry(name)
            for _ in range(_TRIES):
                found = await registry.read()
                cell = _changed(
                    ReplicaSet(cluster=cluster_name, name=name, cell=found and found.cell).known(),
                    addresses,
                    removed,
                )
                with suppress(MetadataConflict):
                    assert found is not None
                    await registry.compare_and_set(cell, found.version)
                    return cell
        raise MetadataConflict(
            f"the metadata of replica set {name!r} changes all the time. Try again later", set=name
        )

    cell = asyncio.run(write())
    if as_json:
        print_json({"set": name, "replicas": {str(one): at for one, at in cell.replicas.items()}})
        return
    for one, address in cell.replicas.items():
        click.echo(f"{one}={address}")


def _changed(
    cell: ReplicaSetState, addresses: Mapping[int, str], removed: Sequence[int]
) -> ReplicaSetState:
    """Return CELL with ADDRESSES, and without REMOVED. Raises ConfigError if one of these is needed."""
    for one in removed:
        if one not in cell.replicas:
            known = ", ".join(map(str, sorted(cell.replicas)))
            raise ConfigError(
                f"--remove {one}: the set has only the replicas {known}",
                field="--remove",
                value=one,
            )
        if one in cell.in_sync:
            raise ConfigError(
                f"--remove {one}: the replica is in sync, and counts for acknowledgements. Stop it first, and wait"
                " until `pocketmq replicas status` shows that it is not in sync",
                field="--remove",
                value=one,
            )
    left = {one: at for one, at in cell.replicas.items() if one not in removed} | dict(addresses)
    owners: dict[str, int] = {}
    for one, address in sorted(left.items()):
        if (other := owners.setdefault(address, one)) != one:
            raise ConfigError(
                f"replicas {other} and {one} would both have the address {address}: give each its own",
                field="replicas",
                value=address,
            )
    return replace(cell, replicas=dict(sorted(left.items())))
