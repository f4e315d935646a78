"""Stores of a Java broker with enableConsumeQueueExt: queue entries that hold addresses in place of tags codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from click.testing import CliRunner

from pocketmq.broker.delay.levels import Level
from pocketmq.broker.messages.filters import TagChoice
from pocketmq.proto.record import Record
from pocketmq.proto.topics import SCHEDULE_TOPIC
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.format.queues import ADDRESS_MAX
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.inspect.command import inspect

from ..interop.java_oracle import dumps, require_java, verify_start
from ..recorded import copy_sparsely, unpacked
from ..runs import make_run, records_of
from ..tools.inspect.inspecting import document, lines
from ..tools.stores.scan.test_scan import scanned

NOW_MS: Final = 1_800_000_000_000
TAG: Final = "TagA"

Code = tuple[int, int, int, int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "store"
    copy_sparsely(unpacked("extended") / "store", target)
    return target


def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((unpacked("extended") / "expected.json").read_bytes())
    return found


def java_entries() -> dict[tuple[str, int], list[Code]]:
    """Return the entries of each plain queue as Java reads them: queue offset, log offset, size, tags code."""
    return {
        (one["topic"], one["queueId"]): [tuple(entry) for entry in one["entries"]]
        for one in expected()["queues"]
        if one["type"] == "SimpleCQ" and one["entries"]
    }


def opened(path: Path, *, read_only: bool = False) -> MessageStore:
    config = ApacheSettings.of(expected()["settings"]).store_config(str(path))
    return MessageStore.open(config, disk=OsDisk(), now_ms=lambda: NOW_MS, read_only=read_only)


def our_entries(store: MessageStore) -> dict[tuple[str, int], list[Code]]:
    found = {}
    for topic, number in store.queues.names():
        queue = store.queues.get(topic, number)
        if queue is not None:
            columns = queue.entries(queue.min_offset, 1000)
            rows = zip(*(column.tolist() for column in columns), strict=True)
            found[topic, number] = [(n, *row) for n, row in enumerate(rows, queue.min_offset)]
    return found


def tagged(store: MessageStore, topic: str, queue: int, tag: str) -> list[Record]:
    """Return the records with TAG, as a consumer with that filter gets them."""
    choice = TagChoice((tag,))
    found = store.read_queue(topic, queue, 0, 1000, 1 << 20)
    rows = np.flatnonzero(choice.candidates(found.tags_codes) & choice.wanted(found))
    return [one for n, one in enumerate(records_of(store, topic, queue)) if n in rows.tolist()]


def test_every_entry_has_the_tags_code_that_java_resolves(path: Path) -> None:
    raw = np.fromfile(path / "consumequeue/BasicOne/0/00000000000000000000", ">i8", 1, offset=12)
    assert raw[0] <= ADDRESS_MAX, "the fixture holds addresses"

    assert our_entries(opened(path, read_only=True)) == java_entries()


@pytest.mark.parametrize("recovery", ["apache", "pocketmq"])
def test_the_document_of_a_store_has_the_tags_codes_that_java_resolves(
    path: Path, recovery: str
) -> None:
    words = [
        word
        for item in expected()["settings"].items()
        for word in ("--broker-conf", "=".join(item))
    ]
    done = CliRunner().invoke(inspect, [str(path), "--json", "--recovery", recovery, *words])

    assert done.exit_code == 0, done.output
    found = {
        (one["topic"], one["queueId"]): [tuple(entry) for entry in one["entries"]]
        for one in json.loads(done.stdout)["queues"]
        if one["type"] == "SimpleCQ" and one["entries"]
    }
    assert found == java_entries()


def test_a_filter_finds_what_is_tagged_with_its_extension_and_without(path: Path) -> None:
    for _ in range(2):
        store = opened(path, read_only=True)
        for topic, number in java_entries():
            wanted = [
                record.body
                for record in records_of(store, topic, number)
                if record.properties.get("TAGS") == TAG
            ]
            assert [one.body for one in tagged(store, topic, number, TAG)] == wanted
        shutil.rmtree(path / "consumequeue_ext", ignore_errors=True)


@pytest.mark.parametrize("has_extension", [True, False])
def test_delayed_messages_are_due_when_java_says(path: Path, *, has_extension: bool) -> None:
    if not has_extension:
        shutil.rmtree(path / "consumequeue_ext")
    store = opened(path, read_only=True)
    delays_ms = store.config.delay_levels_ms
    queues = [(name, rows) for name, rows in java_entries().items() if name[0] == SCHEDULE_TOPIC]
    assert queues
    for (_, number), rows in queues:
        level = Level(number + 1, delays_ms[number], 0)
        level.read(store, NOW_MS, 0, own_from=0)
        assert level.due_ms.tolist() == [code for _, _, _, code in rows]


def test_a_torn_extension_costs_its_codes_alone(path: Path) -> None:
    file = path / "consumequeue_ext/BasicOne/0/00000000000000000000"
    data = bytearray(file.read_bytes())
    data[20:22] = b"\xff\xff"
    file.write_bytes(data[:70])

    found = our_entries(opened(path, read_only=True))["BasicOne", 0]

    wanted = java_entries()["BasicOne", 0]
    is_address = [code <= ADDRESS_MAX for *_, code in found]
    assert is_address[:5] == [False, True, False, True, True]
    assert all(is_address[3:])
    assert (found[0], found[2]) == (wanted[0], wanted[2])


def test_the_inspector_resolves_and_compares_what_java_resolves(path: Path) -> None:
    shown = lines(path, "queue", "BasicOne", "0")
    assert [row["tags_code"] for row in shown] == [
        code for *_, code in java_entries()["BasicOne", 0]
    ]
    assert not document(path, "verify")["wrong"]
    file = path / "consumequeue_ext/BasicOne/0/00000000000000000000"
    data = bytearray(file.read_bytes())
    data[9] ^= 1
    file.write_bytes(data)

    findings = document(path, "verify")["findings"]

    assert [(one["kind"], one["count"]) for one in findings if one["wrong"]] == [
        ("tags_code_wrong", 1)
    ]


def test_a_scan_has_the_tags_codes_that_java_resolves(path: Path) -> None:
    rows = scanned(path, dataset="consumequeue")
    found: dict[tuple[str, int], list[Code]] = {}
    for row in rows:
        entry = (row["queue_offset"], row["log_offset"], row["size"], row["tags_code"])
        found.setdefault((row["topic"], row["queue"]), []).append(entry)

    assert {name: found[name] for name in java_entries()} == java_entries()


def test_recovery_after_a_kill_keeps_what_entries_say(path: Path) -> None:
    (path / "abort").write_bytes(b"1")

    store = opened(path)

    assert not store.recovery.clean
    assert our_entries(store) == java_entries()
    store.close()


def test_a_deleted_topic_leaves_no_extension(path: Path) -> None:
    store = opened(path)

    store.delete_topic("BasicOne")

    assert not (path / "consumequeue_ext/BasicOne").exists()
    assert (path / "consumequeue_ext/BasicTwo").exists()
    store.close()


@pytest.mark.long
@pytest.mark.java
@pytest.mark.timeout(600)
def test_java_reads_on_what_ours_appended_to_extended_queues(path: Path, tmp_path: Path) -> None:
    require_java()
    store = opened(path)
    before = store.queues.next_offset("BasicOne", 0)
    store.append(make_run("BasicOne", 0, [b"a", b"b"], {"TAGS": TAG}))
    ours = our_entries(store)
    store.close()

    (found,) = dumps([(path, expected()["settings"])], tmp_path / "dumps")

    assert found["accepted"]
    assert all(not queue["unreachable"] for queue in found["queues"])
    (queue,) = [q for q in found["queues"] if (q["topic"], q["queueId"]) == ("BasicOne", 0)]
    assert [tuple(entry) for entry in queue["entries"]] == ours["BasicOne", 0]
    assert [code for *_, code in ours["BasicOne", 0][before:]] == [2598919, 2598919]
    assert verify_start(path, expected()["settings"])["healthy"]
