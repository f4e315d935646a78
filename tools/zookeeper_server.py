"""A ZooKeeper server in a process of its own, from given jars: for trying, and for tests.

`find_jars` accepts a folder as a distribution has it (`lib/*.jar` and `conf/`), as Debian packages have it
(`/usr/share/java`), or as Maven fills it (`*.jar`). The server listens on loopback only. Its data, its settings and its
log (`zookeeper.log`) are in one folder. Its heap is 128 MiB.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Final, NamedTuple

from ..proto.errors import ConfigError
from .java import find_java

LOOPBACK: Final = "127.0.0.1"
#: Sessions may be as short as two of them.
TICK_MS: Final = 500
_SESSION_MS_MAX: Final = 60_000
_START_S: Final = 30.0
_LOOK_S: Final = 0.05
_LOG_TAIL: Final = 400
#: Below those that systems give to outgoing connections.
_PORTS: Final = range(11_000, 32_000)
_RANDOM: Final = SystemRandom()
#: One collector, no second compiler: it is up in half a second, on two processors too.
_JVM: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx128m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class Ports(NamedTuple):
    """Where a server listens: for clients, and in an ensemble for its peers, twice."""

    client: int
    peer: int = 0
    election: int = 0


class ZooKeeperServer:
    """The server NUMBER, from 1 on, of those at PEERS, one or an ensemble; its files are in FOLDER.

    MORE are further settings of it; those that begin with -D are given to its Java.
    """

    def __init__(
        self,
        jars: str,
        folder: Path,
        peers: Sequence[Ports],
        number: int = 1,
        more: Mapping[str, str] = {},
    ) -> None:
        self._java = find_java(os.environ, who="ZooKeeper").home / "bin" / "java"
        self._jars = jars
        self._folder = folder
        self._peers = peers
        self._number = number
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{LOOPBACK}:{self._peers[self._number - 1].client}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "start comes first"
        return self._process.pid

    def start(self) -> None:
        """Start the process with the existing data."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "zoo.cfg").write_text(self._settings(), encoding="utf-8")
        (self._folder / "myid").write_text(f"{self._number}\n", encoding="utf-8")
        given = [f"{name}={value}" for name, value in self._more.items() if name.startswith("-D")]
        with (self._folder / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._java), *_JVM, *given, "-cp", self._jars, _MAIN, "./zoo.cfg"],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for who started it: what follows it needs it a moment longer.
            )

    async def serving(self) -> str:
        """Wait until it serves; return what it is: standalone, leader or follower. Raises ConfigError if it ends."""
        async with asyncio.timeout(_START_S):
            while True:
                if self._process is None or self._process.poll() is not None:
                    raise ConfigError(
                        f"ZooKeeper at {self.address} has ended: {self._last_words()}",
                        folder=str(self._folder),
                    )
                if mode := await self.mode():
                    return mode
                await asyncio.sleep(_LOOK_S)

    async def mode(self) -> str | None:
        """Return standalone, leader or follower; None: it does not serve."""
        text = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_connection(
                    LOOPBACK, self._peers[self._number - 1].client
                )
                try:
                    writer.write(b"srvr")
                    text = await reader.read()
                finally:
                    writer.close()
        for line in text.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP, SIGCONT, SIGKILL. After SIGSTOP, return once all its threads have stopped."""
        assert self._process is not None, "start comes first"
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """End it as `kill -9` does; what it has committed is on its device."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _settings(self) -> str:
        lines = {
            "tickTime": TICK_MS,
            "initLimit": 20,
            "syncLimit": 4,
            "dataDir": self._folder.resolve(),
            "clientPort": self._peers[self._number - 1].client,
            "clientPortAddress": LOOPBACK,
            "maxSessionTimeout": _SESSION_MS_MAX,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        lines |= {name: value for name, value in self._more.items() if not name.startswith("-D")}
        if len(self._peers) > 1:
            for number, ports in enumerate(self._peers, 1):
                lines[f"server.{number}"] = f"{LOOPBACK}:{ports.peer}:{ports.election}"
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def _last_words(self) -> str:
        log = self._folder / "zookeeper.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line for line in lines if "Exception" in line or "ERROR" in line] or lines
        return f"{told[-1][:_LOG_TAIL] if told else 'it printed nothing'}; see {log}"


def find_jars(home: Path) -> str:
    """Return the class path of the ZooKeeper in HOME. Raises ConfigError if there is none."""
    for folder in (home / "lib", home):
        if any(folder.glob("zookeeper-[0-9]*.jar")) or (folder / "zookeeper.jar").exists():
            return os.pathsep.join(
                [str(home / "conf"), f"{folder.resolve()}/*", f"{home.resolve()}/*"]
            )
    raise ConfigError(
        f"{home} and its lib have no zookeeper-*.jar. Give the folder of a distribution, of Debian's packages "
        "(/usr/share/java), or one with all jars, as from mvn dependency:copy-dependencies",
        field="--zookeeper-home",
        value=str(home),
    )


def free_ports(count: int) -> list[int]:
    """Return COUNT ports of loopback that are free now, and that no outgoing connection takes later."""
    found: list[int] = []
    while len(found) < count:
        port = _RANDOM.choice(_PORTS)
        if port not in found and is_free(port):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Is PORT of loopback free at this moment?"""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True
