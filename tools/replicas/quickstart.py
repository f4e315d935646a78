"""`pocketmq replicas quickstart`: a replica set on one machine, with a name server and, if asked for, a ZooKeeper.

Each server is a process. One folder has a store and a log file (`replica-1.log`) for each, ZooKeeper's data, and
`quickstart.json` with the ports, which are chosen once. If the port of the name server is taken, it gets another one.
The next start continues with this folder. A replica that ends is not started again, so that you can watch a failover;
the command to start it is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import click

from ...broker.replication.registry import ReplicaSetState
from ...proto.errors import ConfigError, ConnectionLost, MetadataConflict
from ..options import READY
from ..server_process import STOP_S, ServerProcess, ServerProcesses
from ..settings import default_store_path
from ..zookeeper_server import LOOPBACK, Ports, ZooKeeperServer, find_jars, free_ports, is_free
from .sets import ReplicaSets, opened

_PLACES: Final = "quickstart.json"
_NAMESERVER_PORT: Final = 9876
_CLUSTER: Final = "DefaultCluster"
_LOOK_S: Final = 0.2
_MASTER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Place:
    """The ports of one replica: for clients, and for the other replicas."""

    port: int
    replication: int


@dataclass(frozen=True, slots=True)
class _Places:
    """Ports on loopback; `zookeeper` is that of the ZooKeeper that the command starts."""

    nameserver: int
    zookeeper: int
    replicas: tuple[_Place, ...]

    @property
    def addresses(self) -> dict[int, str]:
        """The addresses of replicas for each other, by id."""
        return {one: f"{LOOPBACK}:{of.replication}" for one, of in enumerate(self.replicas, 1)}


@click.command()
@click.option(
    "--replicas",
    "count",
    type=click.IntRange(1, 9),
    default=3,
    show_default=True,
    help="Number of replicas.",
)
@click.option("--zookeeper", metavar="HOST:PORT[,…]", help="ZooKeeper servers that already run.")
@click.option(
    "--zookeeper-home",
    "home",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of ZooKeeper's jars, from which one is started: a distribution, Debian's /usr/share/java, or a"
    " folder with all jars.",
)
@click.option(
    "--replica-set", "name", default="broker-a", show_default=True, help="Name of the set."
)
@click.option(
    "--store",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the stores and settings.  [default: pocketmq/quickstart in the user's data folder]",
)
def quickstart(
    count: int, *, zookeeper: str | None, home: Path | None, name: str, folder: Path | None
) -> None:
    """Run a name server and a replica set on this machine, to try one.

    They run until SIGTERM or Ctrl-C. Replica sets need ZooKeeper: give one that runs, or --zookeeper-home to start one,
    with Java from JAVA_HOME, the PATH or the extra `jre`. Prints the addresses.
    """
    if (zookeeper is None) == (home is None):
        raise click.UsageError(
            "Give either --zookeeper HOST:PORT of a running ZooKeeper, or --zookeeper-home FOLDER with its jars."
        )
    jars = find_jars(home) if home is not None else ""
    folder = folder or Path(default_store_path()).with_name("quickstart")
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(Quickstart(folder, name, count, zookeeper, jars).run())


class Quickstart:
    """The set NAME of COUNT replicas in FOLDER, with its servers. ZOOKEEPER runs already, or is started from JARS."""

    def __init__(
        self, folder: Path, name: str, count: int, zookeeper: str | None, jars: str
    ) -> None:
        self._folder = folder
        self._name = name
        self._places = _places(folder, count)
        self._zookeeper = zookeeper or f"{LOOPBACK}:{self._places.zookeeper}"
        self._own: ZooKeeperServer | None = None
        if jars:
            ports = [Ports(self._places.zookeeper)]
            self._own = ZooKeeperServer(jars, folder / "zookeeper", ports)
        self._processes = ServerProcesses()

    @property
    def _nameserver(self) -> str:
        return f"{LOOPBACK}:{self._places.nameserver}"

    async def run(self) -> None:
        """Start everything, print the addresses, and stop at a signal."""
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        starting = asyncio.create_task(self._start())
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await self._watch(await starting, stopped)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self.stop()

    async def _start(self) -> dict[str, ServerProcess]:
        """Start everything; return the replicas by the command that starts each."""
        if self._own is not None:
            self._own.start()
            await self._own.serving()
            click.echo(f"ZooKeeper     {self._own.address}")
        async with opened(self._zookeeper, _CLUSTER) as sets:
            await self._make(sets)
            await self.start_name_server()
            click.echo(f"Name server   {self._nameserver}")
            replicas = await asyncio.gather(
                *(self._replica(one) for one in range(1, len(self._places.replicas) + 1))
            )
            cell = await self._led(sets)
        for one, (_, process) in enumerate(replicas, 1):
            role = "master" if cell.master == one else "follower"
            click.echo(f"Replica {one}     {process.ready['broker']}, {role}")
        self._announce(cell, [process for _, process in replicas])
        return dict(replicas)

    async def start_name_server(self) -> None:
        """Start the name server, on another port if another process has just taken the one that was free."""
        while True:
            words = ["--port", str(self._places.nameserver)]
            try:
                await self._process("nameserver", words, None, self._folder / "nameserver.log")
            except ConnectionLost:
                if is_free(self._places.nameserver):
                    raise
                self._places = replace(self._places, nameserver=free_ports(1)[0])
                _save(self._folder, self._places)
            else:
                return

    async def _make(self, sets: ReplicaSets) -> None:
        """Make the record of the set, unless it is there. Raises MetadataConflict if it has other replicas."""
        registry = sets.registry(self._name)
        found = await registry.read()
        addresses = self._places.addresses
        if found is None:
            await registry.create(
                ReplicaSetState(epoch=0, master=0, in_sync=frozenset(addresses), replicas=addresses)
            )
        elif found.cell.replicas != addresses:
            raise MetadataConflict(
                f"{self._zookeeper} has a replica set {self._name!r} already, of other replicas than those in "
                f"{self._folder}: choose another --set, or the --store that it was made with",
                set=self._name,
            )

    async def _replica(self, one: int) -> tuple[str, ServerProcess]:
        """Start replica ONE; return what a shell starts it again with, and its process."""
        place = self._places.replicas[one - 1]
        store = self._folder / f"replica-{one}"
        words = ["--nameserver", self._nameserver, "--port", str(place.port)]
        words += ["--replica-set", self._name, "--replica-id", str(one)]
        words += ["--zookeeper", self._zookeeper]
        words += ["--replication-listen", self._places.addresses[one]]
        words += ["--min-in-sync", str(min(2, len(self._places.replicas)))]
        process = await self._process("broker", words, store, store.with_suffix(".log"))
        return shlex.join(["pocketmq", "broker", "--store", str(store), *words]), process

    async def _process(
        self, verb: str, words: list[str], store: Path | None, log: Path
    ) -> ServerProcess:
        """Start a server."""
        return await self._processes.start(
            ServerProcess(store, *words, verb=verb, log=log, waits=False)
        )

    async def stop(self) -> None:
        """Stop all at the same time, so that no other replica becomes master."""
        await self._processes.stop(STOP_S)
        if self._own is not None:
            self._own.kill()

    async def _led(self, sets: ReplicaSets) -> ReplicaSetState:
        """Wait until there is a master; return the metadata that names it."""
        registry = sets.registry(self._name)
        try:
            async with asyncio.timeout(_MASTER_S):
                while (found := await registry.read()) is None or not found.cell.master:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise ConfigError(
                f"no replica has become master within {_MASTER_S:.0f} s: see {self._folder}/replica-*.log"
            ) from None
        return found.cell

    def _announce(self, cell: ReplicaSetState, replicas: list[ServerProcess]) -> None:
        click.echo(
            f"Try: pocketmq replicas status {self._name} --zookeeper {self._zookeeper}; "
            f"pocketmq send --nameserver {self._nameserver} Hello 'first message'"
        )
        ready = {
            "nameserver": self._nameserver,
            "zookeeper": self._zookeeper,
            "set": self._name,
            "master": cell.master,
            "epoch": cell.epoch,
            "replicas": [
                {
                    "id": one,
                    "broker": process.ready["broker"],
                    "replication": cell.replicas[one],
                    "store": process.ready["store"],
                    "pid": process.pid,
                }
                for one, process in enumerate(replicas, 1)
            ],
            "pid": os.getpid(),
        }
        click.echo(READY + json.dumps(ready))
        sys.stdout.flush()

    async def _watch(
        self, processes: Mapping[str, ServerProcess], stopped: asyncio.Task[bool]
    ) -> None:
        """Report processes that ended, with the command that starts them again, until STOPPED."""

        async def watch(command: str, process: ServerProcess) -> None:
            await self._processes.ended(process)
            click.echo(f"A replica has ended. Start it again: {command}", err=True)

        watching = [asyncio.create_task(watch(*one)) for one in processes.items()]
        await stopped
        for task in watching:
            task.cancel()


def _places(folder: Path, count: int) -> _Places:
    """Return the ports noted in FOLDER, or free ones. Raises ConfigError for another COUNT."""
    file = folder / _PLACES
    if file.exists():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            replicas = tuple(_Place(**one) for one in found.pop("replicas"))
            places = _Places(replicas=replicas, **found)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"cannot read {file} ({error}): remove the folder, or give another --store"
            ) from None
        if len(places.replicas) != count:
            raise ConfigError(
                f"{folder} has {len(places.replicas)} replicas: give --replicas {len(places.replicas)}, or "
                "another --store",
                field="replicas",
                value=count,
            )
        return places
    ports = iter(free_ports(2 + 2 * count))
    spare = next(ports)
    places = _Places(
        nameserver=_NAMESERVER_PORT if is_free(_NAMESERVER_PORT) else spare,
        zookeeper=next(ports),
        replicas=tuple(_Place(next(ports), next(ports)) for _ in range(count)),
    )
    _save(folder, places)
    return places


def _save(folder: Path, places: _Places) -> None:
    text = json.dumps(asdict(places), indent=1) + "\n"
    (folder / _PLACES).write_text(text, encoding="utf-8")
