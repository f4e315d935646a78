"""The servers of the test kit: a name server and a broker, in this process or in one of their own.

Both are started, stopped, killed and started again on one folder, and keep their ports from the first start on.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from ...broker.broker import Broker
from ...broker.config import BrokerConfig
from ...nameserver.config import NameServerConfig
from ...nameserver.nameserver import NameServer
from ...proto.clock import SystemClock, VirtualClock
from ...proto.configuration import nearest
from ...proto.errors import ConfigError, PocketMQError
from ...store.config import StoreConfig
from ...store.os_disk import OsDisk
from ..faults import Faults, FaultyNetwork, parse_faults

if TYPE_CHECKING:
    from ..server_process import ServerProcess

_MIB: Final = 1024 * 1024
#: Small files, a disk that may be fuller, and no background work.
_STORE: Final[Mapping[str, Any]] = {
    "log_file_size_bytes": 16 * _MIB,
    "queue_file_size_bytes": 20_000,
    "index_slots": 1_000,
    "index_entries": 4_000,
    "timer_log_file_size_bytes": _MIB,
    "disk_expire_percent": 100,
    "disk_force_percent": 100,
    "disk_refuse_percent": 100,
    "scrub_bytes_per_s": 0,
}
#: Members of a group come one by one in tests, and a test has few topics.
_BROKER: Final[Mapping[str, Any]] = {
    "group_rebalance_delay_ms": 0,
    "group_initial_rebalance_max_ms": 0,
    "stop_grace_ms": 500,
}
#: Below those that connections take.
_PORTS: Final = (11_000, 32_000)
_PORT_TRIES: Final = 100
_COPY_TRIES: Final = 20
_REGISTER_TIMEOUT_S: Final = 60.0
_STOP_GRACE_S: Final = 0.2
_BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """What a broker of the test kit is like."""

    clock: Literal["virtual", "system"] = "virtual"
    #: In a process of its own?
    process: bool = False
    #: As for `pocketmq serve --faults`; "": nothing goes wrong.
    faults: str = ""
    seed: int = 0
    #: Settings as in the sections `broker` and `store` of the configuration file.
    broker: Mapping[str, Any] = field(default_factory=dict)
    store: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the options GIVEN, as values or as pytest's settings have them, as texts. Raises ConfigError."""
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"a broker of the test kit has no option {name!r}{nearest(name, known)}",
                    field=name,
                )
        found = dict(given)
        if isinstance(text := found.get("process"), str):
            found["process"] = _BOOLEANS.get(text.lower(), text)
        if isinstance(text := found.get("seed"), str) and text.isdecimal():
            found["seed"] = int(text)
        return cls(**found)

    def __post_init__(self) -> None:
        _check("clock", self.clock, self.clock in ("virtual", "system"), "virtual or system")
        _check("process", self.process, isinstance(self.process, bool), "true or false")
        _check("seed", self.seed, isinstance(self.seed, int), "a whole number")
        parse_faults(self.faults)
        for name in ("broker", "store"):
            value = getattr(self, name)
            _check(name, value, isinstance(value, Mapping), "a dict of settings")


def _check(name: str, value: object, is_right: bool, wanted: str) -> None:
    if not is_right:
        raise ConfigError(
            f"the test kit's option {name} is {value!r:.80}, but must be {wanted}", field=name
        )


class KitServers(Protocol):
    """A name server and a broker. `start` after a stop or a kill continues with what is stored."""

    #: Where own clients find their way, and where official clients connect to.
    nameserver: str
    endpoint: str
    #: The folder of the store.
    store: Path
    #: What goes wrong; None: that cannot be changed any more.
    faults: Faults | None

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...


class ServersHere:
    """Servers on the loop that calls."""

    def __init__(self, folder: Path, options: BrokerOptions) -> None:
        self.nameserver = self.endpoint = ""
        self.store = folder / "store"
        self._kills = 0
        self._options = options
        self._ports = free_port(), free_port()
        self._wall = SystemClock()
        self._now_ms = self._wall.unix_ms()
        self._clock: VirtualClock | None = None
        self._disk = OsDisk()
        self._names: NameServer | None = None
        self.faults: Faults | None = Faults(parse_faults(options.faults), options.seed)
        self._network = FaultyNetwork(faults=self.faults)
        self._broker: Broker | None = None

    async def start(self) -> None:
        """Serve. Raises ConfigError, StoreError."""
        options = self._options
        if self._names is None:
            grpc = options.broker.get("grpc", "builtin")
            self._names = NameServer.build(
                NameServerConfig(port=self._ports[0], grpc=grpc), clock=self._wall
            )
            await self._names.start()
            self.nameserver = self._names.address
        names = {"port": self._ports[1], "nameservers": (self.nameserver,)}
        config = _made(BrokerConfig, "broker", {**_BROKER, **names, **options.broker})
        store = _made(StoreConfig, "store", {**_STORE, **options.store, "path": str(self.store)})
        if options.clock == "virtual":
            self._clock = VirtualClock(self._now_ms)
        self._broker = Broker.build(
            config,
            store,
            disk=self._disk,
            clock=self._clock or self._wall,
            wall=self._wall,
            network=self._network,
        )
        await self._broker.start()
        self.endpoint = self._broker.address
        if not await self._broker.registered(_REGISTER_TIMEOUT_S):
            raise PocketMQError(f"the broker is not registered after {_REGISTER_TIMEOUT_S:.0f} s")

    async def stop(self) -> None:
        """Stop both servers."""
        await self._stop_broker()
        names, self._names = self._names, None
        if names is not None:
            await names.stop(_STOP_GRACE_S)

    async def _stop_broker(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            if self._clock is not None:
                self._now_ms = self._clock.unix_ms()
            await broker.stop()

    async def kill(self) -> None:
        """End the broker as a kill of its process does: connections end, nothing more is saved.

        The files continue as they are once no answer can leave any more: in a copy, while the broker that is left
        without callers stops with the others.
        """
        if self._broker is None:
            return
        await self._network.carriers[-1].stop(0)
        killed = self.store
        self._kills += 1
        self.store = killed.with_name(f"store-{self._kills}")
        _copy_store(killed, self.store)
        await self._stop_broker()
        shutil.rmtree(killed)


class ServersApart:
    """Servers in a process of their own."""

    def __init__(self, folder: Path, options: BrokerOptions) -> None:
        self.nameserver = self.endpoint = ""
        self.store = folder / "store"
        self._options = options
        self._ports = free_port(), free_port()
        self.faults: Faults | None = None
        self._file = folder / "pocketmq.yaml"
        self._process: ServerProcess | None = None

    async def start(self) -> None:
        """Serve. Raises ConnectionLost, which quotes what the process said."""
        from ..server_process import ServerProcess

        options = self._options
        _made(BrokerConfig, "broker", options.broker)
        _made(StoreConfig, "store", {**options.store, "path": str(self.store)})
        # YAML takes JSON.
        sections = {
            "broker": {**_BROKER, **options.broker},
            "store": {**_STORE, **options.store},
        }
        self._file.write_text(json.dumps(sections))
        arguments = ["--config", str(self._file), "--clock", options.clock]
        if grpc := options.broker.get("grpc"):
            arguments += ["--grpc", str(grpc)]
        if options.faults:
            arguments += ["--faults", options.faults, "--seed", str(options.seed)]
        for name, port in zip(("--nameserver-port", "--port"), self._ports, strict=True):
            arguments += [name, str(port)]
        self._process = await asyncio.to_thread(ServerProcess, self.store, *arguments)
        ready = self._process.ready
        self.nameserver, self.endpoint = str(ready["nameserver"]), str(ready["broker"])

    async def stop(self) -> None:
        """End the process cleanly."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop)

    async def kill(self) -> None:
        """End the process by SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.kill)


def _made(kind: type[Any], section: str, settings: Mapping[str, Any]) -> Any:
    """Return KIND of SETTINGS; raise ConfigError that names SECTION for one that there is not."""
    known = [one.name for one in fields(kind)]
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"{section} has no setting {name!r}{nearest(name, known)}", field=name
            )
    return kind(**settings)


def free_port() -> int:
    """Return a free port, which no connection takes while its server is stopped."""
    random = SystemRandom()
    for _ in range(_PORT_TRIES):
        port = random.randrange(*_PORTS)
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            return port
    raise PocketMQError(f"none of {_PORT_TRIES} ports from {_PORTS[0]} to {_PORTS[1]} is free")


def _copy_store(source: Path, target: Path) -> None:
    """Copy a store that is not quiet yet: again where a file was replaced meanwhile."""
    for tries_left in range(_COPY_TRIES, -1, -1):
        try:
            shutil.copytree(source, target, copy_function=_copy_sparse)
            return
        except OSError:  # shutil.Error is one.
            if not tries_left:
                raise
            shutil.rmtree(target, ignore_errors=True)


def _copy_sparse(source: str, target: str) -> None:
    """Copy what is written of SOURCE: most of a store's files is holes."""
    with open(source, "rb") as read, open(target, "wb") as written:
        size, place = os.fstat(read.fileno()).st_size, 0
        while place < size:
            try:
                place = os.lseek(read.fileno(), place, os.SEEK_DATA)
            except OSError:  # Nothing but a hole is left.
                break
            end = os.lseek(read.fileno(), place, os.SEEK_HOLE)
            while place < end:
                written.seek(place)
                read.seek(place)
                place += written.write(read.read(min(end - place, _MIB)))
        written.truncate(size)
