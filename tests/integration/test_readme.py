"""README: its programs run as they are written, and its commands print what it shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ..interop.official.programs import PROGRAMS, surroundings
from ..repository.source_tree import ROOT
from ..served import ServerProcess

README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
OWN, OFFICIAL, TESTED = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CONSOLE: Final = re.findall(r"```console\n(.*?)```", README, re.DOTALL)[1]
PATIENCE_S: Final = 120

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "store") as server:
        yield server


def environment(server: ServerProcess) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "POCKETMQ_NAMESERVER": server.nameserver, "PATH": path}


def test_it_has_at_most_120_lines() -> None:
    assert len(README.splitlines()) <= 120


def test_the_commands_of_the_quickstart_print_what_it_shows(server: ServerProcess) -> None:
    for block in CONSOLE.removeprefix("$ ").split("\n$ "):
        typed, _, expected = block.partition("\n")
        done = subprocess.run(
            ["bash", "-c", typed],
            env=environment(server),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        # Each message has an id of its own, and may go to any queue. "…" stands for what differs each time.
        pattern = re.sub("[0-9A-F]{34}", "[0-9A-F]{34}", re.escape(expected.strip()))
        pattern = pattern.replace("…", ".*")
        pattern = re.sub(r"queue\\ \d", r"queue\\ \\d", pattern)
        assert not expected or re.fullmatch(pattern, done.stdout.strip()), done.stdout


def test_the_program_consumes_what_it_sends(server: ServerProcess, tmp_path: Path) -> None:
    program = tmp_path / "orders.py"
    program.write_text(OWN, encoding="utf-8")
    command = [sys.executable, "-u", str(program)]

    with subprocess.Popen(command, env=environment(server), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == b"order-1 one book\n"
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    test = tmp_path / "test_orders.py"
    test.write_text(TESTED, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.long
@pytest.mark.alone
def test_the_program_of_an_official_client_sends(server: ServerProcess, tmp_path: Path) -> None:
    program = tmp_path / "official.py"
    program.write_text(
        OFFICIAL.replace("127.0.0.1:8081", str(server.ready["broker"])), encoding="utf-8"
    )
    python = PROGRAMS["python"]
    if (missing := python.missing()) and not os.environ.get("CI"):
        pytest.skip(f"not found: {missing}")
    for topic in re.findall(r'Producer\(broker, \["(\w+)"\]\)', OFFICIAL):
        subprocess.run(
            ["pocketmq", "topic", "create", topic],
            env=environment(server),
            check=True,
            timeout=PATIENCE_S,
        )

    done = subprocess.run(
        [python.ready()[0], str(program)],
        **surroundings(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert re.fullmatch("[0-9A-F]{34}\n", done.stdout), done.stderr
    read = ["pocketmq", "consume", "orders", "--group", "audit", "--limit", "1", "--timeout", "30"]
    found = subprocess.run(
        read,
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert found.stdout == "from an official client\n"
