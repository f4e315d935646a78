"""Name servers, brokers and clients in one process, on one virtual time: everything but sockets is the real thing.

A broker's files lie in a folder of its own and outlive it. `kill` ends a broker as `kill -9` does: what it wrote to
files stays, what it had in memory is gone. Flushing happens at once instead of on threads, and reaches no device:
nothing here loses power.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pocketmq.broker.broker import Broker, Network as BrokerNetwork
from pocketmq.broker.config import BrokerConfig
from pocketmq.client import AsyncAdmin
from pocketmq.client.connections import GrpcConnections
from pocketmq.nameserver.config import NameServerConfig
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.rpc import Limits, MethodTable
from pocketmq.store.config import StoreConfig
from pocketmq.store.disk import Buffer, Disk, Mapping
from pocketmq.store.flush import Flusher
from pocketmq.store.os_disk import OsDisk

from ..fakes import ForwardingDisk, ForwardingMapping
from .channel import Channel
from .machine import Machine
from .network import Network
from .served import Served
from .virtual_loop import LoopClock, loop_clock

logger = logging.getLogger(__name__)


class _Mapping(ForwardingMapping):
    """A mapping of a process that may die; nothing is synced."""

    def __init__(self, inner: Mapping, disk: SimulatedDisk) -> None:
        super().__init__(inner)
        self._disk = disk

    def write(self, at: int, data: Buffer) -> None:
        if self._disk.alive:
            super().write(at, data)

    def reserve(self, at: int, size: int) -> None:
        if self._disk.alive:
            super().reserve(at, size)

    def zero(self, at: int, size: int) -> None:
        if self._disk.alive:
            super().zero(at, size)

    def sync(self) -> None:
        """Nobody loses power."""


class SimulatedDisk(ForwardingDisk):
    """The files of one process; once it is dead, what it still writes goes nowhere."""

    def __init__(self) -> None:
        super().__init__(OsDisk())
        self.alive = True

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        return _Mapping(super().open_map(path, size=size, writable=writable, create=create), self)

    def write_file(self, path: str, data: Buffer) -> None:
        if self.alive:
            super().write_file(path, data)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        if self.alive:
            super().write_atomically(path, data, backup=backup)

    def delete(self, path: str) -> None:
        if self.alive:
            super().delete(path)

    def delete_folder(self, path: str) -> None:
        if self.alive:
            super().delete_folder(path)

    def rename(self, source: str, target: str) -> None:
        if self.alive:
            super().rename(source, target)

    def truncate(self, path: str, size: int) -> None:
        if self.alive:
            super().truncate(path, size)

    def sync_folder(self, path: str) -> None:
        """Nobody loses power."""


class _Server(ABC):
    """A server of the cluster: where it is, and what carries it while it runs."""

    def __init__(self, cluster: Cluster, name: str, address: str) -> None:
        self.cluster = cluster
        self.name = name
        self.address = address
        self.machine: Machine | None = None
        self.served: Served | None = None
        self.incarnation = 0

    def new_machine(self) -> Machine:
        self.incarnation += 1
        self.machine = Machine(f"{self.name}#{self.incarnation}", self.address, self.cluster.clock)
        return self.machine

    def make_carrier(self, tables: Iterable[MethodTable], *, limits: Limits) -> Served:
        assert self.machine is not None
        self.served = Served(tables, limits, self.cluster.network, self.machine)
        return self.served

    @abstractmethod
    async def start(self) -> None:
        """Begin, or come back."""

    @abstractmethod
    async def kill(self) -> None:
        """End without a word."""

    @property
    def running(self) -> bool:
        return self.machine is not None

    def check_bugs(self) -> None:
        if self.served is not None and self.served.bugs:
            raise AssertionError(f"{self.name} had a bug") from self.served.bugs[0]


class SimulatedNameServer(_Server):
    """A name server that can go and come back."""

    server: NameServer

    async def start(self) -> None:
        host, _, port = self.address.rpartition(":")
        machine = self.new_machine()
        self.server = NameServer.build(
            NameServerConfig(host=host, port=int(port)),
            clock=machine.clock,
            make_carrier=self.make_carrier,
        )
        await self.server.start()

    async def stop(self) -> None:
        if self.machine is not None:
            await self.server.stop()
            self.machine.die()
            self.machine = None

    async def kill(self) -> None:
        """End without a word."""
        assert self.served is not None
        self.served.die()
        await self.stop()


class SimulatedBroker(_Server):
    """A broker whose files outlive it."""

    def __init__(
        self, cluster: Cluster, name: str, address: str, folder: Path, settings: dict[str, Any]
    ) -> None:
        super().__init__(cluster, name, address)
        self._folder = folder
        self._settings = settings
        self._disk = SimulatedDisk()
        self.broker: Broker

    async def start(self) -> None:
        machine = self.new_machine()
        host, _, port = self.address.rpartition(":")
        config = BrokerConfig(
            name=self.name,
            host=host,
            port=int(port),
            nameservers=tuple(server.address for server in self.cluster.name_servers),
            **self._settings,
        )
        self._disk = SimulatedDisk()
        self.broker = Broker.build(
            config,
            self.store_config(self._folder),
            disk=self.disk(),
            clock=machine.clock,
            random=Random(self.cluster.random.random()),
            network=BrokerNetwork(
                make_carrier=self.make_carrier,
                dial=partial(Channel, self.cluster.network, machine),
            ),
        )
        await self.broker.start()

    def disk(self) -> Disk:
        """Return the disk of the process that begins."""
        return self._disk

    def store_config(self, folder: Path) -> StoreConfig:
        """Return the settings of its store in FOLDER."""
        return StoreConfig(
            path=str(folder),
            log_file_size_bytes=64 << 20,
            queue_file_size_bytes=600_000,
            index=False,
            flush_interval_ms=500,
            # The machine's disk may be as full as it is.
            disk_expire_percent=98,
            disk_force_percent=99,
            disk_refuse_percent=100,
        )

    async def stop(self) -> None:
        """Stop cleanly."""
        if self.machine is not None:
            await self.broker.stop()
            self.cluster.network.forget(self.machine, silently=False)
            self.machine = None

    async def kill(self) -> None:
        """End as `kill -9` does."""
        assert self.machine is not None
        assert self.served is not None
        self._disk.alive = False
        machine, self.machine = self.machine, None
        self.served.die()
        self.cluster.network.forget(machine, silently=False)
        # What is left of it in this process ends, and changes nothing any more.
        store = self.broker.store
        running = self.broker._running
        assert running is not None
        if running.registration is not None:
            await running.registration.stop()
        await running.parts.stop_timers()
        store.health.closed = True
        store._close_files()


class Client:
    """What one application process has: a machine, and connections of its own."""

    def __init__(self, cluster: Cluster, name: str, number: int) -> None:
        self.cluster = cluster
        self.name = name
        self.machine = Machine(
            f"{name}#{number}", f"10.0.{number // 250}.{number % 250 + 1}:50000", cluster.clock
        )
        self.random = Random(cluster.random.random())

    def connections(self) -> GrpcConnections:
        return GrpcConnections(partial(Channel, self.cluster.network, self.machine))

    def kill(self, *, silently: bool = False) -> None:
        """End without a word; SILENTLY: so that servers find out by their keepalive only."""
        self.cluster.network.forget(self.machine, silently=silently)


class Cluster:
    """Everything, from one seed."""

    def __init__(self, seed: int, folder: Path, clock: LoopClock) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.network = Network(clock, Random(self.random.random()))
        self.folder = folder
        self.name_servers: list[SimulatedNameServer] = []
        self.brokers: list[SimulatedBroker] = []
        self._clients = 0

    @property
    def addresses(self) -> str:
        return ",".join(server.address for server in self.name_servers)

    def client(self, name: str) -> Client:
        self._clients += 1
        return Client(self, name, self._clients)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AsyncAdmin]:
        client = self.client("admin")
        async with AsyncAdmin(
            self.addresses, clock=client.machine.clock, connections=client.connections()
        ) as admin:
            yield admin

    async def sleep(self, pause_ms: float) -> None:
        await self.clock.sleep(pause_ms)

    def check_bugs(self) -> None:
        """Raise what a server's handler let out that is no answer."""
        for server in (*self.name_servers, *self.brokers):
            server.check_bugs()


@asynccontextmanager
async def cluster_of(
    folder: Path,
    *,
    seed: int,
    brokers: int = 2,
    name_servers: int = 2,
    broker_type: type[SimulatedBroker] = SimulatedBroker,
    **settings: Any,
) -> AsyncIterator[Cluster]:
    """Run a cluster on the running virtual loop; SETTINGS are the brokers'."""
    cluster = Cluster(seed, folder, loop_clock())
    start = Flusher.start
    Flusher.start = _no_thread  # type: ignore[method-assign, assignment]
    try:
        for number in range(name_servers):
            server = SimulatedNameServer(cluster, f"names-{number}", f"127.0.0.{number + 1}:9876")
            cluster.name_servers.append(server)
            await server.start()
        for number in range(brokers):
            name = f"broker-{chr(ord('a') + number)}"
            address = f"127.0.1.{number + 1}:8081"
            broker = broker_type(cluster, name, address, folder / name, settings)
            cluster.brokers.append(broker)
            await broker.start()
            await broker.broker.registered(10)
        yield cluster
        cluster.check_bugs()
    finally:
        for broker in cluster.brokers:
            await broker.stop()
        await asyncio.gather(*(server.stop() for server in cluster.name_servers))
        Flusher.start = start  # type: ignore[method-assign]


def _no_thread(flusher: Flusher) -> None:
    """Leave FLUSHER without a thread: it does what it is given at once."""
