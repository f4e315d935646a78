"""The official clients' programs, one folder a language: what they need, and how they are built.

Versions are pinned by the languages' own lock files; builds lie under OFFICIAL_CLIENTS_BUILD (build/official-clients),
and are made again when a file of the language's folder changes. Where a tool chain is missing tests skip; in CI they
fail.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
BUILD: Final = Path(
    os.environ.get("OFFICIAL_CLIENTS_BUILD") or HERE.parents[2] / "build" / "official-clients"
).resolve()


class BuildFailed(Exception):
    """A program could not be built; the text is what its tools said last."""


@dataclass(frozen=True)
class Program:
    """The program of one language: its tools, how it is built in a folder, and how it is run from there."""

    name: str
    client: str
    tools: tuple[str, ...]
    build: Callable[[Path], None]
    command: Callable[[Path], list[str]]
    tls: bool = False
    #: What its client cannot do at all: commands of driver.py.
    lacks: frozenset[str] = frozenset()
    #: Node.js and Rust take no call above 4 MiB, and Rust hands out packed bodies as they are.
    takes_4_mib: bool = True
    unpacks: bool = True
    #: Rust's fails the first call after a connection was said to end, and makes another for the next.
    goes_on_elsewhere: bool = True
    #: Rust's spins when a stop resets its stream of settings behind the error that ended it, as grpcio does.
    survives_resets: bool = True
    #: Go's simple consumer drops what an acknowledgement was answered.
    tells_refused_acks: bool = True
    #: Node.js' producer sends no more to a broker that has failed it once, while there is another.
    comes_back: bool = True
    #: What separates addresses of an access point. Empty: Node.js', which makes one name of several addresses.
    separator: str = ";"

    def access_point(self, addresses: Sequence[str]) -> str:
        """Return ADDRESSES as the client takes them; the first one, if it takes no more."""
        return self.separator.join(addresses) if self.separator else addresses[0]

    @property
    def source(self) -> Path:
        return HERE / self.name

    def missing(self) -> list[str]:
        """Return the tools that are not there."""
        return [tool for tool in self.tools if shutil.which(tool) is None]

    def ready(self) -> list[str]:
        """Return the command that runs the program, built first where it is not up to date."""
        folder = BUILD / self.name
        folder.mkdir(parents=True, exist_ok=True)
        stamp, wanted = folder / "built-from", self._fingerprint()
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Two runs may share the folder.
            if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
                self.build(folder)
                stamp.write_text(wanted, encoding="utf-8")
        return self.command(folder)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(sys.version.encode())
        for path in sorted(self.source.rglob("*")):
            if path.is_file():
                digest.update(path.relative_to(self.source).as_posix().encode() + path.read_bytes())
        return digest.hexdigest()


def surroundings(*, tls: bool = True) -> dict[str, Any]:
    """Return where programs run, as `Popen` takes it: clients write their logs at home.

    Go's and Java's speak TLS unless they are told otherwise, as where there is no TLS.
    """
    home = BUILD / "home"
    home.mkdir(parents=True, exist_ok=True)
    told = {"HOME": str(home), "rocketmq.client.enableSsl": str(tls).lower()}
    return {"cwd": home, "env": os.environ | told}


def run(*command: str | Path, cwd: Path, **environment: str) -> None:
    """Run a step of a build; raise BuildFailed with what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}")


def _build_python(folder: Path) -> None:
    run(sys.executable, "-m", "venv", "venv", cwd=folder)
    requirements = HERE / "python" / "requirements.txt"
    run("venv/bin/python", "-m", "pip", "install", "--quiet", "-r", requirements, cwd=folder)


def _build_node(folder: Path) -> None:
    for name in ("package.json", "package-lock.json", "program.js"):
        shutil.copy(HERE / "node" / name, folder)
    run("npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)


def _build_go(folder: Path) -> None:
    run("go", "build", "-mod=readonly", "-o", folder / "program", ".", cwd=HERE / "go")


def _build_java(folder: Path) -> None:
    run("mvn", "-q", "-B", f"-DoutputDirectory={folder}/lib", "process-sources", cwd=HERE / "java")
    source = HERE / "java" / "Program.java"
    run("javac", "-cp", f"{folder}/lib/*", "-d", folder / "classes", source, cwd=folder)


def _build_rust(folder: Path) -> None:
    run("cargo", "build", "--locked", "--target-dir", folder, cwd=HERE / "rust")


PROGRAMS: Final = {
    program.name: program
    for program in (
        Program(
            "python",
            "rocketmq-python-client 5.1.2",
            (),
            _build_python,
            lambda folder: [f"{folder}/venv/bin/python", str(HERE / "python" / "program.py")],
        ),
        Program(
            "node",
            "rocketmq-client-nodejs 1.0.8",
            ("node", "npm"),
            _build_node,
            lambda folder: ["node", f"{folder}/program.js"],
            takes_4_mib=False,
            comes_back=False,
            separator="",
        ),
        Program(
            "go",
            "rocketmq-clients/golang v5.1.4",
            ("go",),
            _build_go,
            lambda folder: [f"{folder}/program"],
            tls=True,
            tells_refused_acks=False,
        ),
        Program(
            "java",
            "rocketmq-client-java 5.2.0",
            ("java", "javac", "mvn"),
            _build_java,
            lambda folder: [
                "java",
                "-XX:TieredStopAtLevel=1",
                "-Xmx512m",
                f"-Duser.home={BUILD}/home",
                "-cp",
                f"{folder}/classes:{folder}/lib/*",
                "Program",
            ],
            tls=True,
        ),
        Program(
            "rust",
            "rocketmq (crate) 5.0.0",
            ("cargo",),
            _build_rust,
            lambda folder: [f"{folder}/debug/official-client"],
            lacks=frozenset({"push", "recall", "change"}),
            takes_4_mib=False,
            unpacks=False,
            goes_on_elsewhere=False,
            survives_resets=False,
            separator=",",
        ),
    )
}
