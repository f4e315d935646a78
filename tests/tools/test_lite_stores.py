"""What `pocketmq doctor` and `pocketmq inspect` say of stores with lite topics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pocketmq.proto.clock import SystemClock
from pocketmq.proto.properties import LITE_TOPIC
from pocketmq.store.format.state_tables import parse_topics
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.tools.cli import cli
from pocketmq.tools.repaired_copy import make_repaired_copy

from ..runs import Hand, make_run, open_store

SETTINGS = {
    "mappedFileSizeCommitLog": 65_536,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
}
WORDS = [word for name, value in SETTINGS.items() for word in ("--broker-conf", f"{name}={value}")]


@pytest.fixture(params=["stopped", "killed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store whose lite topic has 45 messages in three files."""
    opened = open_store(tmp_path / "store", log_file_size_bytes=65_536, now_ms=Hand())
    for number in range(45):
        run = make_run("Chat", 0, [b"%d" % number], {LITE_TOPIC: "bob", "KEYS": f"k{number}"})
        run.is_lite = True
        opened.append(run)
    if request.param == "killed":
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    opened.close()
    return tmp_path / ("store" if request.param == "stopped" else "killed")


def asked(*words: str) -> Any:
    result = CliRunner().invoke(cli, [*words, *WORDS, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_start_cuts_no_entries_of_lite_topics(store: Path) -> None:
    changes = asked("doctor", str(store))["pocketmq"]["changes"]

    assert changes["queue_entries_cut"] == 0


def test_the_recovered_queue_of_a_lite_topic_ends_with_its_messages(store: Path) -> None:
    document = asked("inspect", str(store), "--recovery", "pocketmq")

    (queue,) = [one for one in document["queues"] if one["topic"] == "%LMQ%$Chat$bob"]
    assert (queue["minOffset"], queue["maxOffset"], len(queue["entries"])) == (0, 45, 45)


def test_a_lite_topic_is_not_made_a_topic_when_the_table_is_lost(store: Path) -> None:
    given = {name: str(value) for name, value in SETTINGS.items()}
    copy = store.parent / "copy"

    make_repaired_copy(str(store), str(copy), given, SystemClock().now_ms)

    table = StateFile(OsDisk(), str(copy), "topics.json").load(parse_topics).value
    assert table is not None
    assert list(table.topics) == ["Chat"]


def test_lint_reads_each_message_once(store: Path) -> None:
    assert " 45 messages" in CliRunner().invoke(cli, ["lint", str(store)]).output
