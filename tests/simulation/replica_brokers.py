"""Whole brokers in a replica set on one virtual time: their disks are recorded, and a seed says what happens to them.

Everything but sockets, threads and the device is the real thing: replicas with their links, stores and brokers, over
the registry in memory. A machine's power is cut: what is left of its disk is one of the states that its writes allow.
A process is killed: its files stay. Replicas are cut off from each other, from the registry, from both but not from
clients; answers of the registry are lost, though what was asked for was done; reads of it are old, sessions end.

A producer sends to whoever is master, with acks="replicas" and numbered, each run until it is acknowledged. Another
one wants memory only, and never sends again. A reader reads what is handed out. In the end all is healed, and what was
acknowledged, handed out and is there is held against the rules of `tests/campaigns/history.py`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from pocketmq.broker.assembly import producers_of
from pocketmq.broker.broker import Broker, Network as BrokerNetwork
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.replication.device import ReplicaDevice
from pocketmq.broker.replication.in_sync import ReplicaSettings
from pocketmq.broker.replication.mastership import Mastership
from pocketmq.broker.replication.node import ReplicaNode
from pocketmq.broker.replication.registry import LiveNode, Registry, ReplicaSetState, VersionedCell
from pocketmq.broker.replication.replica_state import ReplicaRole
from pocketmq.broker.replication.running import ReplicaParts
from pocketmq.proto.errors import DiskFailure, PocketMQError, RegistryUnavailable
from pocketmq.store.config import StoreConfig
from pocketmq.store.disk import Buffer, Disk, Mapping
from pocketmq.store.flush import Flusher, FlushJob
from pocketmq.store.format.replica_files import BrokerIdentity
from pocketmq.store.message_store import MessageStore

from ..broker.replication.memory_registry import Ensemble, Fault, MemoryRegistry
from ..fakes import ForwardingDisk, ForwardingMapping, RecordingDisk
from .channel import Channel
from .cluster import SimulatedDisk
from .machine import Machine
from .network import Network
from .served import Served
from .virtual_loop import LoopClock

SESSION_MS: Final = 1_000
#: A follower leaves the set while the lease of a master that is cut off still lasts.
LAG_MS: Final = 300
CLUSTER: Final = "c"
SET: Final = "orders"
_STORE: Final[dict[str, Any]] = {
    "log_file_size_bytes": 256 << 10,
    "queue_file_size_bytes": 20_000,
    "timer_log_file_size_bytes": 1 << 16,
    "index": False,
    "disk_expire_percent": 98,
    "disk_force_percent": 99,
    "disk_refuse_percent": 100,
}


# --- disks of machines


class _ProcessMapping(ForwardingMapping):
    def __init__(self, inner: Mapping, disk: ProcessDisk) -> None:
        super().__init__(inner)
        self._disk = disk

    def write(self, at: int, data: Buffer) -> None:
        self._disk.check()
        super().write(at, data)

    def reserve(self, at: int, size: int) -> None:
        self._disk.check()
        super().reserve(at, size)

    def zero(self, at: int, size: int) -> None:
        self._disk.check()
        super().zero(at, size)

    def sync(self) -> None:
        self._disk.check()
        super().sync()


class ProcessDisk(ForwardingDisk):
    """The disk of a machine, INNER, as one process has it: once that is dead, it changes nothing any more."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self.alive = True

    def check(self) -> None:
        if not self.alive:
            raise DiskFailure("the process is dead")

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        if create:
            self.check()
        inner = super().open_map(path, size=size, writable=writable, create=create)
        return _ProcessMapping(inner, self)

    def write_file(self, path: str, data: Buffer) -> None:
        self.check()
        super().write_file(path, data)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        self.check()
        super().write_atomically(path, data, backup=backup)

    def delete(self, path: str) -> None:
        self.check()
        super().delete(path)

    def delete_folder(self, path: str) -> None:
        self.check()
        super().delete_folder(path)

    def rename(self, source: str, target: str) -> None:
        self.check()
        super().rename(source, target)

    def truncate(self, path: str, size: int) -> None:
        self.check()
        super().truncate(path, size)

    def sync_folder(self, path: str) -> None:
        self.check()
        super().sync_folder(path)


# --- the registry, as a process reaches it


class _Session(MemoryRegistry):
    """A session of PROCESS."""

    def __init__(self, process: Process) -> None:
        self._process = process
        world = process.member.world
        super().__init__(world.ensemble, world.clock.now_ms, self._fault)
        world.heard[self.session] = world.clock.now_ms()

    def _fault(self, operation: str) -> Fault:
        member, world = self._process.member, self._process.member.world
        if not self._process.machine.alive or member.id in world.without_registry:
            return Fault.LOST
        world.heard[self.session] = world.clock.now_ms()
        if world.random.random() >= world.registry_trouble:
            return Fault.NONE
        return world.random.choice([Fault.LOST, Fault.ANSWER_LOST, Fault.OLD, Fault.EXPIRED])

    async def _travel(self) -> None:
        world = self._process.member.world
        await world.clock.sleep(world.random.uniform(0.5, 5))

    async def read(self) -> VersionedCell | None:
        await self._travel()
        return await super().read()

    async def live(self) -> Any:
        await self._travel()
        return await super().live()

    async def compare_and_set(self, cell: ReplicaSetState, version: int) -> int:
        await self._travel()
        return await super().compare_and_set(cell, version)

    async def announce(self, replica_id: int, node: LiveNode) -> None:
        await self._travel()
        await super().announce(replica_id, node)

    async def check_session(self) -> None:
        await self._travel()
        await super().check_session()

    def watch(self, changed: Callable[[], None]) -> None:
        process, world = self._process, self._process.member.world

        def told() -> None:
            if process.machine.alive and process.member.id not in world.without_registry:
                changed()

        def tell() -> None:
            asyncio.get_running_loop().call_later(world.random.uniform(0.5, 5) / 1000, told)

        super().watch(tell)

    async def close(self) -> None:
        if self._process.machine.alive:  # Else nobody hears of it: the session ends by itself.
            await super().close()


# --- processes and machines


class _Roles:
    """A broker for the master, nothing for a follower."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.broker: Broker | None = None

    async def lead(self, store: MessageStore, mastership: Mastership) -> None:
        process = self._process
        world, member = process.member.world, process.member
        host, _, port = member.address.rpartition(":")
        config = BrokerConfig(
            name=SET,
            cluster=CLUSTER,
            host=host,
            port=int(port),
            nameservers=(),
            stop_grace_ms=100,
        )

        def carrier(tables: Any, *, limits: Any) -> Served:
            process.served = Served(tables, limits, world.network, process.machine)
            return process.served

        self.broker = Broker.build(
            config,
            process.config,
            disk=process.disk,
            clock=process.machine.clock,
            random=Random(world.random.random()),
            network=BrokerNetwork(
                make_carrier=carrier, dial=partial(Channel, world.network, process.machine)
            ),
        )
        world.reigns.append((member.id, mastership.epoch))
        await self.broker.start(store=store, mastership=mastership)

    async def follow(self) -> None:
        broker, self.broker = self.broker, None
        if broker is not None:
            await broker.stop()


class Process:
    """A replica of MEMBER, from a start to an end."""

    def __init__(self, member: Member, number: int) -> None:
        world = member.world
        self.member = member
        self.machine = Machine(f"replica-{member.id}#{number}", member.replicates_at, world.clock)
        self.disk = ProcessDisk(member.disk)
        self.config = StoreConfig(path=str(member.root / "store"), **_STORE, **world.store)
        self.served: Served | None = None
        self.roles = _Roles(self)
        device = ReplicaDevice(
            self.config,
            BrokerIdentity(CLUSTER, SET, member.id),
            disk=self.disk,
            unix_ms=world.clock.unix_ms,
            boot=f"boot-{member.boots}",
            producers_of=partial(producers_of, BrokerConfig(), self.machine.clock),
        )
        settings = ReplicaSettings(
            cluster=CLUSTER,
            set_name=SET,
            replica_id=member.id,
            address=member.replicates_at,
            client_address=member.address,
            file_size=self.config.log_file_size_bytes,
            flush_sync=self.config.flush == "sync",
            session_ms=SESSION_MS,
            election_delay_ms=100,
            replica_lag_ms=LAG_MS,
            **world.settings,
        )
        parts = ReplicaParts(
            device=device,
            clock=self.machine.clock,
            open_session=self._open_session,
            dial=partial(Channel, world.network, self.machine),
            roles=self.roles,
        )
        self.node = ReplicaNode(settings, parts)
        self._port: Served | None = None

    async def _open_session(self) -> Registry:
        world = self.member.world
        await world.clock.sleep(world.random.uniform(1, 10))
        if self.member.id in world.without_registry or not self.machine.alive:
            raise RegistryUnavailable("no way to the registry")
        return _Session(self)

    async def start(self) -> None:
        world = self.member.world
        host, _, port = self.member.replicates_at.rpartition(":")
        self._port = Served([self.node.methods()], _NO_LIMITS, world.network, self.machine)
        await self._port.start(host, int(port))
        world.lay_links(self)
        await self.node.start()

    async def stop(self) -> None:
        """End in an orderly way."""
        await self.node.stop()
        if self._port is not None:
            await self._port.stop(0)
        self.member.world.network.forget(self.machine, silently=False)

    def kill(self) -> None:
        """End without a word; what is left of it in this process ends by and by, and changes nothing."""
        self.disk.alive = False
        for served in (self._port, self.served):
            if served is not None:
                served.die()
        self.member.world.network.forget(self.machine, silently=False)
        self.member.world.clean_up(self._bury())

    async def _bury(self) -> None:
        running = self.node._running
        if running is not None and running._device.is_open:
            running.store.health.fail(DiskFailure("the process is dead"))
        with suppress(DiskFailure):
            await self.node.stop()

    @property
    def is_master(self) -> bool:
        return self.roles.broker is not None and self.node.role is ReplicaRole.MASTER

    def bugs(self) -> Iterator[BaseException]:
        for served in (self._port, self.served):
            if served is not None:
                yield from served.bugs


class Member:
    """Machine ID of WORLD: what is on its disk outlives processes, and a loss of power as far as disks do."""

    def __init__(self, world: World, replica_id: int) -> None:
        self.world = world
        self.id = replica_id
        self.replicates_at = f"10.1.0.{replica_id}:7000"
        self.address = f"10.1.0.{replica_id}:8081"
        self.boots = 1
        self.root = world.folder / f"{replica_id}.1"
        self.root.mkdir(parents=True)
        self.disk = self._recorded()
        self.process: Process | None = None
        self._starts = 0

    def _recorded(self) -> RecordingDisk:
        disk = RecordingDisk(str(self.root), self.world.random.randrange(1 << 30))
        disk.inner = (
            SimulatedDisk()
        )  # What is on the device is on record: the real one need not be waited for.
        return disk

    async def start(self) -> None:
        """Start the process; it tries until it can."""
        while self.process is None:
            self._starts += 1
            process = Process(self, self._starts)
            try:
                await process.start()
                self.process = process
            except PocketMQError as error:
                self.world.note(f"replica {self.id} does not start: {error.message}")
                process.kill()
                await self.world.buried()
                await self.world.clock.sleep(200)

    async def kill(self) -> None:
        """End the process: what it wrote to files stays."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            await self.world.buried()

    async def cut_power(self) -> None:
        """End the process and the machine: the disk is left in one of the states that its writes allow."""
        if self.process is not None:
            self.process.disk.alive = False
        before, self.boots = self.root, self.boots + 1
        self.root = self.world.folder / f"{self.id}.{self.boots}"
        self.disk.rebuild(str(self.root))
        await self.kill()
        shutil.rmtree(before)
        self.disk = self._recorded()

    def __str__(self) -> str:
        running = self.process and self.process.node._running
        if not running:
            return f"replica {self.id}: does not run"
        core = running.core
        return (
            f"replica {self.id}: {core.role.value}, epoch {core.epoch}, log ends at {core.end}, synced {core.synced},"
            f" confirmed {core.confirm}, unclean {core.unclean}, failed {running.failed}"
        )

    @property
    def store(self) -> MessageStore:
        assert self.process is not None
        running = self.process.node._running
        assert running is not None
        return running.store


# --- all of it


class _Unlimited:
    """What `Served` keeps and does not look at."""


_NO_LIMITS: Final[Any] = _Unlimited()


class World:
    """COUNT replicas below FOLDER, from SEED. STORE are settings of the stores, SETTINGS of the replicas."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        clock: LoopClock,
        *,
        count: int = 3,
        store: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.clock = clock
        self.store = store or {}
        self.settings = settings
        self.network = Network(clock, Random(self.random.random()))
        self.ensemble = Ensemble()
        #: When the ensemble last heard of each session.
        self.heard: dict[int, int] = {}
        self.without_registry: set[int] = set()
        self.registry_trouble = 0.0
        self._cut: set[frozenset[int]] = set()
        self.reigns: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self._buried: set[asyncio.Task[None]] = set()
        self.members = [Member(self, number) for number in range(1, count + 1)]
        self.ensemble.create(
            ReplicaSetState(
                epoch=0,
                master=0,
                in_sync=frozenset(one.id for one in self.members),
                replicas={one.id: one.replicates_at for one in self.members},
            )
        )
        self._expiring = asyncio.ensure_future(self._expire())

    def note(self, text: str) -> None:
        """Keep TEXT for who looks into a seed."""
        self.notes.append(f"{self.clock.now_ms() % 10_000_000} {text}")

    async def _expire(self) -> None:
        """End sessions that the ensemble has not heard of for their time."""
        while True:
            await self.clock.sleep(50)
            oldest_ms = self.clock.now_ms() - SESSION_MS
            for session in list(self.ensemble.sessions):
                if self.heard.get(session, 0) < oldest_ms:
                    self.note(f"session {session} ends")
                    self.ensemble.expire(session)

    # --- links

    def cut_off(self, one: int, other: int, *, cut: bool = True) -> None:
        """Let nothing through between replicas ONE and OTHER, or CUT no more."""
        pair = frozenset((one, other))
        (self._cut.add if cut else self._cut.discard)(pair)
        for member in self.members:
            if member.id in pair and member.process is not None:
                self.lay_links(member.process)

    def lay_links(self, process: Process) -> None:
        """Have the links of PROCESS to others be as they are to be."""
        for other in self.members:
            if other.id == process.member.id:
                continue
            link = self.network.link(process.machine, other.replicates_at)
            is_cut = frozenset((process.member.id, other.id)) in self._cut
            if is_cut and link.up:
                link.take_down()
            elif not is_cut and not link.up:
                link.bring_up()

    def heal(self) -> None:
        """Let everything through, and have the registry answer."""
        for pair in list(self._cut):
            self.cut_off(*pair, cut=False)
        self.without_registry.clear()
        self.registry_trouble = 0.0

    # --- what is left of processes

    def clean_up(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._buried.add(task)

    async def buried(self) -> None:
        """Return when nothing of killed processes is left."""
        buried, self._buried = self._buried, set()
        for task in buried:
            await task

    # --- beginning and end

    async def start(self) -> None:
        await asyncio.gather(*(member.start() for member in self.members))

    @property
    def master(self) -> Member | None:
        """The member that serves as master, by what it thinks itself."""
        found = [one for one in self.members if one.process is not None and one.process.is_master]
        return found[-1] if found else None

    def is_whole(self) -> bool:
        """Are all in sync, by what the cell says, and up?"""
        return len(self.ensemble.history[-1].in_sync) == len(self.members) and all(
            one.process is not None
            and one.process.node._running is not None
            and not one.process.node._running.core.unclean
            for one in self.members
        )

    def is_at_rest(self) -> bool:
        """Does one master serve, with all others in sync, and nothing on its way?"""
        master = self.master
        if master is None or master.process is None or master.process.served is None:
            return False
        running = master.process.node._running
        if running is None or running.core.in_sync is None:
            return False
        end = master.store.max_log_offset
        return len(running.core.in_sync.confirmed_set) == len(self.members) and all(
            one.process is not None
            and one.process.node._running is not None
            and one.store.max_log_offset == end == one.process.node._running.core.confirm
            for one in self.members
        )

    async def come_to_rest(self, within_ms: int = 60_000) -> Member:
        """Heal everything, start everybody, and return the master once all are in sync."""
        self.heal()
        await asyncio.gather(*(member.start() for member in self.members))
        end_ms = self.clock.now_ms() + within_ms
        while not self.is_at_rest():
            await self.clock.sleep(20)
            if self.clock.now_ms() > end_ms:
                told = "\n".join([*self.notes, *map(str, self.members), str(self.ensemble.read())])
                raise AssertionError(f"no rest in {within_ms} ms:\n{told}")
        assert self.master is not None
        return self.master

    async def stop(self) -> None:
        self._expiring.cancel()
        master = self.master
        for member in sorted(self.members, key=lambda one: one is master):
            if member.process is not None:
                await member.process.stop()
        await self.buried()

    def bugs(self) -> list[BaseException]:
        return [
            bug
            for member in self.members
            if member.process is not None
            for bug in member.process.bugs()
        ]


# --- threads and the device


@contextmanager
def simulated_threads(random: Random) -> Iterator[None]:
    """Have syncs, and what else waits for a device, take some virtual time instead of threads."""
    jobs: dict[Flusher, deque[FlushJob]] = {}

    def start(flusher: Flusher) -> None:
        jobs[flusher] = deque()

    def do_next(flusher: Flusher) -> None:
        if jobs.get(flusher):
            flusher._do(jobs[flusher].popleft())

    def submit(flusher: Flusher, job: FlushJob) -> None:
        if flusher not in jobs:
            flusher._do(job)
            return
        jobs[flusher].append(job)
        latency_s = random.choice((0.3, 1, 1, 8)) * random.random() / 1000
        asyncio.get_running_loop().call_later(latency_s, do_next, flusher)

    def stop(flusher: Flusher) -> None:
        while jobs.get(flusher):
            do_next(flusher)
        jobs.pop(flusher, None)

    async def to_thread(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(random.uniform(0.1, 4) / 1000)
        return work(*arguments, **named)

    with ExitStack() as patches:
        for name, instead in (("start", start), ("submit", submit), ("stop", stop)):
            patches.enter_context(patch.object(Flusher, name, instead))
        patches.enter_context(patch.object(asyncio, "to_thread", to_thread))
        yield
