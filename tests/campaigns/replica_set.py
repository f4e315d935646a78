"""A replica set of real processes with a real ZooKeeper, everything between them over links that can be cut.

Ends, as links know them: `replica-1` …, `registry` (ZooKeeper's servers), and clients. A replica dials the others at
their links, ZooKeeper at links of its own, and tells clients to come over its link. Only the name server, which decides
nothing, and whoever watches the set, are reached directly. Each process runs on a machine of its own that can be spoilt
(spoilt.py).
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from pocketmq.broker.replication.registry import LiveNode, ReplicaSetState
from pocketmq.broker.replication.zookeeper import ZooKeeperRegistry
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import CallFailed, connect
from pocketmq.store.config import StoreConfig
from pocketmq.tools.zookeeper_server import ZooKeeperServer, free_ports

from ..served import ServerProcess
from .history import History, Reign
from .links import CLIENTS, REGISTRY, Links
from .spoilt import Spoilt
from .stored import open_stopped, queues_of, replica_files

CLUSTER: Final = "troubled"
SET: Final = "orders"
REPLICAS: Final = 3
#: Small files, so that failovers cross their ends.
STORE: Final[dict[str, Any]] = {
    "log_file_size_bytes": 1_048_576,
    "queue_file_size_bytes": 20_000,
    "index_slots": 1_000,
    "index_entries": 4_000,
    "message_size_max_bytes": 262_144,
}
_ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from tests.campaigns.spoilt import main; main()"
_WATCH_SESSION_MS: Final = 10_000
_LOOK_S: Final = 0.05
_STATUS_S: Final = 0.5
_START_AGAIN_S: Final = 0.5
_START_S: Final = 90.0
_BEGAN: Final = re.compile(r"replica became master .*replica=(\d+) epoch=(\d+)")


class Replica:
    """Replica NUMBER, its files in FOLDER, and its process while it runs."""

    def __init__(self, number: int, folder: Path, links: Links) -> None:
        self.number = number
        self.name = f"replica-{number}"
        self.host = links.host_of(self.name)
        self.root = folder / self.name
        self.log = folder / f"{self.name}.log"
        self.settings = folder / f"{self.name}.yaml"
        self.machine = folder / f"{self.name}.machine"
        self.port, self.replication_port = free_ports(2)
        self.process: ServerProcess | None = None
        self.is_stopped = False

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    @property
    def replication_address(self) -> str:
        """Where it listens for the others, beside its link."""
        return f"{self.host}:{self.replication_port}"

    def spoil(self, machine: Spoilt) -> None:
        """Have its machine be so."""
        machine.write(self.machine)

    def reigns(self) -> list[Reign]:
        """Return the epochs that it began, as its log says."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [Reign(int(replica), int(epoch)) for replica, epoch in _BEGAN.findall(text)]


class ReplicaSet:
    """REPLICAS brokers of one set in FOLDER, with the ensemble ZOOKEEPER, watched into HISTORY.

    SETTINGS: of `replication`, besides those that say who and where;  RULE: the one that all of them break.
    """

    def __init__(
        self,
        folder: Path,
        zookeeper: Sequence[ZooKeeperServer],
        history: History,
        *,
        replicas: int = REPLICAS,
        rule: str = "",
        links: Links | None = None,
        **settings: object,
    ) -> None:
        self.history = history
        self.zookeeper = zookeeper
        self._folder = folder
        self._rule = ("--rule", rule) if rule else ()
        self._settings = {"min_in_sync": 2, "replica_lag_ms": 2_000, **settings}
        self._processes: dict[int, str] = {}
        self.links = links or Links(self._processes)
        self.replicas = [Replica(number, folder, self.links) for number in range(1, replicas + 1)]
        self._nameserver: ServerProcess | None = None
        self._registry: ZooKeeperRegistry | None = None
        self._watching: asyncio.Task[None] | None = None
        self._starting: dict[Replica, asyncio.Task[None]] = {}
        self.cell: ReplicaSetState | None = None
        self.live: Mapping[int, LiveNode] = {}
        #: What kept processes from starting, which was tried again.
        self.complaints: list[str] = []

    @property
    def nameserver(self) -> str:
        assert self._nameserver is not None, "start comes first"
        return self._nameserver.nameserver

    # --- beginning and end

    async def start(self) -> None:
        """Start everything, and wait until there is a master with all of the others in sync."""
        log = self._folder / "nameserver.log"
        self._nameserver = await asyncio.to_thread(
            ServerProcess, None, "--port", "0", verb="nameserver", log=log
        )
        self._registry = await ZooKeeperRegistry.open(
            ",".join(server.address for server in self.zookeeper),
            CLUSTER,
            SET,
            session_ms=_WATCH_SESSION_MS,
            now_ms=SystemClock().now_ms,
        )
        addresses = {one.number: await self._lay_links(one) for one in self.replicas}
        everybody = frozenset(addresses)
        await self._registry.create(
            ReplicaSetState(epoch=0, master=0, in_sync=everybody, replicas=addresses)
        )
        self._watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(_START_S):
                await asyncio.gather(*(self.begin(one) for one in self.replicas))
            await self.all_in_sync(_START_S)
        except TimeoutError:
            raise AssertionError("\n".join([*self.complaints[-5:], *self.logs()])) from None

    async def _lay_links(self, replica: Replica) -> str:
        """Lay what leads to REPLICA, and from it to ZooKeeper; return where the others dial it."""
        links = self.links
        client = await links.reach(replica.name, f"{replica.host}:{replica.port}")
        others = await links.reach(replica.name, replica.replication_address)
        registry = [
            await links.reach(REGISTRY, server.address, replica.name) for server in self.zookeeper
        ]
        nameserver = self.nameserver
        if links.entering(replica.name):
            nameserver = await links.reach(CLIENTS, nameserver)
        settings = {
            "broker": {
                "cluster": CLUSTER,
                "host": replica.host,
                "advertised_address": client,
                "nameservers": [nameserver],
            },
            "store": STORE,
            "replication": {
                "replica_set": SET,
                "replica_id": replica.number,
                "zookeeper": registry,
                "listen": replica.replication_address,
                "address": others,
                **self._settings,
            },
        }
        replica.settings.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return others

    async def close(self) -> None:
        """End everything, however it is."""
        for task in (*self._starting.values(), *filter(None, (self._watching,))):
            task.cancel()
            await asyncio.wait([task])
        for replica in self.replicas:
            await self.kill(replica)
        if self._registry is not None:
            await self._registry.close()
        if self._nameserver is not None:
            await asyncio.to_thread(self._nameserver.kill)
        await self.links.close()

    # --- processes

    async def begin(self, replica: Replica) -> None:
        """Start the process of REPLICA, again and again until it serves."""
        while True:
            try:
                process = await asyncio.to_thread(self._serve, replica)
            except PocketMQError as error:
                self.complaints.append(f"{replica.name}: {error.message}")
                await asyncio.sleep(_START_AGAIN_S)
            else:
                replica.process = process
                return

    def _serve(self, replica: Replica) -> ServerProcess:
        return ServerProcess(
            replica.root,
            *("--config", str(replica.settings), "--port", str(replica.port)),
            verb="broker",
            log=replica.log,
            program=(
                "-c",
                self.links.entering(replica.name) + PROGRAM,
                str(replica.machine),
                *self._rule,
            ),
            started=lambda pid: self._processes.__setitem__(pid, replica.name),
        )

    def begin_soon(self, replica: Replica) -> None:
        """Start the process of REPLICA, and do not wait for it."""
        if not replica.is_running and replica not in self._starting:
            task = self._starting[replica] = asyncio.create_task(self.begin(replica))
            task.add_done_callback(lambda _: self._starting.pop(replica, None))

    async def all_begun(self) -> None:
        """Wait for the processes that are starting."""
        while self._starting:
            await asyncio.wait(list(self._starting.values()))

    async def kill(self, replica: Replica) -> None:
        """End the process of REPLICA as `kill -9` does."""
        if replica.process is not None:
            await asyncio.to_thread(replica.process.kill)
            self._processes.pop(replica.process.pid, None)
        replica.is_stopped = False

    async def stop(self, replica: Replica) -> None:
        """End the process of REPLICA cleanly."""
        if replica.process is not None:
            self.resume(replica)
            await asyncio.to_thread(replica.process.stop)
            self._processes.pop(replica.process.pid, None)

    def pause(self, replica: Replica) -> None:
        """Have REPLICA stand still."""
        if replica.process is not None and replica.is_running:
            replica.process.send_signal(signal.SIGSTOP)
            replica.is_stopped = True

    def resume(self, replica: Replica) -> None:
        """Have it go on."""
        if replica.process is not None and replica.is_stopped and replica.is_running:
            replica.process.send_signal(signal.SIGCONT)
        replica.is_stopped = False

    def mend(self) -> None:
        """Make every link whole and every machine sound, and have everybody run."""
        self.links.mend()
        for replica in self.replicas:
            replica.spoil(Spoilt())
            self.resume(replica)
            self.begin_soon(replica)

    def others(self, replica: Replica) -> list[Replica]:
        """Return all but REPLICA."""
        return [one for one in self.replicas if one is not replica]

    def cut_everything(self, replica: Replica) -> None:
        """Cut REPLICA off from everybody but clients."""
        self.links.cut(replica.name, [REGISTRY, *(one.name for one in self.others(replica))])

    def cut_clients(self, replica: Replica) -> None:
        """Cut REPLICA off from clients."""
        self.links.cut(replica.name, [CLIENTS])

    # --- who is master

    async def _watch(self) -> None:
        """Write down what the registry says, whenever it says something else."""
        assert self._registry is not None
        cells = self.history.cells
        while True:
            with suppress(PocketMQError):
                found = await self._registry.read()
                self.live = await self._registry.live()
                if found is not None:
                    self.cell = found.cell
                    reign = Reign(found.cell.master, found.cell.epoch)
                    if not cells or cells[-1] != reign:
                        cells.append(reign)
            await asyncio.sleep(_LOOK_S)

    @property
    def master(self) -> Replica | None:
        """Who is master, as the registry has it; it may be gone."""
        if self.cell is None or self.cell.master == 0:
            return None
        return self.replicas[self.cell.master - 1]

    @property
    def epoch(self) -> int:
        return 0 if self.cell is None else self.cell.epoch

    async def status(self, replica: Replica) -> pb.ReplicaStatusReply | None:
        """Return what REPLICA says of itself; None: nothing."""
        async with connect(replica.replication_address) as channel:
            ask = channel.unary_unary(
                "/pocketmq.v1.Replication/Status",
                pb.ReplicaStatusRequest.SerializeToString,
                pb.ReplicaStatusReply.FromString,
            )
            try:
                reply: pb.ReplicaStatusReply = await ask(
                    pb.ReplicaStatusRequest(), timeout=_STATUS_S
                )
            except CallFailed:
                return None
        return reply

    async def all_in_sync(self, timeout_s: float) -> None:
        """Wait until the master lives and all others are in sync with it. Raises TimeoutError."""
        everybody = {one.number for one in self.replicas}
        async with asyncio.timeout(timeout_s):
            while True:
                cell = self.cell
                if (
                    cell is not None
                    and cell.in_sync == everybody == set(self.live)
                    and cell.master in everybody
                ):
                    status = await self.status(self.replicas[cell.master - 1])
                    if status and status.role == pb.MASTER and status.epoch == cell.epoch:
                        return
                await asyncio.sleep(_LOOK_S)

    async def at_rest(self, timeout_s: float) -> int:
        """Wait until all replicas have the same log and all of it is confirmed; return where it ends."""
        async with asyncio.timeout(timeout_s):
            while True:
                await self.all_in_sync(timeout_s)
                found = await asyncio.gather(*map(self.status, self.replicas))
                statuses = [status for status in found if status is not None]
                ends = {status.end for status in statuses}
                if len(statuses) == len(self.replicas) and len(ends) == 1:
                    end = ends.pop()
                    if all(one.confirm == end for one in statuses if one.role == pb.MASTER):
                        return end
                await asyncio.sleep(_LOOK_S)

    # --- what is left

    def read_queues(self, topic: str, queues: int) -> None:
        """Write down the queues of TOPIC as the first replica has them; all have come to rest."""
        store = open_stopped(StoreConfig(path=str(self.replicas[0].root), **STORE))
        try:
            self.history.queues = queues_of(store, topic, queues)
        finally:
            store.close()

    def collect(self, confirm: int) -> None:
        """Write down what all replicas, which have stopped, have on their devices up to CONFIRM."""
        history = self.history
        history.confirm = confirm
        for replica in self.replicas:
            store = open_stopped(StoreConfig(path=str(replica.root), **STORE))
            end = store.max_log_offset
            store.close()
            history.replicas.append(replica_files(replica.number, replica.root, end, confirm))
            history.reigns += replica.reigns()

    def logs(self, lines: int = 15) -> Iterable[str]:
        """Yield the last lines of each log, for whoever looks for a cause."""
        for replica in self.replicas:
            if replica.log.exists():
                for line in replica.log.read_text(errors="replace").splitlines()[-lines:]:
                    yield f"{replica.name}: {line}"
