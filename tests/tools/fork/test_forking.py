"""Forks: what was stored by the moment, no more and no less; the source keeps every byte, whatever becomes of them."""

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from pocketmq.broker.commit_texts import CommitText, commit_text_table
from pocketmq.broker.consume_stats import statistics_table
from pocketmq.broker.pop.deliveries import DeliveryTable, InFlight, PopKey
from pocketmq.broker.queue_stats import QueueStats
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.record import Record
from pocketmq.store.file_sizes import settings_of
from pocketmq.store.format.state_tables import (
    GROUPS,
    TOPICS,
    GroupConfig,
    TopicConfig,
    parse_groups,
    parse_topics,
)
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.table_files import read_tables
from pocketmq.tools.doctor.diagnosis import diagnose
from pocketmq.tools.fork.cut import END_OF_TIME_MS
from pocketmq.tools.fork.forking import Forked, make_fork

from ...recorded import recorded_names, recorded_store, settings
from ...runs import Hand, make_run, open_store, records_of
from ...store.table_worlds import open_changes, opened_journal
from ...stores import fingerprint

QUEUES = [("A", 0), ("A", 1), ("Beta", 0)]
#: The sizes of tests.runs.small_config by Apache's names.
SMALL = {
    "mappedFileSizeCommitLog": "4096",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
}


def fill(store: MessageStore, clock: Hand, rng: random.Random, runs: int) -> list[Record]:
    """Append RUNS runs at rising times; return what STORE holds then."""
    for number in range(runs):
        clock.now_ms += rng.randrange(3) * 1000
        topic, queue = rng.choice(QUEUES)
        bodies = [rng.randbytes(rng.randrange(1, 300)) for _ in range(rng.randrange(1, 4))]
        properties = {"KEYS": f"k{number}", "UNIQ_KEY": f"u{number}", "TAGS": "t"}
        store.append(make_run(topic, queue, bodies, properties))
    return [r for name in QUEUES if name in store.queue_names() for r in records_of(store, *name)]


def forked(store: Path, target: Path, time_ms: int, given: dict[str, str] = SMALL) -> Forked:
    return make_fork(str(store), str(target), time_ms, given, SystemClock().now_ms)


def held(store: MessageStore) -> list[Record]:
    return [r for name in store.queue_names() for r in records_of(store, *name)]


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.log_offset)


@hypothesis_settings(max_examples=15)
@given(
    seed=st.integers(0, 1 << 16),
    runs=st.integers(0, 60),
    where=st.floats(-0.1, 1.1),
    stop=st.sampled_from(["clean", "killed", "live"]),
)
def test_a_fork_holds_what_was_stored_by_the_moment(
    seed: int, runs: int, where: float, stop: str
) -> None:
    home = Path(tempfile.mkdtemp())
    clock = Hand()
    store = open_store(home / "store", now_ms=clock)
    try:
        begin_ms = clock.now_ms
        records = fill(store, clock, random.Random(seed), runs)
        if stop == "clean":
            store.close()
        elif stop == "killed":
            store._close_files()
        time_ms = begin_ms + int((clock.now_ms - begin_ms) * where)
        before = fingerprint(home / "store")

        made = forked(home / "store", home / "fork", time_ms)

        assert fingerprint(home / "store") == before
        wanted = [record for record in records if record.store_timestamp_ms <= time_ms]
        fork = open_store(home / "fork", now_ms=clock)
        assert fork.recovery.clean
        assert fork.recovery.findings == []
        assert fork.recovery.scanned_records == 0 or not wanted
        assert in_order(held(fork)) == in_order(wanted)
        assert fork.max_log_offset == made.log_end
        for record in wanted:
            found = fork.lookup(record.topic, record.properties["KEYS"])
            assert record.log_offset in found
            assert max(found) < made.cut.log_offset
        fork.close()
    finally:
        if stop == "live":
            store.close()
        shutil.rmtree(home)


def test_a_served_fork_never_changes_its_source(tmp_path: Path) -> None:
    clock, rng = Hand(), random.Random(3)
    store = open_store(tmp_path / "store", now_ms=clock)
    fill(store, clock, rng, 120)
    store.close()
    before = fingerprint(tmp_path / "store")
    made = forked(tmp_path / "store", tmp_path / "fork", clock.now_ms - 60_000)
    assert made.copied.linked_files > 10

    fork = open_store(tmp_path / "fork", now_ms=clock, retention_ms=1)
    fill(fork, clock, rng, 60)
    fork.delete_topic("Beta")
    clock.now_ms = SystemClock().now_ms() + (1 << 30)
    deleted = 0
    for _ in range(24):  # Files are deleted at one hour of the day.
        clock.now_ms += 3_600_000
        deleted += fork.clean().log_files
    assert deleted > 5
    fork.close()

    assert fingerprint(tmp_path / "store") == before


def test_recovery_of_a_fork_with_damaged_files_never_changes_its_source(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(tmp_path / "store", now_ms=clock)
    records = fill(store, clock, random.Random(4), 120)
    store.close()
    # Damage in closed files, which the fork shares with its source.
    for record in records[5:60:9]:
        file = tmp_path / "store/commitlog" / f"{record.log_offset // 4096 * 4096:020d}"
        with open(file, "r+b") as damaged:
            damaged.seek(record.log_offset % 4096 + 90)
            damaged.write(b"\xff\xfe")
    before = fingerprint(tmp_path / "store")
    forked(tmp_path / "store", tmp_path / "fork", clock.now_ms)
    (tmp_path / "fork/pocketmq/verified.json").unlink()

    fork = open_store(tmp_path / "fork", now_ms=clock)
    assert len(fork.recovery.findings) > 2
    fork.close()

    assert fingerprint(tmp_path / "store") == before


def test_a_fork_of_a_live_store_that_goes_on_stays_as_it_was(tmp_path: Path) -> None:
    clock, rng = Hand(), random.Random(5)
    store = open_store(tmp_path / "store", now_ms=clock)
    records = fill(store, clock, rng, 50)
    store.tick()

    made = forked(tmp_path / "store", tmp_path / "fork", END_OF_TIME_MS)
    fill(store, clock, rng, 80)
    store.close()

    assert made.cut.is_end
    assert made.was_running
    fork = open_store(tmp_path / "fork", now_ms=clock)
    assert in_order(held(fork)) == in_order(records)
    fork.close()


def test_a_queue_that_was_empty_by_then_keeps_its_numbers(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(tmp_path / "store", now_ms=clock, retention_ms=1)
    for number in range(300):
        clock.now_ms += 1000
        store.append(make_run("A", 0, [b"x" * 100], {"KEYS": f"k{number}"}))
    store.append(make_run("B", 0, [b"y" * 3000]))
    moment = clock.now_ms
    clock.now_ms += 1000
    store.close()
    last = max(int(p.name) for p in (tmp_path / "store/consumequeue/A/0").iterdir())
    assert last > 0

    forked(tmp_path / "store", tmp_path / "fork", moment - 200_000)

    fork = open_store(tmp_path / "fork", now_ms=clock)
    least, most = fork.queue_bounds("A", 0)
    assert (least, most) == (0, 100)
    appended = fork.append(make_run("A", 0, [b"new"]))
    assert appended.first_queue_offset == 100
    fork.close()


def test_committed_offsets_are_cut_back_to_the_end(tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")
    given = settings("consumption")
    full = describe(store, given)
    times = sorted(record["storeTimestamp"] for record in full["records"])
    moment = times[len(times) // 2]

    made = forked(store, tmp_path / "fork", moment, given)

    found = describe(tmp_path / "fork", given)
    ends = {(q["topic"], str(q["queueId"])): q["maxOffset"] for q in found["queues"]}
    for key, queues in found["config"]["consumerOffsets"].items():
        topic = key.partition("@")[0]
        for queue, offset in queues.items():
            assert offset <= ends.get((topic, queue), 0)
            assert offset <= full["config"]["consumerOffsets"][key][queue]
    assert made.clamped.offsets > 0
    assert max(record["storeTimestamp"] for record in found["records"]) <= moment
    wanted = [r for r in full["records"] if r["storeTimestamp"] <= moment]
    assert found["records"] == wanted


@pytest.mark.parametrize("is_end", [True, False])
def test_a_fork_of_the_end_has_statistics_offset_metadata_and_deliveries(
    tmp_path: Path, is_end: bool
) -> None:
    store = recorded_store("consumption", tmp_path / "store")
    statistics, texts, deliveries = statistics_table(), commit_text_table(), DeliveryTable()
    journal = opened_journal(store, statistics, texts, deliveries, clock=SystemClock())
    queue = PopKey("g", "t", 0)
    until_ms = SystemClock().now_ms() + 30_000
    deliveries.put(queue, 5, InFlight(1, until_ms, "c", 7, False))
    statistics.put("", ("g", "t", 0), QueueStats(lost=3))
    texts.put("", ("g", "t", 0), CommitText(0, "blue"))
    journal.close()
    times = sorted(
        record["storeTimestamp"] for record in describe(store, settings("consumption"))["records"]
    )

    forked(
        store,
        tmp_path / "fork",
        times[-1] if is_end else times[len(times) // 2],
        settings("consumption"),
    )

    found = statistics_table(), commit_text_table(), DeliveryTable()
    read_tables(OsDisk(), str(tmp_path / "fork/pocketmq/tables"), found)
    assert [len(table) for table in found] == ([1, 1, 1] if is_end else [0, 0, 0])
    if is_end:
        in_flight = found[2].found()[queue].in_flight[5]
        assert in_flight._replace(until_ms=0) == InFlight(1, 0, "c", 7, False)
        assert abs(in_flight.until_ms - until_ms) < 10_000


def test_what_waits_for_its_time_waits_again_in_the_fork(tmp_path: Path) -> None:
    store = recorded_store("delays", tmp_path / "store")
    given = settings("delays")
    full = describe(store, given)
    delivered = [
        record
        for record in full["records"]
        if "TIMER_OUT_MS" in record["properties"] and record["topic"] != "rmq_sys_wheel_timer"
    ]
    moment = min(record["storeTimestamp"] for record in delivered) - 2000

    forked(store, tmp_path / "fork", moment, given)

    found = describe(tmp_path / "fork", given)
    kept = {record["physicalOffset"] for record in found["records"]}
    out_ms = {
        record["physicalOffset"]: int(record["properties"]["TIMER_OUT_MS"])
        for record in full["records"]
        if record["topic"] == "rmq_sys_wheel_timer" and record["physicalOffset"] in kept
    }
    waiting = {offset for offset, due in out_ms.items() if due >= moment}
    entered = {record["physicalOffset"] for record in found["timer"]["log"]}
    assert waiting
    assert waiting <= entered
    for level, offset in found["config"]["delayOffsets"].items():
        assert offset <= full["config"]["delayOffsets"][level]


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in recorded_names() if not n.startswith("damaged-")])
@pytest.mark.parametrize("where", [0.3, 0.8, 1.0])
def test_a_fork_of_a_recorded_store_is_healthy(name: str, where: float, tmp_path: Path) -> None:
    store, given = recorded_store(name, tmp_path / "store"), settings(name)
    before = fingerprint(store)
    times = sorted(record["storeTimestamp"] for record in describe(store, given)["records"])
    moment = times[min(len(times) - 1, int(len(times) * where))]

    made = forked(store, tmp_path / "fork", moment, given)

    assert fingerprint(store) == before
    chosen = settings_of(OsDisk(), str(store), given)
    found = diagnose(str(tmp_path / "fork"), chosen, SystemClock().now_ms(), crash=False)
    assert found.is_healthy
    assert len(found.evidence.messages) == sum(time <= moment for time in times)
    assert made.verified == ("unclean" in name)


def test_a_target_that_is_there_is_refused(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    with pytest.raises(InvalidArgument):
        forked(store, store, END_OF_TIME_MS, {})


def describe(store: Path, given: dict[str, str]) -> dict[str, Any]:
    from pocketmq.tools.inspect.document import describe_apache

    chosen = settings_of(OsDisk(), str(store), given)
    found: dict[str, Any] = describe_apache(
        str(store), given, chosen, SystemClock().now_ms(), lookups=False
    )
    return found


def test_topics_and_groups_that_only_the_journal_has_are_in_the_files_of_the_fork(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    opened = open_store(store)
    opened.append(make_run("A", 0, [b"one"]))
    topics, groups = open_changes(store)
    topics.put("0.0.0", "A", TopicConfig(name="A", read_queues=3, write_queues=3))
    groups.put("0.0.0", "g", GroupConfig(name="g"))
    opened.close()
    fork = tmp_path / "fork"

    forked(store, fork, END_OF_TIME_MS, SMALL)

    disk, root = OsDisk(), str(fork)
    found = StateFile(disk, root, TOPICS.file).load(parse_topics).value
    assert found is not None
    assert found.topics["A"].read_queues == 3
    made = StateFile(disk, root, GROUPS.file).load(parse_groups).value
    assert made is not None
    assert made.groups.keys() == {"g"}
