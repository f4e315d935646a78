"""Replica sets as ZooKeeper has them, and what each replica says of itself at its replication port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ... import __version__
from ...broker.ports.certificates import replica_certificate
from ...broker.replication.registry import Cell, LiveNode
from ...broker.replication.zookeeper import ZooKeeperRegistry, ZooKeeperSession, set_names
from ...client.connections import GrpcConnections
from ...proto.clock import SystemClock
from ...proto.errors import ConfigError, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import connect
from ...store.os_disk import OsDisk
from ..settings import load_settings

Function = TypeVar("Function", bound=Callable[..., Any])

ZOOKEEPER_VARIABLE: Final = "POCKETMQ_ZOOKEEPER"
_REPLICATION: Final = "/pocketmq.v1.Replication/"
_STATUS_MS: Final = 2_000
#: A hand-over is given so much more than it was told to take.
_GRACE_MS: Final = 2_000
_SESSION_MS: Final = 10_000
_WAIT_MS: Final = 5_000


def registry_options(function: Function) -> Function:
    """Add --zookeeper and --cluster: where the record of a set is; and --config, for its replicas' certificates."""
    options = [
        click.option(
            "--zookeeper",
            metavar="HOST:PORT[,…]",
            envvar=ZOOKEEPER_VARIABLE,
            default="127.0.0.1:2181",
            show_default=True,
            show_envvar=True,
            help="The ZooKeeper that the replicas were given.",
        ),
        click.option(
            "--config",
            "config_file",
            metavar="FILE",
            type=click.Path(path_type=Path, dir_okay=False),
            help="A replica's configuration file, where replicas ask for certificates: what it shows is shown.",
        ),
        click.option(
            "--cluster",
            "cluster_name",
            default="DefaultCluster",
            show_default=True,
            help="The brokers' setting broker.cluster.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """A set as it was found."""

    cluster: str
    name: str
    #: None: there is no record, or one that cannot be understood, which `error` says.
    cell: Cell | None = None
    error: ConfigError | None = None
    live: Mapping[int, LiveNode] = field(default_factory=dict)
    #: What each replica of the record said, or why it did not.
    told: Mapping[int, pb.ReplicaStatusReply | PocketMQError] = field(default_factory=dict)

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
        told = await self.ask(found.cell.replicas)
        return ReplicaSet(cluster=self._cluster, name=name, cell=found.cell, live=live, told=told)

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
    shown = None
    if config_file is not None:
        shown = replica_certificate(load_settings(config_file).replication, OsDisk())
    tls = shown.client_context() if shown else None
    session = await ZooKeeperSession.open(
        zookeeper, session_ms=_SESSION_MS, now_ms=SystemClock().now_ms, wait_ms=_WAIT_MS
    )
    connections = GrpcConnections(partial(connect, user_agent=f"pocketmq/{__version__}", tls=tls))
    try:
        yield ReplicaSets(session, connections, cluster)
    finally:
        await connections.close()
        await session.close()
