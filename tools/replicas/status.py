"""`pocketmq replicas status`: replica sets, by their metadata in ZooKeeper and the answers of replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..counted import counted
from ..options import json_option
from ..output import print_json, print_table
from .options import registry_options
from .sets import ReplicaSet, opened

_TITLES: Final = (
    "replica", "role", "epoch", "end", "synced", "confirm", "in sync", "replication", "clients", "says",
)  # fmt: skip
_ROLES: Final = {
    pb.MASTER: "master",
    pb.FOLLOWER: "follower",
}


@click.command()
@click.argument("name", metavar="[SET]", required=False)
@registry_options
@json_option("one set per line")
def status(
    name: str | None, *, zookeeper: str, cluster_name: str, config_file: Path | None, as_json: bool
) -> None:
    """Show SET, or all replica sets.

    Prints the epoch, the master, the replicas in sync, and the log of each replica: its end, how much is on disk, and
    how much consumers may see, in bytes. The command asks each replica at its replication port. If a replica does not
    answer, its last values from ZooKeeper are shown.

    \b
    Example: pocketmq replicas status broker-a --zookeeper 10.0.0.9:2181
    """

    async def ask() -> list[ReplicaSet]:
        async with opened(zookeeper, cluster_name, config_file) as sets:
            names = [name] if name is not None else await sets.names()
            return [await sets.look(one) for one in names]

    found = asyncio.run(ask())
    if name is not None:
        found[0].known()
    for at, one in enumerate(found):
        if as_json:
            print_json(_status_document(one))
            continue
        if at:
            click.echo()
        _print(one)
    if not found and not as_json:
        click.echo(f"No replica set in cluster {cluster_name}.")


def _status_document(found: ReplicaSet) -> dict[str, Any]:
    cell = found.cell
    document: dict[str, Any] = {"cluster": found.cluster, "set": found.name}
    if cell is None:
        return document | {"error": str(found.error or "it has no metadata")}
    return document | {
        "open_nodes": list(found.open_nodes),
        "epoch": cell.epoch,
        "master": cell.master,
        "in_sync": sorted(cell.in_sync),
        "replicas": [
            _replica(found, one, address) for one, address in sorted(cell.replicas.items())
        ],
    }


def _replica(found: ReplicaSet, replica_id: int, address: str) -> dict[str, Any]:
    live, told = found.live.get(replica_id), found.told[replica_id]
    document: dict[str, Any] = {
        "replica": replica_id,
        "address": address,
        "clients": live.address if live else None,
        "live": live is not None,
    }
    if isinstance(told, PocketMQError):
        hints = {"epoch": live.epoch, "end": live.end, "unclean": live.unclean} if live else {}
        return document | hints | {"error": told.message}
    return document | {
        "role": _role(told),
        "epoch": told.epoch,
        "end": told.end,
        "synced": told.synced,
        "confirm": told.confirm,
        "unclean": told.unclean,
        "unclean_reason": told.unclean_reason or None,
        "refuses": told.refuses or None,
        "damaged": told.damaged,
        "healed": told.healed,
        "has_session": told.has_session,
        "error": None,
    }


def _print(found: ReplicaSet) -> None:
    cell = found.cell
    if cell is None:
        click.echo(
            f"{found.name} of {found.cluster}: {found.error or 'no metadata; create it with `pocketmq replicas init`'}"
        )
        return
    master = f"master {cell.master}" if cell.master else "no master yet"
    in_sync = ", ".join(map(str, sorted(cell.in_sync)))
    counted = f"({len(cell.in_sync)} of {len(cell.replicas)})"
    click.echo(
        f"{found.name} of {found.cluster}: epoch {cell.epoch}, {master}, in sync {in_sync} {counted}"
    )
    print_table(_TITLES, [_row(found, one) for one in sorted(cell.replicas)])
    if found.open_nodes:
        click.echo(
            f"Everyone may change {', '.join(found.open_nodes)} in ZooKeeper: set their ACLs (docs/zookeeper.md)."
        )


def _row(found: ReplicaSet, replica_id: int) -> list[object]:
    assert found.cell is not None
    live, told = found.live.get(replica_id), found.told[replica_id]
    figures: list[object] = ["-"] * 5
    if not isinstance(told, PocketMQError):
        figures = [
            _role(told),
            told.epoch,
            f"{told.end:,}",
            f"{told.synced:,}",
            f"{told.confirm:,}",
        ]
    elif live is not None:
        figures = ["-", live.epoch, f"{live.end:,}", "-", "-"]
    return [
        replica_id,
        *figures,
        "yes" if replica_id in found.cell.in_sync else "no",
        found.cell.replicas[replica_id],
        live.address if live else "-",
        _remark(found, replica_id),
    ]


def _remark(found: ReplicaSet, replica_id: int) -> str:
    live, told = found.live.get(replica_id), found.told[replica_id]
    if isinstance(told, PocketMQError):
        where = "it runs, but does not answer this machine" if live else "it does not run"
        return f"{where}: {told.message}"
    cell = found.cell
    if cell and cell.master == 0 and told.epoch > cell.epoch and cell.in_sync != {replica_id}:
        return f"later epoch than ZooKeeper, which lost data: `pocketmq replicas init {found.name} … --seed-from ID`"
    if told.refuses:
        return f"it does not follow: {told.refuses}"
    if told.unclean:
        why = told.unclean_reason or "it may lack acknowledged records"
        return f"unclean, it cannot be master: {why}"
    if not told.has_session:
        return "it has no session with ZooKeeper"
    if told.damaged:
        return f"{counted(told.damaged, 'damaged record')}, being replaced from other replicas"
    return (
        f"{counted(told.healed, 'damaged record')} replaced from other replicas"
        if told.healed
        else ""
    )


def _role(told: pb.ReplicaStatusReply) -> str:
    return _ROLES.get(told.role, "standing")
