"""Replica sets as ZooKeeper has them, and what each replica says of itself at its replication port.

`pocketmq cluster init` and `replicas`: the record of a replica set, made anew after a loss too, and who is in it.

`pocketmq cluster status`: replica sets, as ZooKeeper has them and as their replicas say.

`pocketmq cluster move` and `elect`: another master, by a hand-over that loses nothing, or by accepting a loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ... import __version__
from ...broker.ports.certificates import replica_certificate
from ...broker.replication.registry import (
    Cell,
    EndMark,
    LiveNode,
    VersionedCell,
    VersionedEndMark,
    render_cell,
)
from ...broker.replication.zookeeper import ZooKeeperRegistry, ZooKeeperSession, set_names
from ...broker.replication.zookeeper_access import OPEN_TO_ALL, ZooKeeperAccess
from ...client.connections import GrpcConnections
from ...proto.clock import SystemClock
from ...proto.errors import ConfigError, MasterFenced, MetadataConflict, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import connect
from ...proto.time_text import parse_duration
from ...store.os_disk import OsDisk
from ..counted import counted
from ..options import COUNT, WAIT_MAX_MS, json_option, with_options, yes_option
from ..output import print_json, print_table
from ..settings import load_settings

ZOOKEEPER_VARIABLE: Final = "POCKETMQ_ZOOKEEPER"
_REPLICATION: Final = "/pocketmq.v1.Replication/"
_STATUS_MS: Final = 2_000
#: A hand-over is given so much more than it was told to take.
_GRACE_MS: Final = 2_000
_SESSION_MS: Final = 10_000
_WAIT_MS: Final = 5_000


#: ZooKeeper, the cluster of a set, and the certificates of its replicas.
registry_options = with_options(
    click.option(
        "--zookeeper",
        metavar="HOST:PORT[,…]",
        envvar=ZOOKEEPER_VARIABLE,
        default="127.0.0.1:2181",
        show_default=True,
        show_envvar=True,
        help="ZooKeeper servers of the replica sets.",
    ),
    click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A replica's configuration file: its certificate and its ZooKeeper account are used.",
    ),
    click.option(
        "--cluster",
        "cluster_name",
        default="DefaultCluster",
        show_default=True,
        help="The brokers' setting broker.cluster.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """A set as it was found."""

    cluster: str
    name: str
    #: None: there is no record, or one that cannot be understood, which `error` says.
    cell: Cell | None = None
    error: ConfigError | None = None
    live: Mapping[int, LiveNode] = field(default_factory=dict)
    #: How far acknowledged records reach; None: ZooKeeper has no mark.
    mark: EndMark | None = None
    #: What each replica of the record said, or why it did not.
    told: Mapping[int, pb.ReplicaStatusReply | PocketMQError] = field(default_factory=dict)
    #: Nodes in ZooKeeper that everyone may change, although the command has an account.
    open_nodes: Sequence[str] = ()

    def known(self) -> Cell:
        """Return the record. Raises ConfigError if there is none."""
        if self.error is not None:
            raise self.error
        if self.cell is None:
            raise ConfigError(
                f"cluster {self.cluster!r} has no replica set {self.name!r} in this ZooKeeper: check the names, or "
                f"make it with `pocketmq cluster init {self.name} 1=HOST:PORT …`",
                field="set",
                value=self.name,
            )
        return self.cell

    def address(self, replica_id: int) -> str:
        """Return where others reach REPLICA_ID. Raises ConfigError if it is none of the set."""
        replicas = self.known().replicas
        if replica_id not in replicas:
            raise ConfigError(
                f"replica set {self.name!r} has the replicas {', '.join(map(str, sorted(replicas)))}, not {replica_id}",
                field="replica",
                value=replica_id,
            )
        return replicas[replica_id]


class ReplicaSets:
    """The sets of CLUSTER in a session with ZooKeeper, and their replicas; see `opened`."""

    def __init__(
        self, session: ZooKeeperSession, connections: GrpcConnections, cluster: str
    ) -> None:
        self._session = session
        self._connections = connections
        self._cluster = cluster

    async def names(self) -> list[str]:
        """Return the names of all sets."""
        return await set_names(self._session, self._cluster)

    def registry(self, name: str) -> ZooKeeperRegistry:
        """Return the registry of the set NAME."""
        return ZooKeeperRegistry(self._session, self._cluster, name)

    async def look(self, name: str) -> ReplicaSet:
        """Return the set NAME, with what its replicas say. Raises RegistryUnavailable."""
        registry = self.registry(name)
        live = await registry.live()
        try:
            found = await registry.read()
        except ConfigError as error:
            return ReplicaSet(cluster=self._cluster, name=name, error=error, live=live)
        if found is None:
            return ReplicaSet(cluster=self._cluster, name=name, live=live)
        mark = await registry.read_mark()
        told = await self.ask(found.cell.replicas)
        return ReplicaSet(
            cluster=self._cluster,
            name=name,
            cell=found.cell,
            live=live,
            mark=mark.mark if mark else None,
            told=told,
            open_nodes=await registry.open_nodes() if self._session.access.auth else (),
        )

    async def ask(
        self, addresses: Mapping[int, str]
    ) -> dict[int, pb.ReplicaStatusReply | PocketMQError]:
        """Return what the replicas at ADDRESSES say of themselves, or why they do not."""

        request = pb.ReplicaStatusRequest()

        async def one(address: str) -> pb.ReplicaStatusReply | PocketMQError:
            try:
                return await self._connections.to(address).call(
                    f"{_REPLICATION}Status", request, pb.ReplicaStatusReply, _STATUS_MS
                )
            except PocketMQError as error:
                return error

        told = await asyncio.gather(*map(one, addresses.values()))
        return dict(zip(addresses, told, strict=True))

    async def move_master(self, address: str, request: pb.MoveMasterRequest) -> pb.MoveMasterReply:
        """Have the master at ADDRESS hand over.

        Raises MasterFenced if it is not the master, and what it refuses: the other one is not in sync, or too slow.
        """
        return await self._connections.to(address).call(
            f"{_REPLICATION}MoveMaster", request, pb.MoveMasterReply, request.timeout_ms + _GRACE_MS
        )

    async def accept_loss(self, address: str, request: pb.AcceptLossRequest) -> None:
        """Have the replica at ADDRESS stand though others may have more of the log."""
        await self._connections.to(address).call(
            f"{_REPLICATION}AcceptLoss", request, pb.AcceptLossReply, _STATUS_MS
        )


@asynccontextmanager
async def opened(
    zookeeper: str, cluster: str, config_file: Path | None = None
) -> AsyncIterator[ReplicaSets]:
    """The sets of CLUSTER, for one command. Raises RegistryUnavailable, ConfigError."""
    shown, access = None, OPEN_TO_ALL
    if config_file is not None:
        config = load_settings(config_file).replication
        shown, access = replica_certificate(config, OsDisk()), ZooKeeperAccess.of(config)
    tls = shown.client_context() if shown else None
    session = await ZooKeeperSession.open(
        zookeeper,
        session_ms=_SESSION_MS,
        now_ms=SystemClock().now_ms,
        wait_ms=_WAIT_MS,
        access=access,
    )
    connections = GrpcConnections(partial(connect, user_agent=f"pocketmq/{__version__}", tls=tls))
    try:
        yield ReplicaSets(session, connections, cluster)
    finally:
        await connections.close()
        await session.close()


# ---------------------------------------------------------------- `pocketmq cluster init` and `replicas`


#: How often a change is tried while the master changes the record, too.
_TRIES: Final = 20


@click.command()
@click.argument("name", metavar="SET")
@click.argument("replicas", metavar="ID=HOST:PORT…", nargs=-1, required=True)
@click.option(
    "--from",
    "source",
    type=COUNT,
    metavar="ID",
    help="Replica whose log the set continues, if replicas already have logs.",
)
@click.option("--if-missing", is_flag=True, help="Do nothing if the set has these replicas.")
@yes_option
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
        f"{name} of {cluster_name}: {counted(len(addresses), 'replica')}; once they run, {first} elected master."
        if not cell.master
        else f"{name} of {cluster_name} is there: epoch {cell.epoch}, master {cell.master}."
    )


async def _write(
    registry: ZooKeeperRegistry,
    cell: Cell,
    found: VersionedCell | None,
    mark: VersionedEndMark | None,
) -> None:
    """Write CELL in place of what was FOUND; before it the MARK, which would keep all replicas from being elected."""
    if mark is not None and mark.mark.end:
        await registry.write_mark(EndMark(accepted=cell.epoch + 1), mark.version)
    if found is None:
        await registry.create(cell)
    else:
        await registry.compare_and_set(cell, found.version)


@click.command()
@click.argument("name", metavar="SET")
@click.argument("given", metavar="[ID=HOST:PORT]…", nargs=-1)
@click.option(
    "--remove",
    "removed",
    type=COUNT,
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
                with suppress(MetadataConflict):
                    assert found is not None
                    await registry.compare_and_set(cell, found.version)
                    return cell
        raise MetadataConflict(
            f"replica set {name!r} changes all the time: try again later", set=name
        )

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
            str(error).partition(";")[0].replace("the metadata to write", name)
        ) from None
    return addresses


def _there_already(name: str, cell: Cell) -> MetadataConflict:
    return MetadataConflict(
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
    told: Mapping[int, pb.ReplicaStatusReply | PocketMQError],
    source: int,
    mark: EndMark,
    *,
    yes: bool,
) -> None:
    """Say on standard error what each replica has, and ask; raise click.Abort at a no."""
    for one, said in sorted(told.items()):
        if isinstance(said, PocketMQError):
            click.echo(
                f"replica {one} does not answer, what it has is unknown: {said.message}", err=True
            )
        else:
            click.echo(f"replica {_has(one, said)}", err=True)
    said = told[source]
    if not isinstance(said, PocketMQError):
        for line in _marked(mark, source, said):
            click.echo(line, err=True)
    click.echo(
        f"The log of replica {source} goes on; what only others have is set aside.", err=True
    )
    if not yes:
        click.confirm("Go on?", abort=True, err=True)


def _has(replica_id: int, said: pb.ReplicaStatusReply) -> str:
    return f"{replica_id} has {said.end:,} bytes, {said.confirm:,} of them confirmed, in epoch {said.epoch}"


# ---------------------------------------------------------------- `pocketmq cluster status`


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
@json_option("a set a line")
def status(
    name: str | None, *, zookeeper: str, cluster_name: str, config_file: Path | None, as_json: bool
) -> None:
    """Show SET, or all replica sets: the epoch, the master, who is in sync, and what each replica has.

    Positions are in bytes of the log: its end, how much of it is on the device, and how much consumers may see. It
    asks each replica at its replication port; one that does not answer from here is shown as ZooKeeper has it.
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
        return document | {"error": str(found.error or "there is no record of it")}
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
            f"{found.name} of {found.cluster}: {found.error or 'there is no record of it: `pocketmq cluster init`'}"
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
            f"Everyone may change {', '.join(found.open_nodes)} in ZooKeeper: set their ACLs (docs/replication.md)."
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
        where = "it runs, and does not answer from here" if live else "it does not run"
        return f"{where}: {told.message}"
    cell = found.cell
    if cell and cell.master == 0 and told.epoch > cell.epoch and cell.in_sync != {replica_id}:
        return f"later than the record: ZooKeeper lost its data; `pocketmq cluster init {found.name} … --from ID`"
    if told.refuses:
        return f"it does not follow: {told.refuses}"
    if told.unclean:
        why = told.unclean_reason or "it may lack what it once had"
        return f"unclean, it cannot be master: {why}"
    if not told.has_session:
        return "it has no session with ZooKeeper"
    if told.damaged:
        return f"{counted(told.damaged, 'damaged record')}, which other replicas are asked for"
    return (
        f"{counted(told.healed, 'damaged record')} replaced from other replicas"
        if told.healed
        else ""
    )


def _role(told: pb.ReplicaStatusReply) -> str:
    return _ROLES.get(told.role, "standing")


# ---------------------------------------------------------------- `pocketmq cluster move` and `elect`


@click.command()
@click.argument("name", metavar="SET")
@click.argument("replica", type=COUNT)
@click.option("--timeout", default="5s", show_default=True, help="Time limit of the replica.")
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
    timeout_ms = parse_duration(timeout, field="--timeout", max_ms=WAIT_MAX_MS)
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
    type=COUNT,
    metavar="REPLICA",
    required=True,
    help="Replica that becomes master, even if others have more records.",
)
@yes_option
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
    losses = [
        *_marked(found.mark or EndMark(), replica, said),
        *_losses(found, replica, said.end),
    ]
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
    """Raise MetadataConflict while a master runs, which is never unclean."""
    master = found.known().master
    node = found.live.get(master)
    if node is not None and not node.unclean:
        raise MetadataConflict(
            f"replica {master} is the master of {found.name!r}, and runs: to have another one, "
            f"`pocketmq cluster move {found.name} REPLICA` loses nothing",
            set=found.name,
        )


def _marked(mark: EndMark, replica: int, said: pb.ReplicaStatusReply) -> list[str]:
    """Return what acknowledged records REPLICA, which SAID this, lacks by the mark of the set: a sentence, or none."""
    if said.end >= mark.end and not said.unclean_reason:
        return []
    lacks = (
        f"Replica {replica} lacks the last {mark.end - said.end:,} bytes of them."
        if said.end < mark.end
        else f"Replica {replica} has other records there."
    )
    return [f"Acknowledged records reach {mark.end:,} in epoch {mark.epoch}. {lacks}"]


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
