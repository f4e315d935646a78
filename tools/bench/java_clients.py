"""Two Java programs (java/) that run the shapes of `bench ordinary`: the remoting client, and the official one of 5.x.

Both run with Apache RocketMQ, the official one also with PocketMQ. They warm up as long as they measure, and need a
Java Development Kit.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...proto.errors import ConfigError, PocketMQError
from ..java import find_java
from .apache_servers import READERS, apache_jars

_SOURCES: Final = Path(__file__).parent / "java"
_HEAP: Final = "-Xmx1g"
_TIMEOUT_S: Final = 900.0
_LINE: Final = "shape\t"


@dataclass(frozen=True)
class ShapeRun:
    """What a shape gave; the percentiles are None where no call was waited for."""

    name: str
    per_second: float
    p50_ms: float | None
    p99_ms: float | None

    def text(self) -> str:
        """Return it in words."""
        if self.p50_ms is None or self.p99_ms is None:
            return f"{self.per_second:,.0f}/s"
        return f"{self.per_second:,.0f}/s (p50 {self.p50_ms:.2f}, p99 {self.p99_ms:.2f} ms)"


def check_load(home: Path) -> None:
    """Raise ConfigError, which says what is missing, unless the jars in HOME and a JDK are there."""
    _class_path(home, official=False)
    _class_path(home, official=True)
    java = find_java(os.environ, who="Apache RocketMQ").home
    if not (java / "bin" / "javac").exists():
        raise ConfigError(
            f"{java} is a Java without a compiler, and the load of --apache is two source files: install a JDK"
            " (openjdk-17-jdk-headless), and set JAVA_HOME",
            field="JAVA_HOME",
            value=java,
        )


def classic_load(
    home: Path, nameserver: str, topic: str, seconds: float, count: int
) -> list[ShapeRun]:
    """Run the remoting client on TOPIC and TOPIC-read, where COUNT messages are read."""
    words = [nameserver, topic, str(seconds), str(count)]
    return _run(_class_path(home, official=False), "ClassicLoad", words)


def official_load(home: Path, endpoints: str, topic: str, seconds: float) -> list[ShapeRun]:
    """Run the official client of 5.x on the broker at ENDPOINTS."""
    return _run(
        _class_path(home, official=True), "OfficialLoad", [endpoints, topic, str(seconds), READERS]
    )


def _class_path(home: Path, *, official: bool) -> str:
    """Return the class path of the jars in HOME; OFFICIAL: with the client of 5.x, whose own classes come first."""
    jars = apache_jars(home)
    if not official:
        return jars
    folder = Path(jars.split(os.pathsep)[0]).parent
    found = sorted(folder.glob("rocketmq-client-java-[0-9]*.jar"))
    if not found:
        raise ConfigError(
            f"{folder} has no rocketmq-client-java-*.jar, the official client of 5.x: put it there (Maven's"
            " org.apache.rocketmq:rocketmq-client-java)",
            field="--apache",
            value=str(home),
        )
    return os.pathsep.join((str(found[-1]), jars))


def _run(class_path: str, program: str, words: Sequence[str]) -> list[ShapeRun]:
    """Run PROGRAM with WORDS to its end; return its shapes. Raises PocketMQError with what it said last."""
    java = find_java(os.environ, who="Apache RocketMQ").home / "bin" / "java"
    command = [str(java), _HEAP, "-cp", class_path, str(_SOURCES / f"{program}.java"), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        shapes = (error.stdout or b"").count(_LINE.encode())
        raise PocketMQError(
            f"{program}.java had not ended after {_TIMEOUT_S:.0f} s, {shapes} of its shapes were measured: is the"
            " machine busy? Try again with fewer --seconds"
        ) from error
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if "xception" in line or "error" in line]
        last = (told or done.stderr.splitlines() or ["it said nothing"])[0]
        raise PocketMQError(f"{program}.java ended with code {done.returncode}: {last}")
    return [_shape(line) for line in done.stdout.splitlines() if line.startswith(_LINE)]


def _shape(line: str) -> ShapeRun:
    _, name, count, seconds, p50, p99 = line.split("\t")
    waited = float(p99) > 0
    return ShapeRun(
        name,
        int(count) / float(seconds),
        float(p50) if waited else None,
        float(p99) if waited else None,
    )
