"""Apache RocketMQ's own servers for benchmarks, from given jars.

`apache_alone` is a name server and a broker with its proxy, as in RocketMQ's quick start.

`apache_pair` is a name server, a SYNC_MASTER with `inSyncReplicas=2` and its SLAVE, on loopback, with a heap of 1 GiB
each. A send is answered once the slave has it in memory; with SYNC_FLUSH the master's disk has it, too. Messages are
sent one by one over one connection by PocketMQ's remoting client, whose cost is included. There is no election.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ...proto.errors import ConfigError, PocketMQError
from ...proto.remoting.client import RemotingClient, open_tcp, read_command
from ...proto.remoting.codes import SUCCESS
from ...proto.remoting.command import RemotingCommand, encode
from ..java import find_java
from ..zookeeper_server import LOOPBACK, free_ports
from .servers import QUEUES, TOPIC

_JVM: Final = (
    "-Xms256m",
    "-Xmx1g",
    "-XX:MaxDirectMemorySize=1g",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
_NAME_SERVER: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER: Final = "org.apache.rocketmq.broker.BrokerStartup"
_PROXY: Final = "org.apache.rocketmq.proxy.ProxyStartup"
_BROKER_JAR: Final = "rocketmq-broker-"
_SEND: Final = 310
_CREATE_TOPIC: Final = 17
_CREATE_GROUP: Final = 200
#: Whom official consumers are of.
READERS: Final = "bench-readers"
_START_S: Final = 180.0
_LOOK_S: Final = 0.1
_ANSWER_MAX: Final = 1 << 20
#: Code that the just-in-time compiler has not seen is slow.
_WARM: Final = 3_000
#: A broker also uses ports near its own: two below, and those of its HA service above.
_APART: Final = 10


def apache_jars(home: Path) -> str:
    """Return the class path of the Apache RocketMQ in HOME. Raises ConfigError if there is none."""
    for folder in (home / "lib", home):
        if any(folder.glob(f"{_BROKER_JAR}*.jar")):
            # The client of its 5.x protocol brings another copy of classes that a broker has.
            jars = [jar for jar in sorted(folder.glob("*.jar")) if "client-java" not in jar.name]
            return os.pathsep.join(map(str, jars))
    raise ConfigError(
        f"{home} and its lib have no rocketmq-broker-*.jar. Give the folder of a distribution, or one that Maven"
        " has filled",
        field="--apache",
        value=str(home),
    )


def apache_version(home: Path) -> str:
    """Return what version the jars in HOME are of."""
    jar = next(jar for jar in apache_jars(home).split(os.pathsep) if _BROKER_JAR in jar)
    return Path(jar).stem.removeprefix(_BROKER_JAR)


@contextmanager
def apache_pair(home: Path, folder: Path, flush: str) -> Iterator[str]:
    """The address of a master with a slave, from the jars in HOME, below FOLDER; FLUSH is their flushDiskType."""
    jars = apache_jars(home)
    nameserver, master, slave = _ports(3)
    servers = [
        JavaServer(jars, folder / "nameserver", _NAME_SERVER, {"listenPort": str(nameserver)})
    ]
    for name, port, role in (("master", master, "SYNC_MASTER"), ("slave", slave, "SLAVE")):
        settings = {
            "brokerClusterName": "apache",
            "brokerName": "apache-pair",
            "brokerId": "0" if role == "SYNC_MASTER" else "1",
            "brokerIP1": LOOPBACK,
            "brokerIP2": LOOPBACK,
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "namesrvAddr": f"{LOOPBACK}:{nameserver}",
            "brokerRole": role,
            "inSyncReplicas": "2",
            "flushDiskType": flush,
            "storePathRootDir": str(folder / name / "store"),
            "storePathCommitLog": str(folder / name / "store" / "commitlog"),
        }
        servers.append(JavaServer(jars, folder / name, _BROKER, settings))
    try:
        for server in servers:
            server.start()
        address = f"{LOOPBACK}:{master}"
        asyncio.run(_ready(address))
        yield address
    finally:
        for server in reversed(servers):
            server.kill()


@contextmanager
def apache_alone(home: Path, folder: Path, topics: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Addresses of a name server and a broker's proxy, from the jars in HOME, below FOLDER; with TOPICS and READERS."""
    jars = apache_jars(home)
    nameserver, port, proxy = _ports(3)
    names = f"{LOOPBACK}:{nameserver}"
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "apache",
        "brokerId": "0",
        "brokerIP1": LOOPBACK,
        "listenPort": str(port),
        "namesrvAddr": names,
        "waitTimeMillsInSendQueue": "30000",  # A busy machine is no reason to refuse a send.
        "osPageCacheBusyTimeOutMills": "30000",
        "storePathRootDir": str(folder / "broker" / "store"),
        "storePathCommitLog": str(folder / "broker" / "store" / "commitlog"),
    }
    told = {
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": proxy,
        "remotingListenPort": proxy + 1,
        "namesrvAddr": names,
        "useEndpointPortFromRequest": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "proxy.json"
    file.write_text(json.dumps(told), encoding="utf-8")
    words = ["-pm", "local", "-n", names, "-pc", str(file), "-bc"]
    servers = [
        JavaServer(jars, folder / "nameserver", _NAME_SERVER, {"listenPort": str(nameserver)}),
        JavaServer(jars, folder / "broker", _PROXY, settings, words),
    ]
    try:
        for server in servers:
            server.start()
        asyncio.run(_with_topics(f"{LOOPBACK}:{port}", topics, [READERS]))
        yield names, f"{LOOPBACK}:{proxy}"
    finally:
        for server in reversed(servers):
            server.kill()


class JavaServer:
    """One Java process, `MAIN -c FILE` with SETTINGS, whose files are in FOLDER; WORDS: instead of -c."""

    def __init__(
        self,
        jars: str,
        folder: Path,
        main: str,
        settings: dict[str, str],
        words: Sequence[str] = ("-c",),
    ) -> None:
        self._java = find_java(os.environ, who="Apache RocketMQ").home / "bin" / "java"
        self._jars = jars
        self._folder = folder
        self._main = main
        self._settings = settings
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it says that it serves."""
        self._folder.mkdir(parents=True)
        file, log = self._folder / "settings.conf", self._folder / "said.log"
        lines = (f"{name}={value}\n" for name, value in self._settings.items())
        file.write_text("".join(lines), encoding="utf-8")
        own = (f"-Duser.home={self._folder}", f"-Drocketmq.home.dir={self._folder}")
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [
                    str(self._java),
                    *_JVM,
                    *own,
                    "-cp",
                    self._jars,
                    self._main,
                    *self._words,
                    str(file),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        end = time.perf_counter() + _START_S
        while b"success" not in log.read_bytes():
            if self._process.poll() is not None or time.perf_counter() > end:
                told = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise PocketMQError(f"{self._main} does not serve: {told}; see {log}")
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _ports(count: int) -> list[int]:
    """Return COUNT free ports with free ports around each."""
    found: list[int] = []
    while len(found) < count:
        (port,) = free_ports(1)
        if port < 65_536 - _APART and all(abs(port - other) > _APART for other in found):
            found.append(port)
    return found


async def _with_topics(address: str, topics: Sequence[str], groups: Sequence[str] = ()) -> None:
    """Make TOPICS and GROUPS: RocketMQ's proxy lets no official consumer in whose group is not there."""
    numbers = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
    same = {"defaultTopic": "TBW102", "perm": "6", "topicSysFlag": "0", "order": "false"}
    async with await RemotingClient.connect(address) as client:
        for topic in topics:
            told = {"topic": topic, "topicFilterType": "SINGLE_TAG"}
            await client.call(_CREATE_TOPIC, same | numbers | told)
        for group in groups:
            await client.call(_CREATE_GROUP, body=json.dumps({"groupName": group}).encode())


async def _ready(address: str) -> None:
    """Make the topic, and wait until the slave has what is sent."""
    await _with_topics(address, [TOPIC])
    end = time.perf_counter() + _START_S
    async with await RemotingClient.connect(address) as client:
        while True:
            with suppress(
                PocketMQError
            ):  # FLUSH_SLAVE_TIMEOUT, as long as the slave does not follow.
                await client.call(_SEND, _fields(0), b"ready?")
                return
            if time.perf_counter() > end:
                raise PocketMQError(f"the slave of {address} has nothing after {_START_S:.0f} s")
            await asyncio.sleep(_LOOK_S)


def _fields(queue: int) -> dict[str, str]:
    """Return what a send says besides its body."""
    said = {"a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue), "f": "0"}
    return said | {"g": "0", "h": "0", "i": "", "j": "0", "k": "false", "l": "0", "m": "false"}


class ApacheSender:
    """Sends bodies of BODY_BYTES to the master at ADDRESS."""

    def __init__(self, address: str, body_bytes: int) -> None:
        self._address = address
        self._body = bytes(body_bytes)

    def one_by_one(self, seconds: float) -> list[float]:
        """Return how long each send took of those that waited for one another, for SECONDS."""
        asyncio.run(self._storm(1, count=_WARM))
        return asyncio.run(self._storm(1, seconds=seconds))

    def per_second(self, in_flight: int, seconds: float) -> float:
        """Return how many a second are acknowledged with IN_FLIGHT at a time."""
        asyncio.run(self._storm(in_flight, count=_WARM))
        began = time.perf_counter()
        latencies = asyncio.run(self._storm(in_flight, seconds=seconds))
        return len(latencies) / (time.perf_counter() - began)

    async def _storm(self, in_flight: int, *, count: int = 0, seconds: float = 0.0) -> list[float]:
        """Send COUNT messages, or for SECONDS; return how long each took that was acknowledged."""
        reader, writer = await open_tcp(self._address, _START_S)
        latencies: list[float] = []
        begun: dict[int, float] = {}
        number = 0
        end = time.perf_counter() + seconds
        while True:
            while len(begun) < in_flight and (number < count or time.perf_counter() < end):
                number += 1
                command = RemotingCommand(
                    code=_SEND, opaque=number, fields=_fields(number % QUEUES), body=self._body
                )
                begun[number] = time.perf_counter()
                writer.write(encode(command))
            if not begun:
                break
            answer = await read_command(reader, _ANSWER_MAX)
            if answer is None:
                raise PocketMQError(
                    f"Apache RocketMQ's master {self._address} closed the connection"
                )
            if answer.is_answer:
                took = time.perf_counter() - begun.pop(answer.opaque)
                latencies += [took] if answer.code == SUCCESS else []
        writer.close()
        if not latencies:
            raise PocketMQError(f"Apache RocketMQ's master {self._address} acknowledged nothing")
        return latencies
