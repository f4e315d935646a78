"""`pocketmq doctor`: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pocketmq.tools.cli import run as command
from pocketmq.tools.doctor.diagnosis import doctor

from ...integration.command import pocketmq
from ...recorded import recorded_store, settings
from ...served import ServerProcess
from ...stores import fingerprint


def run(*arguments: str) -> Result:
    return CliRunner().invoke(doctor, arguments)


def test_a_healthy_store_is_exit_code_0(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    result = run(str(store))

    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("healthy: both brokers would start")


def test_losses_stand_side_by_side_and_are_exit_code_1(tmp_path: Path) -> None:
    store = recorded_store("damaged-flip-recent", tmp_path / "store")
    before = fingerprint(store)

    result = run(str(store))

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    [row] = [line.split() for line in lines if line.startswith("messages lost")]
    assert row == ["messages", "lost", "418", "(208,395", "bytes)", "1", "(512", "bytes)"]
    assert "  Fill0/0: 139, offsets 821 to 959, 66,800 bytes" in lines
    assert sum(line.startswith("both lose 1 message") for line in lines) == 1
    assert fingerprint(store) == before


def test_what_if_crash_shows_what_a_kill_would_cost(tmp_path: Path) -> None:
    store = recorded_store("damaged-flip-recent-clean", tmp_path / "store")

    calm, crash = run(str(store)), run(str(store), "--what-if", "crash")

    assert "served damaged" in calm.stdout
    assert "Apache RocketMQ 5.5.0 loses 417 messages" in crash.stdout
    assert "as if it were killed now" in crash.stdout
    assert "Apache RocketMQ 5.5.0 loses" not in calm.stdout


def test_json_says_the_same(tmp_path: Path) -> None:
    store = recorded_store("damaged-no-config", tmp_path / "store")

    result = run(str(store), "--json")

    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["apache"]["accepted"] is False
    assert document["ours"]["lost"]["messages"] == 0
    assert document["now"]["messages"] == 90


def test_settings_are_taken_like_those_of_inspect(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    words = [w for k, v in settings("rolled").items() for w in ("--set", f"{k}={v}")]

    assert run(str(store), *words).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["/nowhere/at/all"],
        [],
        ["{store}", "--what-if", "flood"],
        ["{store}", "--set", "mappedFileSizeCommitLog"],
        ["{store}", "--set", "maxIndexNum=0"],
    ],
)
def test_wrong_arguments_are_exit_code_2(arguments: list[str], tmp_path: Path) -> None:
    assert command(["doctor", *(word.format(store=tmp_path) for word in arguments)]) == 2


@pytest.mark.processes
def test_a_live_store_that_would_lose_nothing_is_exit_code_0(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store") as server:
        sent = pocketmq("send", "T", "--stdin", nameserver=server.nameserver, stdin=b"line\n" * 100)
        result = run(str(tmp_path / "store"))

    assert sent.code == 0
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith(("safe: both brokers", "healthy: both"))


def test_a_folder_that_holds_no_store_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of a broker")

    assert command(["doctor", str(tmp_path)]) == 2
