"""Classic clients work with PocketMQ as they are: all their kinds of sends, consumers and transactions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from pocketmq.client import Admin

from ...served import ServerProcess, need_own
from ..official.programs import BuildFailed, surroundings
from .programs import JAVA_VERSIONS, ClassicProgram, go, java

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.processes, pytest.mark.timeout(600)]

#: The line that each scenario of a program prints.
JAVA: Final = {
    "sends": "SEND_OK 113 found=1",
    "push": "{dies=2, fails=2, fine=1} dead=[dies]",
    "ordered": "100 in order=true",
    "transactions": "[checked, committed]",
    "requests": "re: hello",
    "pull": "20 first=0 end=20",
    "shared": "both=true missing=0",
    "filters": "10 [15, 16, 17, 18, 19]",
}
GO: Final = {
    "sends": "status=0 63 failed=1",
    "ordered": "40 in order=true",
    "filters": "0,2,4,6,8",
}


def ready(program: ClassicProgram) -> list[str]:
    """Return the command of PROGRAM; leave the test out where it cannot be built, but not in CI."""
    try:
        why = ", ".join(program.missing())
        if not why:
            return program.ready()
    except BuildFailed as error:  # Without a network, as a rule.
        why = str(error)
    if os.environ.get("CI"):
        pytest.fail(f"{program.client} needs {why}")
    pytest.skip(f"{program.client} needs {why}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    need_own("grpcio serves gRPC only")
    with ServerProcess(tmp_path / "store") as process:
        yield process


def results(command: list[str], nameserver: str, scenarios: Iterable[str]) -> dict[str, str]:
    """Run COMMAND with SCENARIOS; return what it prints for each."""
    done = subprocess.run(
        [*command, nameserver, *scenarios],
        **surroundings(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    lines = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    found = {name: result for name, result in lines if name in scenarios}
    assert found, done.stderr[-3000:]
    return found


@pytest.mark.parametrize("version", JAVA_VERSIONS)
def test_all_scenarios_of_java(version: str, server: ServerProcess) -> None:
    command, nameserver = ready(java(version)), server.ready["nameserver"]
    with Admin(nameserver) as admin:
        for name in JAVA.keys() - {"sends"}:  # The first message creates that one.
            admin.create_topic(name.capitalize(), queues=4)

    assert results(command, nameserver, JAVA) == JAVA


def test_all_scenarios_of_go(server: ServerProcess) -> None:
    command, nameserver = ready(go()), server.ready["nameserver"]
    with Admin(nameserver) as admin:
        for name in GO:
            admin.create_topic(f"Go{name.capitalize()}", queues=4)

    assert results(command, nameserver, GO) == GO
