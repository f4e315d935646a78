"""A replica set in one process: real replicas, stores and sockets, a registry in memory, brokers that only append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pocketmq.broker.assembly import producers_of
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.replication.device import ReplicaDevice
from pocketmq.broker.replication.in_sync import ReplicaSettings
from pocketmq.broker.replication.links import FollowerLink
from pocketmq.broker.replication.mastership import Mastership
from pocketmq.broker.replication.node import ReplicaNode
from pocketmq.broker.replication.registry import Registry, ReplicaSetState
from pocketmq.broker.replication.replica_state import ReplicaRole
from pocketmq.broker.replication.running import ReplicaParts, RunningReplica
from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import DiskFailure, PocketMQError, RegistryUnavailable
from pocketmq.proto.rpc import Channel, connect
from pocketmq.store.config import StoreConfig
from pocketmq.store.format.replica_files import BrokerIdentity
from pocketmq.store.message_store import MessageStore

from ...fakes import FaultyDisk
from ...free_ports import free_ports
from ...runs import make_run, small_config
from ...waiting import until
from .memory_registry import Ensemble, Fault, MemoryRegistry

TOPIC = "A"
SESSION_MS = 20_000
producers_of_broker = partial(producers_of, BrokerConfig(), SystemClock())


class AppendingRoles:
    """Serves as master what `append` is called with; of a broker that is all that replication sees."""

    def __init__(self) -> None:
        self.store: MessageStore | None = None
        self.mastership: Mastership | None = None
        self.led: list[int] = []
        #: What became of the stores that it led by when it had stopped.
        self.left: list[str] = []
        self.fenced: list[PocketMQError] = []

    async def lead(self, store: MessageStore, mastership: Mastership) -> None:
        self.store, self.mastership = store, mastership
        mastership.on_end(self.fenced.append)
        mastership.replicate((), lambda: store.max_log_offset)
        self.led.append(mastership.epoch)

    async def follow(self) -> None:
        store, self.store, self.mastership = self.store, None, None
        if store is not None:
            await asyncio.sleep(0.05)  # A broker takes its time to stop.
            self.left.append(store.health.state)

    def append(self, *bodies: bytes, topic: str = TOPIC) -> int:
        """Append BODIES; return where the log ends."""
        assert self.store is not None, "no master"
        assert self.mastership is not None, "no master"
        end = self.store.append(make_run(topic, 0, bodies)).end_offset
        self.mastership.appended(end)
        self.store.flush_soon()  # As a broker does, only later.
        return end

    async def send(self, *bodies: bytes, topic: str = TOPIC) -> int:
        """Append BODIES with acks="replicas"; return how many replicas have them."""
        assert self.mastership is not None, "no master"
        self.mastership.check_acks()
        end = self.append(*bodies, topic=topic)
        acknowledged: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def tell(replicas: int, error: PocketMQError | None) -> None:
            if error is None:
                acknowledged.set_result(replicas)
            else:
                acknowledged.set_exception(error)

        self.mastership.when_acknowledged(end, tell)
        return await acknowledged


class Member:
    """One replica of a set, and its process, so to speak."""

    def __init__(self, world: ReplicaSet, replica_id: int, path: Path, port: int) -> None:
        self._world = world
        self.id = replica_id
        self.path = path
        self.port = port
        self.config = world.store_config(path)
        self.roles = world.make_roles(self.config)
        self.node: ReplicaNode
        self.sessions: list[MemoryRegistry] = []
        #: What this start of its machine is called.
        self.boot = "boot-1"
        self.disk = FaultyDisk()
        self.dial: Callable[[str], Channel] = connect
        self._carrier: Http2Carrier | None = None

    async def _open_session(self) -> Registry:
        world = self._world

        def fault(_: str) -> Fault:
            return Fault.LOST if world.registry_is_away else Fault.NONE

        if world.registry_is_away:
            raise RegistryUnavailable("no way to the registry")
        session = MemoryRegistry(world.ensemble, world.clock.now_ms, fault)
        self.sessions.append(session)
        return session

    def node_only(self, **settings: Any) -> ReplicaNode:
        """Return what runs in its process, without its port."""
        world = self._world
        device = ReplicaDevice(
            self.config,
            BrokerIdentity("c", "orders", self.id),
            disk=self.disk,
            unix_ms=world.clock.unix_ms,
            boot=self.boot,
            producers_of=producers_of_broker,
        )
        parts = ReplicaParts(
            device=device,
            clock=world.clock,
            open_session=self._open_session,
            dial=lambda address: self.dial(address),
            roles=self.roles,
        )
        mine = ReplicaSettings(
            cluster="c",
            set_name="orders",
            replica_id=self.id,
            address=f"127.0.0.1:{self.port}",
            file_size=self.config.log_file_size_bytes,
            **{
                "session_ms": SESSION_MS,
                "election_delay_ms": 50,
                **world.settings,
                **settings,
            },
        )
        return ReplicaNode(mine, parts)

    async def start(self, **settings: Any) -> None:
        """Start its process."""
        self.node = self.node_only(**settings)
        self._carrier = Http2Carrier([self.node.methods()])
        await self._carrier.start("127.0.0.1", self.port)
        try:
            await self.node.start()
        except BaseException:
            await self._carrier.stop(0)
            self._carrier = None
            raise

    async def stop(self) -> None:
        """Stop its process in an orderly way."""
        await self.node.stop()
        await self.close_port()

    async def kill(self) -> None:
        """End its process without a word: nothing is settled, and its store is found as it was left."""
        self.store.health.fail(DiskFailure("the process was killed"))
        await self.close_port()
        await self.node.stop()

    def mute(self) -> None:
        """Send the followers that it has nothing any more."""
        for link in self.running._links.values():
            if isinstance(link, FollowerLink):
                link._next = None

    async def close_port(self) -> None:
        """Have nobody reach it any more."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            await carrier.stop(0)

    def expire(self) -> None:
        """Have the registry end its session."""
        self._world.ensemble.expire(self.sessions[-1].session)

    @property
    def running(self) -> RunningReplica:
        assert self.node._running is not None, "it does not run"
        return self.node._running

    @property
    def is_up(self) -> bool:
        return self._carrier is not None and self.node._running is not None

    @property
    def store(self) -> MessageStore:
        return self.running.store

    @property
    def is_master(self) -> bool:
        return self.is_up and self.roles.store is not None and self.node.role is ReplicaRole.MASTER

    def log(self, end: int) -> bytes:
        """Return the bytes of its log before END, as its files have them."""
        files = sorted((self.path / "commitlog").iterdir())
        return b"".join(file.read_bytes() for file in files)[: end - int(files[0].name)]


class ReplicaSet:
    """COUNT replicas below FOLDER; SETTINGS are of all."""

    def __init__(
        self,
        folder: Path,
        count: int,
        store: dict[str, Any],
        settings: Any,
        make_roles: Callable[[StoreConfig], AppendingRoles],
    ) -> None:
        self._store = store
        self.make_roles = make_roles
        self.settings = settings
        self.registry_is_away = False
        self.clock = SystemClock()
        self.ensemble = Ensemble()
        ports = free_ports(count)
        ids = range(1, count + 1)
        self.ensemble.create(
            ReplicaSetState(
                epoch=0,
                master=0,
                in_sync=frozenset(ids),
                replicas={one: f"127.0.0.1:{port}" for one, port in zip(ids, ports, strict=True)},
            )
        )
        self.members = {
            one: Member(self, one, folder / str(one), port)
            for one, port in zip(ids, ports, strict=True)
        }

    def store_config(self, path: Path) -> StoreConfig:
        return small_config(path, **self._store)

    @property
    def cell(self) -> ReplicaSetState:
        found = self.ensemble.read()
        assert found is not None
        return found.cell

    @property
    def up(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_up]

    @property
    def masters(self) -> list[Member]:
        return [member for member in self.up if member.is_master]

    async def master(self) -> Member:
        """Return the master, once there is one."""
        await until(lambda: len(self.masters) == 1)
        return self.masters[0]

    async def whole(self) -> Member:
        """Return the master, once all that are up are in sync, and have and know the same."""

        def is_whole() -> bool:
            if len(self.masters) != 1 or self.cell.in_sync != {one.id for one in self.up}:
                return False
            end = self.masters[0].running.core.end
            return all(
                one.running.core.end == one.running.core.confirm == one.running.core.synced == end
                for one in self.up
            )

        await until(is_whole)
        return self.masters[0]


@asynccontextmanager
async def replica_set(
    folder: Path,
    count: int = 3,
    store: dict[str, Any] | None = None,
    make_roles: Callable[[StoreConfig], AppendingRoles] = lambda config: AppendingRoles(),
    **settings: Any,
) -> AsyncIterator[ReplicaSet]:
    """Run COUNT replicas below FOLDER, which serve what MAKE_ROLES returns; STORE and SETTINGS are of all."""
    world = ReplicaSet(folder, count, store or {}, settings, make_roles)
    try:
        await asyncio.gather(*(member.start() for member in world.members.values()))
        yield world
    finally:
        for member in world.up:
            await member.stop()
