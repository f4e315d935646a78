"""The overview: what it says of recorded stores, what it does not read, and how quick it is on a large one."""

import json
import shutil
from pathlib import Path

import pytest

from pocketmq.proto.record import LOG_OFFSET_AT, Host, encode_run
from pocketmq.store.disk import Mapping
from pocketmq.store.format.replica_files import render_epochs
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.view import StoreView
from pocketmq.tools.inspect.overview import Overview

from ...broker.pop.popping import Popping
from ...recorded import expected, recorded_names, recorded_store
from ...runs import make_run, open_store
from .inspecting import document, unchanged, view

SOUND = [name for name in recorded_names() if not name.startswith("damaged-")]
GIB = 1 << 30


@pytest.mark.parametrize("name", SOUND)
def test_bounds_are_those_of_apaches_reader(name: str) -> None:
    found = document(unchanged(name), "overview")

    wanted = expected(name)
    log = found["log"]
    assert log["max_log_offset"] == wanted["maxPhyOffset"]
    assert log["first"]["log_offset"] == wanted["records"][0]["physicalOffset"]
    assert log["last"]["log_offset"] == wanted["records"][-1]["physicalOffset"]
    topics = {row["topic"]: row for row in found["topics"]}
    for queue in wanted["queues"]:
        if name in ("unclean", "cleaned-queues-behind"):  # entries not yet there, or behind
            continue
        row = topics[queue["topic"]]
        if not row["queues"]:  # a queue that only the tables know
            assert queue["maxOffset"] == 0
            continue
        assert row["min_offset"] <= queue["minOffset"]
        assert row["max_offset"] >= queue["maxOffset"]
    messages = sum(row["messages"] for row in found["topics"])
    if name not in ("unclean", "cleaned-queues-behind"):
        assert messages == sum(q["maxOffset"] - q["minOffset"] for q in wanted["queues"])
    assert found["health"] == [] or name.startswith("unclean")


def test_queue_files_that_are_behind_do_not_count() -> None:
    topics = {
        row["topic"]: row
        for row in document(unchanged("cleaned-queues-behind"), "overview")["topics"]
    }

    assert topics["Fill0"]["min_offset"] == 322  # Apache says 0, though these messages are gone


def test_the_files_of_a_replica_are_told(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    assert document(store, "overview")["replica"] is None
    (store / "brokerIdentity").write_text("DefaultCluster#broker-a#1")
    (store / "epochFileCheckpoint").write_text(render_epochs([(1, 0), (3, 92)]))

    found = document(store, "overview")
    assert found["replica"] == {
        "cluster": "DefaultCluster",
        "broker": "broker-a",
        "broker_id": 1,
        "epochs": [{"epoch": 1, "start_offset": 0}, {"epoch": 3, "start_offset": 92}],
        "damaged": 0,
    }
    assert found["health"] == []
    told = "replica: broker-a of DefaultCluster, id 1; epoch 3 from log offset 92 (2 epochs)"
    assert told in view(store).stdout


def test_known_damage_of_a_replica_is_wrong(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    (store / "brokerIdentity").write_text("DefaultCluster#broker-a#1")
    (store / "pocketmq").mkdir(exist_ok=True)
    (store / "pocketmq/damaged.json").write_text('{"version":1,"damaged":[[92,184],[400,500]]}')

    found = document(store, "overview")

    assert found["replica"]["damaged"] == 2
    (finding,) = found["health"]
    assert finding["text"].startswith("the log is damaged in 2 places, first at 92")


@pytest.mark.parametrize(
    ("epochs", "words"),
    [
        ("1\n7\n1-0\n", "the CRC of its entries is 1725254278, but its second line says 7"),
        ("1\n0\n1-999999999\n", "epoch 1 begins at 999,999,999, past the end of the log"),
    ],
)
def test_epochs_that_cannot_be_are_wrong(tmp_path: Path, epochs: str, words: str) -> None:
    store = recorded_store("basic", tmp_path / "store")
    (store / "epochFileCheckpoint").write_text(epochs)

    result = view(store, "overview", "--json")
    found = json.loads(result.stdout)["health"]
    assert [one["severity"] for one in found] == ["wrong"]
    assert words in found[0]["text"]
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("name", "severity", "words"),
    [
        ("damaged-odd-log-file", "refused", "00000000000001507328 has 32,768 bytes, not 65,536"),
        ("damaged-missing-middle-log", "wrong", "log: files are missing from byte 786,432"),
        ("damaged-missing-queue-file", "wrong", "queue Fill0/0: files are missing"),
        ("damaged-torn-tail", "wrong", "points to 1,555,014, the log ends at 1,554,582"),
        ("damaged-broken-json", "wrong", "config/consumerOffset.json does not parse"),
        ("damaged-short-index", "wrong", "has 1,000 bytes, unlike the others"),
        ("damaged-empty-last-log-file", "note", "is empty: a broker deletes it"),
        ("damaged-no-checkpoint", "note", "checkpoint is missing"),
        ("damaged-no-queues", "note", "1,555,014 bytes are in no queue"),
        ("unclean", "note", "abort is there"),
    ],
)
def test_health_names_what_is_wrong(name: str, severity: str, words: str) -> None:
    result = view(unchanged(name), "overview", "--json")

    found = json.loads(result.stdout)["health"]
    assert any(one["severity"] == severity and words in one["text"] for one in found)
    assert result.exit_code == (1 if severity == "refused" else 0)


def test_people_see_the_same_without_naming_the_view() -> None:
    told = view(unchanged("consumption")).stdout

    assert told == view(unchanged("consumption"), "overview").stdout
    assert "log 0–" in told
    assert "health: nothing wrong was seen" in told
    assert "not checked: records between the first and the last" in told


def test_what_waits_is_counted() -> None:
    found = document(unchanged("delays"), "overview")["waiting"]

    assert found["by_delay_level"] == 15
    assert found["timed"] == 9


async def test_what_was_popped_and_not_acknowledged_is_counted(tmp_path: Path) -> None:
    broker = Popping(tmp_path)
    broker.send(b"a", b"b", b"c")
    broker.ack(broker.pop()[1])
    await broker.stop()

    assert document(tmp_path / "store", "overview")["waiting"]["delivered"] == 2
    assert "2 delivered and not acknowledged" in view(tmp_path / "store", "overview").stdout
    tables = {one["name"]: one for one in document(tmp_path / "store", "tables")["tables"]}
    assert tables["deliveries"]["entries"] == 3, "both, and up to where was looked"


def test_a_setting_says_how_long_files_should_be() -> None:
    result = view(
        unchanged("rolled"), "--broker-conf", "mappedFileSizeCommitLog=131072", "overview"
    )

    assert result.exit_code == 1
    assert "has 65,536 bytes, not 131,072" in result.stdout


class CountingDisk(OsDisk):
    """Counts what is opened and asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        self.opened += 1
        assert not writable
        return super().open_map(path, size=size, writable=writable, create=create)


def record_at(offset: int) -> bytes:
    """Return a record of 300 bytes that stands at OFFSET."""
    host = Host(bytes((127, 0, 0, 1)), 1)
    data, _ = encode_run("Large", 0, [(bytes(204), b"")], born_timestamp_ms=1, born_host=host)
    whole = bytearray(data)
    whole[LOG_OFFSET_AT : LOG_OFFSET_AT + 8] = offset.to_bytes(8, "big")
    return bytes(whole)


def hundred_gigabytes(folder: Path) -> Path:
    """Make a store of 100 log files of 1 GiB: a record at the beginning of each, 5,000 in the last, else holes."""
    store = recorded_store("default-sizes", folder)
    for path in (store / "commitlog").iterdir():
        path.unlink()
    for start in range(0, 100 * GIB, GIB):
        with (store / "commitlog" / f"{start:020d}").open("wb") as file:
            file.truncate(GIB)
            count = 5_000 if start == 99 * GIB else 1
            size = len(record_at(0))
            file.write(b"".join(record_at(start + at * size) for at in range(count)))
    return store


def test_a_hundred_gigabytes_are_not_read(tmp_path: Path) -> None:
    store = hundred_gigabytes(tmp_path / "store")
    disk = CountingDisk()

    found = Overview(StoreView(disk, str(store))).document()

    assert found["log"]["max_log_offset"] == 99 * GIB + 5_000 * len(record_at(0))
    assert found["log"]["files"] == 100
    assert disk.opened < 400
    shutil.rmtree(store)


def test_a_live_store_is_told_from_one_whose_broker_was_killed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.append(make_run("Live", 0, [b"a"]))
    live = document(tmp_path / "store", "overview")
    told = view(tmp_path / "store").stdout
    store.close()

    assert (live["abort_present"], live["lock_held"]) == (True, True)
    assert "a broker has it open" in told
    after = document(tmp_path / "store", "overview")
    assert (after["abort_present"], after["lock_held"]) == (False, False)
    assert "stopped cleanly" in view(tmp_path / "store").stdout
    assert "its broker was killed" in view(unchanged("unclean")).stdout
