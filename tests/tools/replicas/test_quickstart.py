"""`pocketmq replicas quickstart` as a user runs it: everything starts, says where it is, and ends with Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketmq.tools.options import READY

from ...integration.command import COMMAND, pocketmq
from ...zookeeper.servers import HOME, require_zookeeper, running

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow]


@contextmanager
def quickstart(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """One that is ready, and what its ready line says; it is killed if the block leaves it running."""
    command = [*COMMAND, "replicas", "quickstart", "--store", str(folder), *words]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(READY):
                yield process, json.loads(line.removeprefix(READY))
                break
        else:
            raise AssertionError(process.communicate()[1])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _status(ready: dict[str, Any]) -> dict[str, Any]:
    done = pocketmq("replicas", "status", ready["set"], "--zookeeper", ready["zookeeper"], "--json")
    assert done.code == 0, done
    return done.documents[0]


@pytest.mark.long
def test_it_starts_everything_ends_everything_and_goes_on_where_it_was(tmp_path: Path) -> None:
    require_zookeeper()
    home = ("--zookeeper-home", str(HOME))
    with quickstart(tmp_path / "set", *home) as (process, first):
        told = _status(first)
        assert (told["master"], len(told["replicas"])) == (first["master"], 3)
        assert {one["error"] for one in told["replicas"]} == {None}
        pids = [one["pid"] for one in first["replicas"]]
        assert all(map(_runs, pids))

        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not any(map(_runs, pids))

    with quickstart(tmp_path / "set", *home) as (process, again):
        assert again["epoch"] > first["epoch"]
        assert [one["broker"] for one in again["replicas"]] == [
            one["broker"] for one in first["replicas"]
        ]
        os.kill(again["replicas"][1]["pid"], signal.SIGKILL)
        assert process.stderr is not None
        assert "A replica has ended. Start it again: pocketmq broker" in process.stderr.readline()
        assert process.poll() is None

    refused = pocketmq(
        "replicas", "quickstart", *home, "--store", str(tmp_path / "set"), "--replicas", "2"
    )
    assert refused.code == 2
    assert "has 3 replicas: give --replicas 3, or another --store" in refused.err


@pytest.mark.long
def test_a_set_of_other_replicas_in_a_zookeeper_that_runs_is_left_alone(tmp_path: Path) -> None:
    with running(tmp_path / "zookeeper") as (server,):
        words = ("--zookeeper", server.address, "--replicas", "1")
        with quickstart(tmp_path / "one", *words) as (_, ready):
            assert ready["zookeeper"] == server.address
        other = pocketmq("replicas", "quickstart", *words, "--store", str(tmp_path / "other"))

    assert other.code == 5
    assert "has a replica set 'broker-a' already, of other replicas" in other.err


def test_where_no_zookeeper_is_to_come_from_it_says_so(tmp_path: Path) -> None:
    neither = pocketmq("replicas", "quickstart", "--store", str(tmp_path / "set"))
    empty = pocketmq(
        "replicas",
        "quickstart",
        "--zookeeper-home",
        str(tmp_path),
        "--store",
        str(tmp_path / "set"),
    )

    assert neither.code == 2
    assert "Give either --zookeeper HOST:PORT" in neither.err
    assert empty.code == 2
    assert "and its lib have no zookeeper-*.jar" in empty.err
