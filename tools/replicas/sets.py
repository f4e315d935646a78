"""Replica sets: their metadata in ZooKeeper, and the answers of replicas at their replication ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import click

from ... import __version__
from ...broker.ports.certificates import replica_certificate
from ...broker.replication.registry import EndMark, LiveNode, ReplicaSetState
from ...broker.replication.registry_format import render_cell
from ...broker.replication.zookeeper import ZooKeeperRegistry, ZooKeeperSession, set_names
from ...broker.replication.zookeeper_access import OPEN_TO_ALL, ZooKeeperAccess
from ...client.connections import GrpcConnections
from ...proto.clock import SystemClock
from ...proto.errors import ConfigError, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import connect
from ...store.os_disk import OsDisk
from ..settings import load_settings

_REPLICATION: Final = "/pocketmq.v1.Replication/"
_STATUS_MS: Final = 2_000
#: Added to the time limit of a transfer.
_GRACE_MS: Final = 2_000
_SESSION_MS: Final = 10_000
_WAIT_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """The state of a replica set."""

    cluster: str
    name: str
    #: None: there is no metadata, or `error` says why it cannot be parsed.
    cell: ReplicaSetState | None = None
    error: ConfigError | None = None
    live: Mapping[int, LiveNode] = field(default_factory=dict)
    #: End of the acknowledged records; None: ZooKeeper has no mark.
    mark: EndMark | None = None
    #: The answer of each replica, or the error.
    told: Mapping[int, pb.ReplicaStatusReply | PocketMQError] = field(default_factory=dict)
    #: Nodes in ZooKeeper that everyone can change although the command has an account.
    open_nodes: Sequence[str] = ()

    def known(self) -> ReplicaSetState:
        """Return the metadata. Raises ConfigError if there is none."""
        if self.error is not None:
            raise self.error
        if self.cell is None:
            raise ConfigError(
                f"cluster {self.cluster!r} has no replica set {self.name!r} in this ZooKeeper. Check the names, or "
                f"create it with `pocketmq replicas init {self.name} 1=HOST:PORT …`",
                field="set",
                value=self.name,
            )
        return self.cell

    def address(self, replica_id: int) -> str:
        """Return the address of REPLICA_ID. Raises ConfigError if it is not in the set."""
        replicas = self.known().replicas
        if replica_id not in replicas:
            raise ConfigError(
                f"replica set {self.name!r} has the replicas {', '.join(map(str, sorted(replicas)))}, not {replica_id}",
                field="replica",
                value=replica_id,
            )
        return replicas[replica_id]


class ReplicaSets:
    """The replica sets of CLUSTER, over a session with ZooKeeper. Use `opened`."""

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
        """Return the client for the metadata of the set NAME."""
        return ZooKeeperRegistry(self._session, self._cluster, name)

    async def look(self, name: str) -> ReplicaSet:
        """Return the state of the set NAME. Raises RegistryUnavailable."""
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
        """Return the answers of the replicas at ADDRESSES, or errors."""

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
        """Let the master at ADDRESS transfer its leadership.

        Raises MasterFenced if it is not the master, and other errors if the new one is not in sync or too slow.
        """
        return await self._connections.to(address).call(
            f"{_REPLICATION}MoveMaster", request, pb.MoveMasterReply, request.timeout_ms + _GRACE_MS
        )

    async def accept_loss(self, address: str, request: pb.AcceptLossRequest) -> None:
        """Let the replica at ADDRESS become master, even if others have more of the log."""
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


def parse_replicas(name: str, words: Sequence[str]) -> dict[int, str]:
    """Return the addresses by id in WORDS, "ID=HOST:PORT" each. Raises UsageError, ConfigError."""
    addresses: dict[int, str] = {}
    for word in words:
        key, _, address = word.partition("=")
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and address):
            raise click.UsageError(
                f"{word}: write a replica as ID=HOST:PORT, such as 1=10.0.0.1:8082."
            )
        if int(key) in addresses or address in addresses.values():
            raise click.UsageError(f"{word}: each replica has an id and an address of its own.")
        addresses[int(key)] = address
    try:
        render_cell(ReplicaSetState(epoch=0, master=0, in_sync=frozenset(), replicas=addresses))
    except ConfigError as error:
        raise click.UsageError(
            str(error).partition(";")[0].replace("the metadata to write", name)
        ) from None
    return addresses


def missing_acknowledged(mark: EndMark, replica: int, said: pb.ReplicaStatusReply) -> list[str]:
    """Return a sentence about the acknowledged records that REPLICA lacks by the mark of the set, or nothing."""
    if said.end >= mark.end and not said.unclean_reason:
        return []
    lacks = (
        f"Replica {replica} lacks the last {mark.end - said.end:,} bytes of them."
        if said.end < mark.end
        else f"Replica {replica} has other records there."
    )
    return [f"Acknowledged records reach {mark.end:,} in epoch {mark.epoch}. {lacks}"]
