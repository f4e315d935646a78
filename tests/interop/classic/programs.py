"""Programs of classic clients: in Java from Maven Central, in two versions, and in Go from its proxy.

Builds are made as those of official clients are: once, and again when a file of the program changes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..official.programs import BUILD, Program, run

HERE: Final = Path(__file__).resolve().parent
#: Of RocketMQ 4.x and of 5.x.
JAVA_VERSIONS: Final = ("4.9.8", "5.5.0")


@dataclass(frozen=True)
class ClassicProgram(Program):
    """A program from FOLDER, for one version of its client."""

    folder: Path = HERE

    @property
    def source(self) -> Path:
        return self.folder

    def _fingerprint(self) -> str:
        files = sorted(path for path in self.folder.iterdir() if path.is_file())
        sources = b"".join(path.read_bytes() for path in files)
        return hashlib.sha256(sources + self.client.encode()).hexdigest()


def java(version: str) -> ClassicProgram:
    """Return the program for VERSION of the Java client."""
    source = HERE / "java"

    def build(folder: Path) -> None:
        where = (f"-Dclient.version={version}", f"-DoutputDirectory={folder}/lib")
        run("mvn", "-q", "-B", *where, "process-sources", cwd=source)
        compiled = ("-cp", f"{folder}/lib/*", "-d", folder / "classes", source / "Program.java")
        run("javac", "-nowarn", *compiled, cwd=folder)

    def command(folder: Path) -> list[str]:
        settings = ["-XX:TieredStopAtLevel=1", "-Xmx256m", f"-Duser.home={BUILD}/home"]
        return ["java", *settings, "-cp", f"{folder}/classes:{folder}/lib/*", "Program"]

    return ClassicProgram(
        f"classic-java-{version}",
        f"rocketmq-client {version}",
        ("java", "javac", "mvn"),
        build,
        command,
        folder=source,
    )


def go() -> ClassicProgram:
    """Return the program for the Go client."""
    source = HERE / "go"

    def build(folder: Path) -> None:
        run("go", "build", "-mod=readonly", "-o", folder / "program", ".", cwd=source)

    return ClassicProgram(
        "classic-go",
        "rocketmq-client-go v2.1.2",
        ("go",),
        build,
        lambda folder: [f"{folder}/program"],
        folder=source,
    )
