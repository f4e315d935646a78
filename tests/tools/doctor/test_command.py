"""`pocketmq doctor`: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pocketmq.broker.broker import Broker
from pocketmq.client import AsyncAdmin, AsyncProducer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import CorruptState
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.cli import run as command
from pocketmq.tools.doctor.command import doctor
from pocketmq.tools.repaired_copy import make_repaired_copy

from ...integration.command import pocketmq
from ...integration.whole_broker import serving, store_config
from ...recorded import recorded_store, settings
from ...served import ServerProcess, broker_config
from ...stores import fingerprint


def run(*arguments: str) -> Result:
    return CliRunner().invoke(doctor, arguments)


def test_a_healthy_store_is_exit_code_0(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    result = run(str(store))

    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("healthy: both brokers would start")
    assert " valid messages" in result.stdout.splitlines()[1]


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
    assert document["pocketmq"]["lost"]["messages"] == 0
    assert document["now"]["messages"] == 90


def test_settings_are_taken_like_those_of_inspect(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    words = [w for k, v in settings("rolled").items() for w in ("--broker-conf", f"{k}={v}")]

    assert run(str(store), *words).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["/nowhere/at/all"],
        [],
        ["{store}", "--what-if", "flood"],
        ["{store}", "--broker-conf", "mappedFileSizeCommitLog"],
        ["{store}", "--broker-conf", "maxIndexNum=0"],
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


TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


@pytest.mark.processes
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("text", ["{", "[]", "\x00\x01\x02"])
async def test_a_start_that_refuses_a_table_is_foretold(
    table: str, text: str, tmp_path: Path
) -> None:
    store = store_config(tmp_path)
    async with serving(store) as (address, _), AsyncAdmin(address) as admin:
        await admin.create_topic("orders", queues=1)
    for name in (table, f"{table}.bak"):
        (tmp_path / "store" / "config" / name).write_text(text)

    broker = Broker.build(
        broker_config(port=0, nameservers=()), store, disk=OsDisk(), clock=SystemClock()
    )
    with pytest.raises(CorruptState) as refusal:
        await broker.start()

    ours = json.loads(run(store.path, "--json").stdout)["pocketmq"]
    assert (ours["accepted"], ours["refusal"]) == (False, refusal.value.message)


@pytest.mark.processes
async def test_messages_of_a_deleted_topic_are_not_lost(tmp_path: Path) -> None:
    store = store_config(tmp_path)
    async with (
        serving(store) as (address, _),
        AsyncAdmin(address) as admin,
        AsyncProducer(address) as producer,
    ):
        for topic in ("gone", "again"):
            await admin.create_topic(topic, queues=1)
            await producer.send_many(topic, [b"old"] * 3)
            await admin.delete_topic(topic)
        await admin.create_topic("again", queues=1)
        await producer.send_many("again", [b"new"] * 2)

    found = run(store.path, "--json")
    document = json.loads(found.stdout)
    assert (found.exit_code, document["healthy"]) == (0, True)
    assert (document["now"]["messages"], document["now"]["of_deleted_topics"]) == (2, 6)
    assert "6 more of topics that were deleted" in run(store.path).stdout
    assert command(["inspect", store.path, "verify"]) == 0

    made = make_repaired_copy(store.path, str(tmp_path / "copy"), {}, SystemClock().now_ms)
    assert made.losses.messages == 0
    queues = {path.name for path in (tmp_path / "copy" / "consumequeue").iterdir()}
    assert "again" in queues
    assert "gone" not in queues


def test_names_that_nobody_could_create_are_listed(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    table = store / "config" / "topics.json"
    topics = json.loads(table.read_text())
    topics["topicConfigTable"] |= {"a.b": {"topicName": "a.b"}, "../up": {}, "wrong": 7}
    table.write_text(json.dumps(topics))

    lines = run(str(store)).stdout

    assert "PocketMQ would warn:" in lines
    assert "'a.b' is served" in lines
    assert "'../up' is left out" in lines
    assert "'wrong' is left out, its entry cannot be read" in lines
