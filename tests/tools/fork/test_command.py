"""`pocketmq fork`: what it prints, its exit codes, and a served fork."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pocketmq.tools.cli import run as command
from pocketmq.tools.fork.command import fork

from ...recorded import expected, recorded_store, settings
from ...served import ServerProcess
from ...stores import fingerprint

SETS = [w for k, v in settings("rolled").items() for w in ("--broker-conf", f"{k}={v}")]


def test_it_says_what_was_taken_and_what_is_not_known(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    moment = expected("rolled")["records"][1500]["storeTimestamp"]
    words = [str(store), "--at", str(moment), "--output", str(tmp_path / "fork"), *SETS]

    result = CliRunner().invoke(fork, words)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any("files linked" in line for line in lines)
    assert sum(line.startswith("not known: ") for line in lines) == 4
    assert lines[-1] == f"serve it: pocketmq serve --store {tmp_path / 'fork'}"


def test_json_says_the_same(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    times = [record["storeTimestamp"] for record in expected("rolled")["records"]]
    words = [str(store), "--at", str(times[1500]), "--output", str(tmp_path / "fork"), "--json"]

    document = json.loads(CliRunner().invoke(fork, [*words, *SETS]).stdout)

    assert document["newest_stored_ms"] == times[1500]
    assert document["is_end"] is False
    assert document["linked_files"] > 20
    first_later = next(t for t in times if t > times[1500])
    later = next(r for r in expected("rolled")["records"] if r["storeTimestamp"] == first_later)
    assert document["cut_offset"] == later["physicalOffset"]


def test_a_moment_before_everything_gives_an_empty_store(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    words = [str(store), "--at", "2000-01-01T00:00:00Z", "--output", str(tmp_path / "fork"), *SETS]

    result = CliRunner().invoke(fork, [*words, "--json"])

    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["log_begin"], document["log_end"]) == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["{store}"],
        ["/nowhere/at/all", "--output", "{store}/x"],
        ["{store}", "--output", "{store}"],
        ["{store}", "--output", "{store}/inside"],
        ["{store}", "--output", "{store}-fork", "--at", "yesterday"],
    ],
)
def test_wrong_arguments_are_exit_code_2(arguments: list[str], tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    assert command(["fork", *(word.format(store=store) for word in arguments)]) == 2


def test_a_folder_without_a_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()

    assert command(["fork", str(tmp_path / "nothing"), "--output", str(tmp_path / "fork")]) == 2
    assert not (tmp_path / "fork").exists()


@pytest.mark.long
@pytest.mark.processes
def test_a_served_fork_of_a_served_store(tmp_path: Path) -> None:
    def pocketmq(server: ServerProcess, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pocketmq.tools.cli", *arguments],
            env=os.environ | {"POCKETMQ_NAMESERVER": server.nameserver},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    with ServerProcess(tmp_path / "store") as first:
        pocketmq(first, "topic", "create", "T", "--queues", "1")
        for word in ("one", "two", "three"):
            pocketmq(first, "send", "T", word)
        assert command(["fork", str(tmp_path / "store"), "--output", str(tmp_path / "fork")]) == 0
        pocketmq(first, "send", "T", "four")
    before = fingerprint(tmp_path / "store")

    with ServerProcess(tmp_path / "fork") as second:
        pocketmq(second, "send", "T", "other")
        found = pocketmq(second, "consume", "T", "--group", "G", "--limit", "4", "--json")
        pocketmq(second, "topic", "delete", "T", "--yes")

    bodies = [json.loads(line)["body"] for line in found.splitlines()]
    assert bodies == ["one", "two", "three", "other"]
    assert fingerprint(tmp_path / "store") == before
