"""The tutorial and the quickstart, block by block as they stand: what is typed, and what comes.

The second terminal is one bash for a whole page. The brokers of the first take free ports here, and the addresses that
the text names are replaced. What only reads is typed again until it shows what the text shows, as a reader would.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pytest

from tests.served import ServerProcess

DOCS = Path(__file__).resolve().parents[2] / "docs"
READING = ("sort ", "tail ", "pocketmq lag", "pocketmq dead-letters list", "pocketmq find")
PATIENCE_S = 120.0
END = "--- the end of a command:"


@dataclass(frozen=True)
class Block:
    """A block of the text: what stands behind its fence, and its lines."""

    line: int
    kind: str
    name: str
    lines: list[str]


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of PAGE."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        if lines[at].startswith("```"):
            kind, _, name = lines[at].removeprefix("```").partition(" ")
            end = lines.index("```", at + 1)
            yield Block(at + 1, kind, name, lines[at + 1 : end])
            at = end
        at += 1


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield what is typed in BLOCK, each with the lines that come."""
    typed, come = "", list[str]()
    for line in block.lines:
        if line.startswith("$ "):
            if typed:
                yield typed, come
            typed, come = line.removeprefix("$ "), []
        else:
            come.append(line)
    yield typed, come


def pattern_of(come: list[str]) -> re.Pattern[str]:
    """Return what COME stands for: `…` for anything in a line, alone for any lines; spaces for one or more."""
    parts = []
    for line in come:
        if line == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            words = (re.escape(word).replace("…", ".*") for word in line.split())
            parts.append(r"[ ]*" + r"[ ]+".join(words).replace(r"[ ]+.*", ".*") + r"[ ]*\n")
    return re.compile("".join(parts))


class Terminal:
    """A bash in FOLDER that finds this environment's commands."""

    def __init__(self, folder: Path, nameserver: str) -> None:
        self._errors = folder / "terminal.err"
        environment = dict(os.environ, POCKETMQ_NAMESERVER=nameserver, COLUMNS="200")
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        with self._errors.open("wb") as errors:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def type(self, command: str) -> tuple[int, str]:
        """Run COMMAND; return its exit code and what it wrote."""
        said, answer = cast("IO[str]", self._bash.stdin), cast("IO[str]", self._bash.stdout)
        said.write(f'{command}\necho "{END} $?"\n')
        said.flush()
        text = ""
        for line in answer:
            if line.startswith(END):
                return int(line.rpartition(" ")[2]), text
            text += line
        raise AssertionError(f"bash ended at {command!r}: {text}{self.errors()}")

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")[-3_000:]

    def close(self) -> None:
        """End bash, and what it has left running."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


def show(terminal: Terminal, typed: str, come: list[str], where: str) -> None:
    """Type it, until what comes is what the text shows; once, unless it only reads."""
    wanted = pattern_of(come)
    end = time.monotonic() + PATIENCE_S
    while True:
        code, text = terminal.type(typed)
        if code == 0 and (wanted.fullmatch(text) or (not come and "=$(" in typed)):
            return
        if not typed.startswith(READING) or time.monotonic() > end:
            expected = "\n".join(come)
            told = f"{where}: $ {typed}\n(exit code {code})\n{text}--- instead of\n{expected}\n"
            raise AssertionError(f"{told}--- stderr\n{terminal.errors()}")
        terminal.type("sleep 0.5")


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_block_of_the_quickstart_does_what_the_text_shows(tmp_path: Path) -> None:
    assert follow("quickstart.md", tmp_path) == {"127.0.0.1:9876"}


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(
    900
)  # Thirty commands and a session of Spark, on a machine that does other things as well.
def test_every_block_of_the_tutorial_does_what_the_text_shows(tmp_path: Path) -> None:
    assert follow("tutorial.md", tmp_path) == {"127.0.0.1:9876", "127.0.0.1:9976"}


def follow(page: str, tmp_path: Path) -> set[str]:
    """Do what PAGE shows, in a folder of TMP_PATH; return the addresses of the name servers that it starts."""
    addresses: dict[str, str] = {}
    terminal: Terminal | None = None
    folder = tmp_path / "work"
    folder.mkdir()
    with ExitStack() as stack:
        for block in blocks(page):
            where = f"docs/{page}:{block.line}"
            if block.kind == "python":
                (folder / block.name).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
                continue
            assert block.kind == "console", where
            if block.name == "server":
                ((typed, _),) = commands(block)
                words = typed.split()
                assert words[:3] == ["pocketmq", "serve", "--store"], where
                options = dict(zip(words[4::2], words[5::2], strict=True))
                named = f"127.0.0.1:{options.pop('--nameserver-port', '9876')}"
                options.pop("--port", None)
                arguments = [word for option in options.items() for word in option]
                store = folder / words[3]
                log = tmp_path / f"{store.name}.log"
                server = stack.enter_context(ServerProcess(store, *arguments, log=log))
                addresses[named] = server.nameserver
                if terminal is None:
                    terminal = Terminal(folder, server.nameserver)
                    stack.callback(terminal.close)
                continue
            for typed, come in commands(block):
                if typed.startswith("mkdir "):
                    continue  # That is where the terminal is.
                for named, real in addresses.items():
                    typed = typed.replace(named, real)
                assert terminal is not None, where
                show(terminal, typed, come, where)
    return set(addresses)
