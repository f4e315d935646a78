"""A replica set that serves clients, in one process: replicas, brokers, a name server, and a registry in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from pocketmq.broker.broker import Broker, Network
from pocketmq.broker.ports.certificates import Certificates
from pocketmq.broker.ports.client_port import ClientPort
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.clock import SystemClock
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.serve_replica import ReplicaRoles

from ..broker.replication.replica_set import AppendingRoles, Member, ReplicaSet
from ..free_ports import free_ports
from ..served import broker_config, nameserver_config
from ..waiting import until


class ServedRoles(ReplicaRoles):
    """Those of the real process, as a member of a set in one process asks for them."""

    @property
    def store(self) -> MessageStore | None:
        """The store of a broker that serves as master."""
        serves = self.broker is not None and self.broker._running is not None
        return self.broker.store if serves and self.broker else None


class ServedMember(Member):
    """One replica, its broker while it is master, and the port of both."""

    def __init__(self, world: ServedSet, replica_id: int, path: Path, port: int) -> None:
        super().__init__(world, replica_id, path, port)
        self._served_by = world
        (self.client_port,) = free_ports(1)
        self.address = f"127.0.0.1:{self.client_port}"
        self.port_of_clients: ClientPort

    async def start(self, **settings: Any) -> None:
        world, disk = self._served_by, OsDisk()
        config = broker_config(
            name="orders",
            port=self.client_port,
            nameservers=(world.name_server.address,),
            registration_interval_ms=1_000,
            stop_grace_ms=200,
            **world.broker_settings,
        )

        def build() -> Broker:
            network = Network(port=self.port_of_clients)
            return Broker.build(
                config, self.config, disk=disk, clock=world.clock, random=Random(1), network=network
            )

        self.roles = ServedRoles(build)  # type: ignore[assignment]
        self.node = self.node_only(client_address=self.address, **settings)
        certificates = Certificates(config, disk, self.config.own_folder, world.clock)
        self.port_of_clients = ClientPort(
            config,
            self.node,
            certificates,
            clock=world.clock,
            dial=config.peers.dial(),
            random=Random(self.id),
        )
        self._carrier = Http2Carrier([self.node.methods()])
        await self._carrier.start("127.0.0.1", self.port)
        await self.port_of_clients.start()
        await self.node.start()

    async def stop(self) -> None:
        await super().stop()
        await self.port_of_clients.stop()

    async def kill(self) -> None:
        """End its process without a word to clients either: all their connections break."""
        await self.port_of_clients._unregister()
        await self.port_of_clients._carrier.stop(0)
        await super().kill()
        await self.port_of_clients.stop()


class ServedSet(ReplicaSet):
    """COUNT replicas below FOLDER that register with NAME_SERVER."""

    def __init__(
        self,
        folder: Path,
        count: int,
        name_server: NameServer,
        settings: Any,
        broker_settings: dict[str, Any],
    ) -> None:
        self.name_server = name_server
        self.broker_settings = {"tls": False, **broker_settings}
        super().__init__(folder, count, {}, settings, lambda config: AppendingRoles())
        self.members = {
            one: ServedMember(self, one, plain.path, plain.port)
            for one, plain in self.members.items()
        }

    def served(self, replica_id: int) -> ServedMember:
        found = self.members[replica_id]
        assert isinstance(found, ServedMember)
        return found

    async def fail_over(self) -> ServedMember:
        """Kill the master; return the next one, once it serves, with the killed one back as a follower."""
        killed = await self.whole()
        await killed.kill()
        killed.expire()
        await until(lambda: bool(self.masters) and killed not in self.masters)
        await killed.start()
        await self.whole()
        (master,) = self.masters
        assert isinstance(master, ServedMember)
        return master


@asynccontextmanager
async def served_set(
    folder: Path,
    count: int = 3,
    *,
    broker: dict[str, Any] | None = None,
    nameserver: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[ServedSet]:
    """Run COUNT replicas below FOLDER, and a name server; BROKER and NAMESERVER are settings of theirs."""
    name_server = NameServer.build(
        nameserver_config(port=0, **nameserver or {}), clock=SystemClock()
    )
    await name_server.start()
    world = ServedSet(folder, count, name_server, settings, broker or {})
    try:
        await asyncio.gather(*(member.start() for member in world.members.values()))
        await world.whole()
        yield world
    finally:
        for member in world.up:
            await member.stop()
        await name_server.stop()
