"""Other versions of Python that the machine has: PocketMQ installs there, serves, sends and reads without a warning."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ..repository.source_tree import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]

VERSIONS = ("3.12", "3.13", "3.14")
#: What the library itself would be told of things that the next Python lacks.
PROGRAM = """
import asyncio, json, subprocess, sys, warnings
warnings.filterwarnings("error", category=DeprecationWarning, module="pocketmq")
from pocketmq.client import Producer, PullConsumer

server = subprocess.Popen(
    [sys.executable, "-m", "pocketmq", "serve", "--store", "store", "--port", "0", "--nameserver-port", "0"],
    stdout=subprocess.PIPE, text=True,
)
line = next(line for line in server.stdout if line.startswith("ready "))
nameserver = json.loads(line.removeprefix("ready "))["nameserver"]
with Producer(nameserver) as producer:
    for number in range(200):
        producer.send_nowait("orders", b"%d" % number, key=f"k{number}")
    producer.flush()
    receipt = producer.send("orders", b"last", delay="1s")
found = []
with PullConsumer("billing", "orders", nameservers=nameserver) as consumer:
    while len(found) < 201:
        found += [message.body for message in consumer.poll(timeout_ms=1000)]
assert sorted(found) == sorted([*(b"%d" % number for number in range(200)), b"last"]), len(found)
server.terminate()
assert server.wait(30) == 0
print("all came")
"""


def interpreter(version: str) -> str | None:
    """Return the path of Python VERSION: one of pyenv's, or on the PATH and no shim of pyenv's that leads nowhere."""
    for path in sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")):
        return str(path)
    found = shutil.which(f"python{version}")
    return None if found is None or "shims" in Path(found).parts else found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_and_its_clients_run_on(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"python{version} is not on this machine")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    # From a copy: what a build leaves in the sources is not this test's to leave there.
    shutil.copytree(
        ROOT,
        tmp_path / "source",
        ignore=shutil.ignore_patterns(".*", "build", "tests", "*.egg-info", "__pycache__"),
    )
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(tmp_path / "source")], check=True)
    done = subprocess.run(
        [python, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all came\n"), done.stderr
    assert "Warning" not in done.stderr
