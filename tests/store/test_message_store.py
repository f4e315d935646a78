"""The store as a whole: what goes in comes out, by every way of asking."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketmq.proto.errors import (
    DiskFailure,
    InvalidArgument,
    MessageTooLarge,
    OffsetOutOfRange,
    QueueNotFound,
    StoreClosed,
    StoreFull,
    StoreLocked,
    StoreMismatch,
)
from pocketmq.proto.record import MAGIC_BLANK, Host, Record, decode_record, encode_record
from pocketmq.proto.run import Run
from pocketmq.store.log_writer import Appended
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.retention import local_hour

from ..fakes import FaultyDisk
from ..runs import Hand, append_record, bodies_of, make_run, open_store, records_of, small_config

BODIES = [b"body %d" % number for number in range(100)]


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk, clock: Hand) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "store", disk=disk, now_ms=clock)
    yield store
    disk.heal()
    store.close()


def blanks(store: MessageStore) -> int:
    return sum(
        MAGIC_BLANK.to_bytes(4, "big", signed=True) in bytes(file.view)
        for file in store.log.files.files
    )


def test_what_was_appended_is_read_back_in_order(store: MessageStore) -> None:
    appended = store.append(make_run("T", 3, BODIES))

    assert appended.first_queue_offset == 0
    assert store.queue_bounds("T", 3) == (0, 100)
    assert bodies_of(store, "T", 3) == BODIES
    assert len(store.log.files.files) > 2


def test_an_append_of_nothing_stores_nothing(store: MessageStore) -> None:
    assert store.append_many([]) == []

    assert store.max_log_offset == 0


def test_the_store_fills_in_its_fields(store: MessageStore, clock: Hand) -> None:
    store.host = Host.parse("10.0.0.7", 8081)
    store.append(make_run("T", 0, BODIES[:2]))
    clock.now_ms += 5

    appended = store.append(make_run("T", 0, BODIES[2:4]))

    record = records_of(store, "T", 0)[3]
    assert record.queue_offset == 3
    assert record.log_offset == appended.log_offsets[1]
    assert record.store_timestamp_ms == appended.store_timestamp_ms == clock.now_ms
    assert str(record.store_host) == "10.0.0.7:8081"
    assert record.crc_ok


def test_store_times_never_step_back(store: MessageStore, clock: Hand) -> None:
    first = store.append(make_run("T", 0, BODIES[:1]))
    clock.now_ms -= 1000

    second = store.append(make_run("T", 0, BODIES[:1]))

    assert second.store_timestamp_ms == first.store_timestamp_ms


def test_store_times_do_not_step_back_over_a_restart(tmp_path: Path) -> None:
    clock = Hand()
    first = open_store(tmp_path, now_ms=clock)
    before = first.append(make_run("T", 0, BODIES[:1])).store_timestamp_ms
    first.close()
    clock.now_ms -= 1000

    second = open_store(tmp_path, now_ms=clock)

    assert second.append(make_run("T", 0, BODIES[:1])).store_timestamp_ms == before
    second.close()


def test_queues_are_apart(store: MessageStore) -> None:
    for body in BODIES:
        store.append(make_run("A", body[-1] % 2, [body]))
        store.append(make_run("B", 0, [body + b"!"]))

    assert bodies_of(store, "A", 0) == [body for body in BODIES if body[-1] % 2 == 0]
    assert bodies_of(store, "A", 1) == [body for body in BODIES if body[-1] % 2 == 1]
    assert bodies_of(store, "B", 0) == [body + b"!" for body in BODIES]
    assert store.queue_names() == [("A", 0), ("A", 1), ("B", 0)]


def test_a_read_stops_at_its_limits_but_gives_one_record(store: MessageStore) -> None:
    store.append(make_run("T", 0, BODIES))

    by_count = store.read_queue("T", 0, 10, 5, 1 << 20)
    by_size = store.read_queue("T", 0, 10, 100, 250)
    tiny = store.read_queue("T", 0, 10, 100, 1)

    assert (len(by_count), by_count.next_offset) == (5, 15)
    assert len(by_size) == 2
    assert sum(by_size.sizes) == len(by_size.records) <= 250
    assert (len(tiny), tiny.next_offset) == (1, 11)
    assert by_count.queue_offsets.tolist() == [10, 11, 12, 13, 14]


def test_the_end_of_a_queue_reads_as_nothing(store: MessageStore) -> None:
    store.append(make_run("T", 0, BODIES[:3]))

    slices = store.read_queue("T", 0, 3, 10, 1000)

    assert (len(slices), slices.records, slices.next_offset) == (0, b"", 3)


def test_an_offset_outside_the_queue_is_an_error_with_the_bounds(store: MessageStore) -> None:
    store.append(make_run("T", 0, BODIES[:3]))

    with pytest.raises(OffsetOutOfRange, match="offset 4 of T/0 is outside of 0 to 3"):
        store.read_queue("T", 0, 4, 10, 1000)
    with pytest.raises(QueueNotFound, match="no queue T/1"):
        store.read_queue("T", 1, 0, 10, 1000)


def test_records_are_found_by_key_and_tag(store: MessageStore) -> None:
    properties = [
        {"KEYS": f"order{number} all", "UNIQ_KEY": f"U{number}", "TAGS": f"tag{number % 3}"}
        for number in range(20)
    ]
    appended = store.append(make_run("T", 0, BODIES[:20], properties))
    offsets = appended.log_offsets.tolist()

    assert store.lookup("T", "order7") == [offsets[7]]
    assert store.lookup("T", "U13") == [offsets[13]]
    assert store.lookup("T", "all", max_results=5) == offsets[-5:]
    assert store.lookup("T", "tag1", kind="T") == offsets[1::3]
    assert store.lookup("T", "order99") == []
    assert store.lookup("other", "order7") == []


def test_a_record_is_found_by_log_offset_and_message_id(store: MessageStore) -> None:
    appended = store.append(make_run("T", 0, BODIES[:3]))
    data = store.read_at(int(appended.log_offsets[1])) or b""
    record = decode_record(data)

    assert record.body == BODIES[1]
    assert store.by_message_id(record.message_id) == data
    assert store.read_at(int(appended.log_offsets[1]) + 1) is None
    assert store.read_at(1 << 40) is None
    with pytest.raises(InvalidArgument):
        store.by_message_id("no id")


def test_the_first_record_of_an_instant_is_found(store: MessageStore, clock: Hand) -> None:
    begin = clock.now_ms
    for number in range(50):
        clock.now_ms = begin + number // 2 * 10
        store.append(make_run("T", 0, [BODIES[number]]))

    assert store.offset_by_time("T", 0, begin - 1) == 0
    assert store.offset_by_time("T", 0, begin + 100) == 20
    assert store.offset_by_time("T", 0, begin + 101) == 22
    assert store.offset_by_time("T", 0, begin + 10_000) == 50


def test_a_run_is_divided_between_files_with_a_blank(store: MessageStore) -> None:
    appended = store.append(make_run("T", 0, [b"x" * 900] * 10))

    assert blanks(store) == 2
    assert [offset // 4096 for offset in appended.log_offsets.tolist()] == [0] * 4 + [1] * 4 + [2] * 2  # fmt: skip
    assert bodies_of(store, "T", 0) == [b"x" * 900] * 10


def test_a_batch_stays_whole(store: MessageStore) -> None:
    store.append(make_run("T", 0, [b"x" * 900] * 2))

    appended = store.append(make_run("T", 0, [b"y" * 900] * 3, whole=True))

    assert {offset // 4096 for offset in appended.log_offsets.tolist()} == {1}


def test_a_record_never_touches_the_last_eight_bytes(tmp_path: Path) -> None:
    size = len(make_run("T", 0, [b"x"]).records)
    for room, files in ((size + 8, 1), (size + 7, 2)):
        store = open_store(tmp_path / str(room), log_file_size_bytes=1024)
        store.append(make_run("T", 0, [b"x" * (1024 - room - size + 1)]))

        store.append(make_run("T", 0, [b"x"]))

        assert len(store.log.files.files) == files
        store.close()


def test_the_blank_says_how_much_it_fills(store: MessageStore) -> None:
    store.append(make_run("T", 0, [b"x" * 3000]))
    end = store.max_log_offset

    store.append(make_run("T", 0, [b"x" * 3000]))

    head = bytes(store.log.files.files[0].view[end : end + 8])
    assert struct.unpack(">ii", head) == (4096 - end, MAGIC_BLANK)


def test_a_run_that_fits_no_file_is_refused_and_leaves_nothing(store: MessageStore) -> None:
    store.append(make_run("T", 0, BODIES[:1]))
    end = store.max_log_offset

    with pytest.raises(MessageTooLarge, match="do not fit one log file"):
        store.append(make_run("T", 0, [b"x" * 900] * 5, whole=True))
    with pytest.raises(MessageTooLarge, match="do not fit one log file"):
        store.append(make_run("T", 0, [b"x", b"x" * 5000]))

    assert store.max_log_offset == end
    assert bodies_of(store, "T", 0) == BODIES[:1]


def test_the_broker_appends_single_records(store: MessageStore) -> None:
    record = Record(topic="%RETRY%g", body=b"again", reconsume_times=2, properties={"TAGS": "a"})

    append_record(store, record)

    found = records_of(store, "%RETRY%g", 0)[0]
    assert (found.body, found.reconsume_times, found.properties) == (b"again", 2, {"TAGS": "a"})


def test_many_runs_go_in_as_one_by_one(tmp_path: Path) -> None:
    runs = [
        (("A", "B")[number % 2], number % 3, BODIES[number : number + 1 + number % 4])
        for number in range(40)
    ]
    single, many = open_store(tmp_path / "single"), open_store(tmp_path / "many")
    expected = [single.append(make_run(*run, {"KEYS": "k", "TAGS": "t"})) for run in runs]

    outcomes = many.append_many([make_run(*run, {"KEYS": "k", "TAGS": "t"}) for run in runs[:9]])
    outcomes += many.append_many([make_run(*run, {"KEYS": "k", "TAGS": "t"}) for run in runs[9:]])

    for one, other in zip(outcomes, expected, strict=True):
        assert not isinstance(one, Exception)
        assert one.first_queue_offset == other.first_queue_offset
        assert one.log_offsets.tolist() == other.log_offsets.tolist()
        assert one.end_offset == other.end_offset
    for store in (single, many):
        store.close()
    for path in sorted((tmp_path / "single").rglob("*")):
        if path.is_file() and path.parent.name != "index":
            twin = tmp_path / "many" / path.relative_to(tmp_path / "single")
            assert twin.read_bytes() == path.read_bytes(), path


def test_a_bad_run_among_many_is_refused_alone(store: MessageStore) -> None:
    half = encode_record(Record(topic="T", body=b"half"))
    prepared = Run.of("T", 0, [half])
    prepared.columns.sys_flag[0] = 4

    first, second, third = store.append_many(
        [make_run("T", 0, [b"a"]), prepared, make_run("T", 0, [b"b", b"c"])]
    )

    assert isinstance(second, InvalidArgument)
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    assert bodies_of(store, "T", 0) == [b"a", b"b", b"c"]


def test_many_runs_on_a_full_disk_are_all_refused(store: MessageStore, disk: FaultyDisk) -> None:
    store.append(make_run("T", 0, [b"a"]))
    disk.run_full("commitlog")

    outcomes = store.append_many([make_run("T", 0, [b"b"]), make_run("U", 0, [b"c"])])

    assert [type(one) for one in outcomes] == [StoreFull, StoreFull]
    disk.heal()
    store.append(make_run("T", 0, [b"d"]))
    assert bodies_of(store, "T", 0) == [b"a", b"d"]


def test_an_append_that_lacks_memory_for_its_second_file_stores_nothing(
    store: MessageStore, disk: FaultyDisk
) -> None:
    store.append(make_run("T", 0, [b"a"]))

    def lack_memory(path: str, size: int) -> None:
        if "commitlog" in path and int(path.rpartition("/")[2]) > 0:
            raise MemoryError

    disk.fail_write = lack_memory
    with pytest.raises(MemoryError):
        store.append(make_run("T", 0, [bytes(1000) for _ in range(5)]))

    disk.heal()
    store.append(make_run("T", 0, [b"b"]))
    assert bodies_of(store, "T", 0) == [b"a", b"b"]


def test_a_store_host_of_16_bytes_is_refused(store: MessageStore) -> None:
    with pytest.raises(StoreMismatch, match="IPv4"):
        store.host = Host.parse("::1", 1)


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    first.append(make_run("T", 0, BODIES, {"KEYS": "k"}))
    first.close()
    assert not (tmp_path / "abort").exists()

    second = open_store(tmp_path)

    assert second.recovery.clean
    assert bodies_of(second, "T", 0) == BODIES
    assert len(second.lookup("T", "k")) == 64
    assert second.append(make_run("T", 0, [b"more"])).first_queue_offset == 100
    assert bodies_of(second, "T", 0) == [*BODIES, b"more"]
    second.close()


def test_an_open_store_has_abort_with_the_process_id(store: MessageStore, tmp_path: Path) -> None:
    assert (tmp_path / "store" / "abort").read_text() == str(os.getpid())


def test_a_second_opening_is_refused_and_names_the_process(
    store: MessageStore, tmp_path: Path
) -> None:
    with pytest.raises(StoreLocked, match=r"lock is locked by another broker, process \d+"):
        open_store(tmp_path / "store")


OPENER = """
import sys
import threading
from pocketmq.proto.errors import StoreLocked
from pocketmq.store import MessageStore, StoreConfig, OsDisk
try:
    MessageStore.open(StoreConfig(path=sys.argv[1]), disk=OsDisk(), now_ms=lambda: 1)
except StoreLocked:
    sys.exit(7)
"""


@pytest.mark.processes
def test_another_process_is_refused(store: MessageStore, tmp_path: Path) -> None:
    path = str(tmp_path / "store")

    refused = subprocess.run([sys.executable, "-c", OPENER, path], check=False)

    assert refused.returncode == 7


def test_a_live_store_can_be_read_without_writing_a_byte(
    store: MessageStore, tmp_path: Path
) -> None:
    store.append(make_run("T", 0, BODIES, {"KEYS": "k"}))
    before = {path: path.stat() for path in (tmp_path / "store").rglob("*")}

    reader = MessageStore.open(
        small_config(tmp_path / "store"), disk=OsDisk(), now_ms=Hand(), read_only=True
    )

    assert bodies_of(reader, "T", 0) == BODIES
    assert len(reader.lookup("T", "k")) == 64
    with pytest.raises(StoreClosed, match="read-only"):
        reader.append(make_run("T", 0, BODIES))
    reader.close()
    after = {path: path.stat() for path in (tmp_path / "store").rglob("*")}
    assert {path: (stat.st_mtime_ns, stat.st_size) for path, stat in before.items()} == {
        path: (stat.st_mtime_ns, stat.st_size) for path, stat in after.items()
    }


def test_a_read_only_opening_needs_a_store(tmp_path: Path) -> None:
    config = small_config(tmp_path / "none")

    with pytest.raises(StoreMismatch, match="there is no store at"):
        MessageStore.open(config, disk=OsDisk(), now_ms=Hand(), read_only=True)


def test_a_closed_store_says_so(store: MessageStore) -> None:
    store.close()

    with pytest.raises(StoreClosed, match="is closed"):
        store.append(make_run("T", 0, BODIES))
    with pytest.raises(StoreClosed, match="is closed"):
        store.read_queue("T", 0, 0, 1, 1)


def test_the_unused_preallocated_file_goes_with_a_clean_stop(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"x" * 3000]))
    store.tick()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2

    store.close()

    assert len(list((tmp_path / "commitlog").iterdir())) == 1


def test_an_empty_store_is_a_store(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    store = open_store(tmp_path)

    assert (store.min_log_offset, store.max_log_offset) == (0, 0)
    assert store.queue_names() == []
    store.close()


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_and_takes_again_when_there_is_room(
    store: MessageStore, disk: FaultyDisk
) -> None:
    store.append(make_run("T", 0, BODIES[:10]))
    disk.torn_write = 100
    disk.run_full("commitlog")

    with pytest.raises(StoreFull, match="no space left"):
        store.append(make_run("T", 0, BODIES[10:60]))

    assert store.health.state == "open"
    assert bodies_of(store, "T", 0) == BODIES[:10]
    disk.heal()
    store.append(make_run("T", 0, BODIES[10:]))
    assert bodies_of(store, "T", 0) == BODIES


def test_a_run_over_two_files_goes_in_whole_or_not_at_all(
    store: MessageStore, disk: FaultyDisk
) -> None:
    store.append(make_run("T", 0, [b"x" * 900] * 2))
    end = store.max_log_offset
    disk.fail_create = lambda path: StoreFull("full") if "commitlog" in path else None

    with pytest.raises(StoreFull):
        store.append(make_run("T", 0, [b"y" * 900] * 5))

    assert store.max_log_offset == end
    disk.heal()
    store.append(make_run("T", 0, [b"z" * 900] * 5))
    assert bodies_of(store, "T", 0) == [b"x" * 900] * 2 + [b"z" * 900] * 5


def test_what_the_log_took_is_stored_though_its_queue_is_full_and_nothing_passes_it(
    store: MessageStore, disk: FaultyDisk
) -> None:
    store.append(make_run("T", 0, BODIES[:10]))
    disk.run_full("consumequeue")

    appended = store.append(make_run("T", 0, BODIES[10:20]))

    assert appended.first_queue_offset == 10
    assert store.dispatched_offset < store.max_log_offset == appended.end_offset
    assert bodies_of(store, "T", 0) == BODIES[:10]
    with pytest.raises(StoreFull, match="not in its queue yet"):
        store.check_readable()
    with pytest.raises(StoreFull):
        store.append(make_run("T", 1, BODIES[:5]))
    assert store.max_log_offset == appended.end_offset
    disk.heal()
    store.append(make_run("T", 0, BODIES[20:30]))

    assert bodies_of(store, "T", 0) == BODIES[:30]
    assert store.dispatched_offset == store.max_log_offset


def test_what_is_late_is_entered_by_a_tick_and_told(store: MessageStore, disk: FaultyDisk) -> None:
    told: list[tuple[str, int]] = []
    store.events.caught_up.append(told.extend)
    store.append(make_run("T", 0, [b"before"]))
    runs = [make_run("T", 0, BODIES[:3]), make_run("U", 3, BODIES[:2])]
    disk.run_full("consumequeue")
    outcomes = store.append_many(runs)
    assert all(isinstance(outcome, Appended) for outcome in outcomes)

    store.tick()
    assert told == []
    disk.heal()
    store.tick()

    assert sorted(told) == [("T", 0), ("U", 3)]
    assert bodies_of(store, "T", 0) == [b"before", *BODIES[:3]]
    assert bodies_of(store, "U", 3) == BODIES[:2]
    store.tick()
    assert len(told) == 2


def test_what_is_late_at_a_stop_is_there_after_the_start(tmp_path: Path, disk: FaultyDisk) -> None:
    store = open_store(tmp_path, disk=disk)
    disk.run_full("consumequeue")
    store.append(make_run("T", 0, BODIES[:10]))
    with pytest.raises(StoreFull):
        store.close()
    disk.heal()

    again = open_store(tmp_path, disk=disk)

    assert not again.recovery.clean
    assert bodies_of(again, "T", 0) == BODIES[:10]
    again.close()


def test_a_broken_queue_stops_the_writes_but_not_what_the_log_has(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    store = open_store(tmp_path, disk=disk)
    disk.break_writes("consumequeue")

    appended = store.append(make_run("T", 0, BODIES[:10]))

    assert appended.end_offset == store.max_log_offset
    assert store.health.state == "failed"
    with pytest.raises(DiskFailure):
        store.append(make_run("T", 0, BODIES[10:]))
    store.close()
    disk.heal()
    again = open_store(tmp_path, disk=disk)
    assert bodies_of(again, "T", 0) == BODIES[:10]
    again.close()


def test_a_failed_write_stops_all_writing_and_keeps_abort(tmp_path: Path, disk: FaultyDisk) -> None:
    store = open_store(tmp_path, disk=disk)
    store.append(make_run("T", 0, BODIES[:10]))
    disk.break_writes("commitlog")
    with pytest.raises(DiskFailure, match="input/output error"):
        store.append(make_run("T", 0, BODIES[10:]))
    disk.heal()

    with pytest.raises(DiskFailure, match="takes no more writes"):
        store.append(make_run("T", 0, BODIES[10:]))

    assert store.health.state == "failed"
    assert bodies_of(store, "T", 0) == BODIES[:10]
    store.close()
    assert (tmp_path / "abort").exists()
    again = open_store(tmp_path)
    assert bodies_of(again, "T", 0) == BODIES[:10]
    again.close()


def test_a_failed_sync_fails_all_who_wait_and_all_writing(tmp_path: Path, disk: FaultyDisk) -> None:
    store = open_store(tmp_path, disk=disk)
    seen: list[object] = []
    end = store.append(make_run("T", 0, BODIES)).end_offset
    disk.break_syncs("commitlog")

    store.request_sync(end, seen.append)

    assert isinstance(seen[0], DiskFailure)
    assert store.flushed_offset == 0
    with pytest.raises(DiskFailure):
        store.append(make_run("T", 0, BODIES))
    disk.heal()
    store.close()
    assert (tmp_path / "abort").exists()


def test_who_asks_for_the_device_is_told(store: MessageStore) -> None:
    seen: list[object] = []
    offsets: list[int] = []
    store.events.flushed.append(offsets.append)
    end = store.append(make_run("T", 0, BODIES)).end_offset

    store.request_sync(end, seen.append)

    assert seen == [None]
    assert offsets == [end]
    assert store.flushed_offset == end


def test_the_threads_flush_and_end(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    calls: queue.SimpleQueue[object] = queue.SimpleQueue()
    store = open_store(tmp_path)
    store.start(calls.put)
    assert set(threading.enumerate()) - before
    end = store.append(make_run("T", 0, BODIES)).end_offset
    seen: list[object] = []

    store.request_sync(end, seen.append)
    store.tick()
    while not seen:
        calls.get(timeout=10)()  # type: ignore[operator]

    assert seen == [None]
    store.close()
    assert set(threading.enumerate()) <= before


def test_no_room_for_notes_neither_fails_a_store_nor_a_clean_stop(
    tmp_path: Path, disk: FaultyDisk, clock: Hand
) -> None:
    first = open_store(tmp_path, disk=disk, now_ms=clock)
    first.append(make_run("T", 0, BODIES))
    first._close_files()
    store = open_store(tmp_path, disk=disk, now_ms=clock)
    disk.run_full("checkpoint")
    disk.fail_create = lambda path: StoreFull("full") if "pocketmq" in path else None

    for _ in range(3):
        clock.now_ms += 70_000
        store.tick()

    assert store.health.state == "open"
    assert store.flushed_offset == store.max_log_offset
    disk.heal()
    store.close()
    assert not (tmp_path / "abort").exists()


# --- time ------------------------------------------------------------------------------------------------------------


def test_the_checkpoint_follows_the_flushes(tmp_path: Path, clock: Hand) -> None:
    store = open_store(tmp_path, now_ms=clock)
    store.tick()
    appended = store.append(make_run("T", 0, BODIES))
    store.tick()
    assert store.parts.checkpoint.values.log_time_ms == appended.store_timestamp_ms
    assert store.parts.checkpoint.values.queues_time_ms == 0

    clock.now_ms += 60_000
    store.tick()

    assert store.parts.checkpoint.values.queues_time_ms == appended.store_timestamp_ms
    assert store.parts.checkpoint.values.queues_log_offset == appended.log_offsets[-1]
    store.close()


def test_the_checkpoint_does_not_follow_a_flush_that_failed(tmp_path: Path, clock: Hand) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk, now_ms=clock)
    store.tick()
    store.append(make_run("T", 0, BODIES))
    disk.break_syncs("consumequeue")
    clock.now_ms += 60_000
    store.tick()

    assert store.parts.checkpoint.values.queues_time_ms == 0
    with contextlib.suppress(DiskFailure):
        store.close()


def test_old_files_go_and_queues_and_index_follow(
    tmp_path: Path, disk: FaultyDisk, clock: Hand
) -> None:
    store = open_store(tmp_path, disk=disk, now_ms=clock)
    store.append(make_run("T", 0, [b"x" * 300] * 60, {"KEYS": "k"}))
    files = store.log.files.files
    while local_hour(clock.now_ms) != 4:
        clock.now_ms += 3_600_000
    for file in files:
        disk.modified[file.path] = clock.now_ms
    for file in files[:3]:
        disk.modified[file.path] -= store.config.retention_ms
    disk.used_percent = 10

    cleaned = store.clean()

    assert cleaned.log_files == 3
    assert store.min_log_offset == 3 * 4096
    low, high = store.queue_bounds("T", 0)
    assert high == 60
    assert 0 < low < 60
    assert len(records_of(store, "T", 0)) == high - low
    assert records_of(store, "T", 0)[0].log_offset >= store.min_log_offset
    store.close()


def test_a_disk_above_90_percent_refuses_writes_until_there_is_room(
    store: MessageStore, disk: FaultyDisk
) -> None:
    disk.used_percent = 91
    store.clean()
    with pytest.raises(StoreFull, match=r"is 91 % full, the limit for writing is 90 %"):
        store.append(make_run("T", 0, BODIES))

    disk.used_percent = 80
    store.clean()

    store.append(make_run("T", 0, BODIES))


def test_a_deleted_topic_has_no_queues_and_begins_anew(store: MessageStore) -> None:
    store.append(make_run("T", 0, BODIES))

    store.delete_topic("T")

    assert store.queue_names() == []
    assert store.append(make_run("T", 0, BODIES[:1])).first_queue_offset == 0


def test_retention_says_what_it_cannot_look_at_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(disk: OsDisk, path: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"one"]))
    with monkeypatch.context() as patched:
        patched.setattr(OsDisk, "modified_ms", broken)
        with pytest.raises(DiskFailure, match=r"read the times of files of .*commitlog"):
            store.clean()

    assert store.clean().log_files == 0
    store.append(make_run("T", 0, [b"two"]))
    store.close()
