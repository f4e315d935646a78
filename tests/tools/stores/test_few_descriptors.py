"""Commands on a store of more queues than this process may open files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ...runs import make_run, open_store

pytestmark = pytest.mark.processes

QUEUES = 150
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from pocketmq.tools import cli
cli.main()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "store"
    opened = open_store(folder)
    for queue in range(QUEUES):
        opened.append(make_run(f"T{queue % 10}", queue, [b"body"] * 2, {"KEYS": f"k{queue}"}))
    opened.close()
    return folder


def run(*words: object, soft: int, hard: int) -> str:
    code = LIMITED.format(soft=soft, hard=hard)
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("soft", "hard"), [(100, 1000), (100, 100)])
@pytest.mark.parametrize(
    "words", ["inspect STORE verify", "inspect STORE", "inspect STORE queue T3 3", "doctor STORE"]
)
def test_a_store_of_many_queues_is_read_with_few_descriptors(
    store: Path, words: str, soft: int, hard: int
) -> None:
    run(*words.replace("STORE", str(store)).split(), soft=soft, hard=hard)


def test_verify_counts_every_queue_with_few_descriptors(store: Path) -> None:
    found = json.loads(run("inspect", store, "verify", "--json", soft=100, hard=100))

    assert found["records"] == found["entries"] == 2 * QUEUES
    assert found["findings"] == []
