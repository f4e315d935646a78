"""grpcurl, which knows nothing of us, does what the documentation says, in plaintext and over TLS."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ...served import ServerProcess, chosen
from ..go_tools import go_tool

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900), pytest.mark.long]

HERE: Final = Path(__file__).resolve().parent
DOCS: Final = HERE.parents[2] / "docs"
LINES: Final = [
    line
    for page in ("ports.md", "health-checks.md")
    for line in re.findall(r"^\$ grpcurl (.+)$", (DOCS / page).read_text("utf-8"), re.MULTILINE)
]


@pytest.fixture(scope="module")
def grpcurl() -> list[str]:
    return go_tool("grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl", HERE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("grpcurl") / "store") as running:
        yield running


def run(grpcurl: list[str], server: ServerProcess, line: str) -> str:
    """Return what grpcurl answers to the LINE of the docs, sent to SERVER's ports."""
    line = line.replace("127.0.0.1:8081", str(server.ready["broker"]))
    line = line.replace("127.0.0.1:9876", server.nameserver)
    command = [*grpcurl, *shlex.split(line)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_lines_to_run() -> None:
    assert len(LINES) >= 8


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_docs_does_what_it_says(
    line: str, grpcurl: list[str], server: ServerProcess
) -> None:
    if chosen() == "grpcio" and ("Connections/List" in line or "-insecure" in line):
        pytest.skip("grpcio keeps no figures of connections, and takes plaintext here")
    assert run(grpcurl, server, line)


@pytest.mark.parametrize("way", ["-plaintext", "-insecure"])
def test_one_port_tells_the_same_with_tls_and_without(
    way: str, grpcurl: list[str], server: ServerProcess
) -> None:
    if chosen() == "grpcio" and way == "-insecure":
        pytest.skip("grpcio takes plaintext here")
    services = run(grpcurl, server, f"{way} 127.0.0.1:8081 list").split()
    status = json.loads(run(grpcurl, server, f"{way} 127.0.0.1:8081 pocketmq.v1.Broker/Status"))
    health = run(grpcurl, server, f"{way} 127.0.0.1:8081 grpc.health.v1.Health/Check")

    assert {"apache.rocketmq.v2.MessagingService", "pocketmq.v1.Broker"} < set(services)
    assert (status["address"], status["writable"]) == (server.ready["broker"], True)
    assert json.loads(health) == {"status": "SERVING"}
