"""Apache's broker opens our stores, after a clean stop, after kill -9 and after our recovery, and finds the same."""

import contextlib
import io
import random
import subprocess
import sys
from dataclasses import replace
from itertools import dropwhile, product
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.clock import SystemClock
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.format.queues import PRE_BLANK_SIZE
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.inspect.document import describe_apache, describe_ours

from ..recorded import recorded_store, settings
from ..runs import Hand, make_run
from ..stores import comparable, differences
from .java_oracle import damage_tool, dumps, require_java, verify_start

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(1800)]

SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
DAMAGES = [
    "flip-first",
    "flip-recent+unclean",
    "size-field+flip-middle+unclean",
    "magic-field+torn-tail",
    "missing-middle-log+unclean",
    "no-queues",
    "queue-zero-hole+garbage-index",
    "stale-tail+unclean",
    "no-checkpoint+unclean",
]


def opened(path: Path, given: dict[str, str]) -> MessageStore:
    config = ApacheSettings.of(given).store_config(str(path))
    return MessageStore.open(config, disk=OsDisk(), now_ms=SystemClock().now_ms)


def fill(path: Path) -> None:
    """Write some hundred messages of several queues into a store of small files, and stop cleanly."""
    rng = random.Random(5)
    clock = Hand(SystemClock().now_ms())
    config = ApacheSettings.of(SMALL).store_config(str(path))
    store = MessageStore.open(config, disk=OsDisk(), now_ms=clock)
    for number in range(150):
        clock.now_ms += rng.randrange(40)
        topic = rng.choice(["Orders", "Bills", "%RETRY%group"])
        bodies = [rng.randbytes(rng.randrange(1, 900)) for _ in range(rng.randrange(1, 8))]
        properties = [
            {
                "KEYS": f"a{number} b{part}",
                "TAGS": rng.choice(["x", "标签"]),
                "UNIQ_KEY": f"{number}-{part}",
            }
            for part in range(len(bodies))
        ]
        store.append(make_run(topic, rng.randrange(3), bodies, properties))
    store.close()


def ours(store: Path, given: dict[str, str]) -> dict[str, Any]:
    return describe_ours(str(store), given, ApacheSettings.of(given), SystemClock().now_ms())


def messages(document: dict[str, Any]) -> dict[int, Any]:
    """Return the records of DOCUMENT that can be delivered, by their place."""
    return {
        record["physicalOffset"]: record
        for record in document["records"]
        if record["crcOk"] and record["sysFlag"] & 12 != 12
    }


def queues(document: dict[str, Any]) -> dict[Any, Any]:
    """Return bounds and entries of the queues of DOCUMENT.

    Java counts from the blank entries that stand where a queue's first messages were lost, and passes over them when a
    consumer reads; we count from the first message.
    """
    found = {}
    for queue in document["queues"]:
        entries = list(dropwhile(lambda entry: entry[2] == PRE_BLANK_SIZE, queue["entries"]))
        blank = len(queue["entries"]) - len(entries)
        if queue["maxOffset"]:
            name = queue["topic"], queue["queueId"]
            found[name] = queue["minOffset"] + blank, queue["maxOffset"], entries
    return found


def lookups(document: dict[str, Any]) -> dict[Any, Any]:
    return {
        (found["topic"], found["key"], found.get("indexType")): found["offsets"]
        for found in document["lookups"]
    }


def require_same(java: dict[str, Any], mine: dict[str, Any]) -> None:
    """Apache finds what we find: messages, queues, keys."""
    assert java["accepted"], java["log"]
    assert messages(java) == messages(mine)
    assert queues(java) == queues(mine)
    found = lookups(java)
    assert {key: found.get(key) for key in lookups(mine)} == lookups(mine)


def test_after_a_clean_stop(tmp_path: Path) -> None:
    require_java()
    fill(tmp_path / "store")

    [java] = dumps([(tmp_path / "store", SMALL)], tmp_path / "java")

    mine = ours(tmp_path / "store", SMALL)
    assert mine["recovery"]["findings"] == []
    assert len(java["records"]) > 400
    require_same(java, mine)
    assert verify_start(tmp_path / "store", SMALL)["healthy"]


def closed_by_age(path: Path, *, is_last_empty: bool, is_rest_gone: bool, is_killed: bool) -> None:
    """Write a store whose files, all but the last, were closed by age while they had room."""
    now_ms = SystemClock().now_ms()
    clock = Hand(now_ms - 60 * 60_000)
    config = replace(ApacheSettings.of(SMALL).store_config(str(path)), log_roll_ms=260_000)
    store = MessageStore.open(config, disk=OsDisk(), now_ms=clock)
    for number in range(7):
        for queue in range(2):
            properties = {"KEYS": f"a{number}", "UNIQ_KEY": f"{number}-{queue}"}
            store.append(make_run("Orders", queue, [b"%d" % number] * 3, properties))
        clock.now_ms += 260_000
        store.tick()
    if not is_last_empty:
        store.append(make_run("Orders", 0, [b"last"], {"KEYS": "last"}))
    assert [file.start for file in store.log.files.files] == [65536 * each for each in range(8)]
    if is_rest_gone:
        assert store.log.files.delete_leading(7) == 7
        store.queues.delete_expired(store.log.min_offset)
    if is_killed:
        store.flush()
        store._close_files()
    else:
        store.close()


def test_after_files_were_closed_by_age(tmp_path: Path) -> None:
    require_java()
    kinds = list(product([False, True], repeat=3))
    stores = [(tmp_path / f"store{number}", SMALL) for number in range(len(kinds))]
    for (path, _), (is_last_empty, is_rest_gone, is_killed) in zip(stores, kinds, strict=True):
        closed_by_age(
            path, is_last_empty=is_last_empty, is_rest_gone=is_rest_gone, is_killed=is_killed
        )

    found = dumps(stores, tmp_path / "java")

    for (path, given), kind, java in zip(stores, kinds, found, strict=True):
        is_last_empty, is_rest_gone, is_killed = kind
        mine = ours(path, given)
        assert mine["recovery"]["findings"] == []
        assert len(java["records"]) == 42 * (not is_rest_gone) + (not is_last_empty)
        assert java["maxPhyOffset"] == mine["maxPhyOffset"]
        if is_killed:  # It drops the index, and makes that of the last files again.
            assert messages(java) == messages(mine)
            assert queues(java) == queues(mine)
        else:
            require_same(java, mine)
        predicted = describe_apache(
            str(path), given, ApacheSettings.of(given), SystemClock().now_ms()
        )
        predicted["config"] = java["config"]  # There is none: versions are of the moment.
        assert differences(comparable(java), comparable(predicted)) == []
        if is_rest_gone:
            assert verify_start(path, given)["healthy"]


_WRITER = """
import sys
from itertools import dropwhile
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import Host, encode_run
from pocketmq.proto.run import check_run
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.format.queues import PRE_BLANK_SIZE
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

path, *settings = sys.argv[1:]
config = ApacheSettings.of(dict(word.split("=") for word in settings)).store_config(path)
store = MessageStore.open(config, disk=OsDisk(), now_ms=SystemClock().now_ms)
for number in range(1_000_000):
    properties = encode_properties({"KEYS": f"k{number}", "UNIQ_KEY": f"u{number}"})
    born = Host.parse("127.0.0.1", 1)
    run = [(b"%d" % number * 9, properties)] * (number % 5 + 1)
    data, sizes = encode_run("Killed", number % 3, run, born_timestamp_ms=1, born_host=born)
    store.append(check_run(data, sizes, "Killed", number % 3))
    print(store.max_log_offset, flush=True)
"""


@pytest.mark.processes
def test_after_a_kill(tmp_path: Path) -> None:
    require_java()
    store = tmp_path / "store"
    words = [f"{name}={value}" for name, value in SMALL.items()]
    command = [sys.executable, "-c", _WRITER, str(store), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = 0
        while acknowledged < 200_000:
            acknowledged = int(process.stdout.readline())
        process.kill()
        rest = process.stdout.read().split("\n")
    acknowledged = max([acknowledged, *(int(line) for line in rest[:-1] if line)])

    [java] = dumps([(store, SMALL)], tmp_path / "java")

    assert java["maxPhyOffset"] >= acknowledged
    mine = ours(store, SMALL)
    assert messages(java) == messages(mine)
    opened(store, SMALL).close()
    [again] = dumps([(store, SMALL)], tmp_path / "again")
    require_same(again, ours(store, SMALL))
    assert verify_start(store, SMALL)["healthy"]


def test_after_our_recovery_of_damaged_stores(tmp_path: Path) -> None:
    require_java()
    tool = damage_tool()
    given = settings("rolled")
    stores = []
    for number, kinds in enumerate(DAMAGES):
        source = recorded_store("rolled", tmp_path / f"source{number}")
        target = tmp_path / f"store{number}"
        with contextlib.redirect_stdout(io.StringIO()):
            tool.main(kinds, str(source), str(target))
        store = opened(target, given)
        store.close()
        stores.append((target, given))

    found = dumps(stores, tmp_path / "java")

    for (store_path, _), java in zip(stores, found, strict=True):
        require_same(java, ours(store_path, given))
    assert verify_start(stores[2][0], given)["healthy"]
