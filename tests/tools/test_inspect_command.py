"""`pocketmq inspect`: what it prints, and its exit codes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pocketmq.proto.clock import VirtualClock
from pocketmq.store.file_sizes import settings_of
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.inspect import command
from pocketmq.tools.inspect.command import inspect

from ..recorded import expected, recorded_store, settings
from ..stores import comparable, differences


def run(*arguments: str) -> Result:
    return CliRunner().invoke(inspect, arguments)


def document(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found


def sets(given: dict[str, str]) -> list[str]:
    return [word for name, value in given.items() for word in ("--broker-conf", f"{name}={value}")]


@pytest.mark.parametrize("name", ["rolled", "damaged-torn-tail", "consumption"])
def test_json_is_the_whole_description(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    found = document(str(store), *sets(settings(name)))

    assert differences(comparable(expected(name)), comparable(found)) == []


def test_sizes_come_from_the_files(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")

    found = settings_of(OsDisk(), str(store), {})

    assert (found.log_file_size, found.queue_file_size) == (65536, 2000)
    assert (found.index_slots, found.index_entries) == (500, 2000)
    wanted = expected("rolled") | {"settings": {}}
    assert differences(comparable(wanted), comparable(document(str(store)))) == []


#: When the store "delays" had handed on what was due.
HANDED_ON = datetime(2026, 11, 21, 1, 55, 39, tzinfo=UTC)


@pytest.mark.parametrize(
    ("whose", "days", "waiting"),
    [
        ("apache", 1, "9 timed, handed on until 2026-11-21 01:55:39Z"),
        ("pocketmq", 1, "9 timed, handed on until 2026-11-21 01:55:39Z"),
        # Java's broker leaves what is overdue for more than a week.
        ("apache", 30, "0 timed, handed on until 2026-12-14 01:56:39Z"),
        ("pocketmq", 30, "9 timed, handed on until 2026-11-21 01:55:39Z"),
    ],
)
def test_the_summary_says_what_waits_for_its_time(
    whose: str, days: int, waiting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock(round(HANDED_ON.timestamp() + days * 86_400) * 1000)
    monkeypatch.setattr(command, "SystemClock", lambda: clock)
    store = recorded_store("delays", tmp_path / "store")
    words = sets(settings("delays"))

    lines = run(str(store), *words, "--recovery", whose).stdout.splitlines()

    assert lines[2] == f"waiting: 15 by delay level, {waiting}"
    nothing = recorded_store("basic", tmp_path / "basic")
    assert "waiting" not in run(str(nothing), "--recovery", whose).stdout


def test_a_refused_store_is_exit_code_1_and_still_described(tmp_path: Path) -> None:
    store = recorded_store("damaged-odd-log-file", tmp_path / "store")

    result = run(str(store), "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout)["refusal"] == "BrokerController.initialize returned false"
    assert run(str(store), "--recovery", "pocketmq").exit_code == 0
    (store / "commitlog" / "notes.txt").write_text("mine")
    summary = run(str(store), "--recovery", "pocketmq")
    assert summary.exit_code == 1
    assert "notes.txt is not a commit log file" in summary.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["/nowhere/at/all"],
        ["{store}", "--broker-conf", "mappedFileSizeCommitLog"],
        ["{store}", "--broker-conf", "mappedFileSizeCommitLog=big"],
        ["{store}", "--broker-conf", "maxIndexNum=0"],
        ["{store}", "--recovery", "theirs"],
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], tmp_path: Path) -> None:
    from pocketmq.tools.cli import run as command

    words = [word.format(store=tmp_path) for word in arguments]

    assert command(["inspect", *words]) == 2


def test_settings_that_change_nothing_are_accepted(tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")

    assert run(str(store), "--broker-conf", "enablePropertyFilter=true", "--json").exit_code == 0


@pytest.mark.parametrize("recovery", ["apache", "pocketmq"])
def test_the_summary_names_topics_groups_and_damage(recovery: str, tmp_path: Path) -> None:
    store = recorded_store("damaged-flip-recent", tmp_path / "store")

    result = run(str(store), "--recovery", recovery)

    assert result.exit_code == 0
    assert "Fill2" in result.stdout
    assert "unclean" in result.stdout
    wanted = "1 with a wrong CRC" if recovery == "pocketmq" else "log 0–1,345,896: 2,582 records"
    assert wanted in result.stdout


def test_a_folder_with_an_empty_log_is_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()

    found = document(str(tmp_path))

    assert found["accepted"]
    assert (found["minPhyOffset"], found["maxPhyOffset"], found["records"]) == (-1, 0, [])
    assert [path.name for path in tmp_path.iterdir()] == ["commitlog"]


@pytest.mark.parametrize("view", [[], ["verify"], ["--recovery", "pocketmq"], ["--json"]])
def test_a_folder_without_a_store_is_exit_code_2(view: list[str], tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")

    result = CliRunner().invoke(inspect, [str(tmp_path), *view])

    assert result.exit_code == 2
    assert "is not a store" in result.stderr
