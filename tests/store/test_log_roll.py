"""Log files that are closed by age: when, what they hold then, and what recovery, retention and Apache make of it."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from pocketmq.proto.errors import DiskFailure, StoreFull
from pocketmq.proto.record import MAGIC_BLANK
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.log_writer import Appended
from pocketmq.store.message_store import MessageStore
from pocketmq.store.recovery.report import RecoveryReport
from pocketmq.store.retention import local_hour
from pocketmq.tools.inspect.document import describe_apache, describe_ours

from ..fakes import Crash, FaultyDisk, RecordingDisk
from ..runs import Hand, bodies_of, make_run, open_store, records_of

MINUTE = 60_000
HOUR = 60 * MINUTE
FILE = 4096
BY_AGE: dict[str, Any] = {"log_roll_ms": 10 * MINUTE, "retention_ms": HOUR}
SETTINGS = {
    "mappedFileSizeCommitLog": str(FILE),
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
}


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def store(tmp_path: Path, clock: Hand) -> MessageStore:
    return open_store(tmp_path, now_ms=clock, **BY_AGE)


def append(store: MessageStore, body: bytes) -> int:
    """Append a message of BODY; return where it is."""
    return int(store.append(make_run("T", 0, [body], {"KEYS": "k"})).log_offsets[0])


def starts(store: MessageStore) -> list[int]:
    """Return where the log's files begin."""
    return [file.start for file in store.log.files.files]


def expire(store: MessageStore, disk: FaultyDisk, clock: Hand) -> None:
    """Turn CLOCK to an hour of deletion at which every file that is there is too old."""
    clock.now_ms += store.config.retention_ms
    while local_hour(clock.now_ms) != store.config.delete_hour:
        clock.now_ms += HOUR
    disk.used_percent = 10
    for file in store.log.files.files:
        disk.modified[file.path] = clock.now_ms - store.config.retention_ms


# --- when ------------------------------------------------------------------------------------------------------------


def test_a_message_opens_the_next_file_once_the_first_of_the_file_is_old_enough(
    store: MessageStore, clock: Hand
) -> None:
    append(store, b"first")
    clock.now_ms += 10 * MINUTE - 1
    last = append(store, b"last")
    clock.now_ms += 1

    assert last < FILE
    assert append(store, b"next") == FILE
    assert append(store, b"beside it") < 2 * FILE
    assert bodies_of(store, "T", 0) == [b"first", b"last", b"next", b"beside it"]


def test_many_runs_and_whole_ones_open_it_as_well(store: MessageStore, clock: Hand) -> None:
    one, two, three, four = (make_run("T", 0, [b"x", b"y"]) for _ in range(4))
    append(store, b"old")
    clock.now_ms += 10 * MINUTE

    first, second = store.append_together([one, two])

    assert (first.log_offsets[0], second.log_offsets[0]) == (FILE, first.end_offset)
    clock.now_ms += 10 * MINUTE
    first, second = cast(list[Appended], store.append_many([three, four]))
    assert (first.log_offsets[0], second.log_offsets[0]) == (2 * FILE, first.end_offset)


def test_a_tick_closes_a_file_to_which_nothing_is_appended_and_an_empty_one_never(
    store: MessageStore, clock: Hand
) -> None:
    store.tick()
    assert starts(store) == []

    append(store, b"alone")
    for _ in range(50):
        clock.now_ms += 5 * MINUTE
        store.tick()

    assert starts(store) == [0, FILE]
    assert store.max_log_offset == store.dispatched_offset == store.flushed_offset == FILE
    store.check_readable()
    assert append(store, b"next") == FILE
    assert bodies_of(store, "T", 0) == [b"alone", b"next"]


def test_the_age_of_an_empty_file_counts_from_its_first_message(
    store: MessageStore, clock: Hand
) -> None:
    append(store, b"old")
    clock.now_ms += 10 * MINUTE
    store.tick()
    clock.now_ms += HOUR
    append(store, b"new")
    clock.now_ms += 10 * MINUTE - 1

    store.tick()

    assert append(store, b"beside it") < 2 * FILE


def test_by_default_files_are_closed_by_size_alone(tmp_path: Path, clock: Hand) -> None:
    store = open_store(tmp_path, now_ms=clock)
    append(store, b"old")
    clock.now_ms += 365 * 24 * HOUR
    store.tick()
    append(store, b"new")

    assert starts(store) == [0]


def test_the_age_outlasts_a_restart(tmp_path: Path, clock: Hand) -> None:
    store = open_store(tmp_path, now_ms=clock, **BY_AGE)
    append(store, b"old")
    clock.now_ms += 6 * MINUTE
    store.close()
    store = open_store(tmp_path, now_ms=clock, **BY_AGE)
    clock.now_ms += 4 * MINUTE

    assert append(store, b"new") == FILE


@pytest.mark.parametrize("step_ms", [MINUTE, HOUR, 10 * 365 * 24 * HOUR])
def test_a_clock_that_is_set_back_closes_nothing_and_holds_a_file_once_more_as_long(
    step_ms: int, store: MessageStore, clock: Hand
) -> None:
    append(store, b"before")
    clock.now_ms -= step_ms
    store.tick()
    clock.now_ms += 10 * MINUTE - 1
    assert append(store, b"behind") < FILE

    clock.now_ms += 1

    assert append(store, b"next") == FILE
    store.tick()
    clock.now_ms += 10 * MINUTE - 1
    assert append(store, b"beside it") < 2 * FILE
    clock.now_ms += 1
    assert append(store, b"and so on") == 2 * FILE


def test_a_clock_that_was_set_back_while_the_store_was_closed_holds_no_file(
    tmp_path: Path, clock: Hand
) -> None:
    store = open_store(tmp_path, now_ms=clock, **BY_AGE)
    append(store, b"of the future")
    store.close()
    clock.now_ms -= 10 * 365 * 24 * HOUR
    store = open_store(tmp_path, now_ms=clock, **BY_AGE)
    append(store, b"now")
    clock.now_ms += 10 * MINUTE

    assert append(store, b"next") == FILE


# --- what is in the file ---------------------------------------------------------------------------------------------


def test_the_rest_of_the_file_is_one_blank_and_a_hole(tmp_path: Path, clock: Hand) -> None:
    size = 64 << 20
    store = open_store(tmp_path, now_ms=clock, log_file_size_bytes=size, **BY_AGE)
    end = store.append(make_run("T", 0, [b"x" * 300])).end_offset
    clock.now_ms += 10 * MINUTE
    store.tick()
    store.close()

    for start, wanted in ((0, struct.pack(">ii", size - end, MAGIC_BLANK)), (size, bytes(8))):
        path = tmp_path / "commitlog" / f"{start:020d}"
        status = path.stat()
        assert status.st_size == size
        assert status.st_blocks * 512 <= 64 << 10
        with open(path, "rb") as file:
            file.seek(end if start == 0 else 0)
            assert file.read(8) == wanted
            assert not any(file.read(1 << 20))


def test_without_room_for_another_file_the_present_one_goes_on(tmp_path: Path, clock: Hand) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk, now_ms=clock, **BY_AGE)
    append(store, b"old")
    clock.now_ms += 10 * MINUTE
    disk.fail_create = lambda path: StoreFull("full") if "commitlog" in path else None

    assert append(store, b"new") < FILE
    store.tick()
    assert store.health.state == "open"

    disk.heal()
    store.tick()
    assert append(store, b"next") == FILE
    assert bodies_of(store, "T", 0) == [b"old", b"new", b"next"]


def test_a_blank_that_cannot_be_written_fails_the_store_as_any_write(
    tmp_path: Path, clock: Hand
) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk, now_ms=clock, **BY_AGE)
    append(store, b"old")
    clock.now_ms += 10 * MINUTE
    disk.break_writes("commitlog")

    store.tick()

    assert store.health.state == "failed"
    with pytest.raises(DiskFailure):
        append(store, b"new")


# --- retention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False], ids=["after a stop", "after a kill"])
def test_retention_takes_the_file_of_an_idle_store_and_offsets_go_on(
    clean: bool, tmp_path: Path, clock: Hand
) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk, now_ms=clock, **BY_AGE)
    for number in range(3):
        append(store, b"%d" % number)
    clock.now_ms += 10 * MINUTE
    store.tick()
    expire(store, disk, clock)

    assert store.clean().log_files == 1

    assert starts(store) == [FILE]
    assert store.queue_bounds("T", 0) == (3, 3)
    assert bodies_of(store, "T", 0) == []
    assert store.lookup("T", "k") == []
    if clean:
        store.close()
    else:
        store._close_files()
    store = open_store(tmp_path, now_ms=clock, **BY_AGE)
    assert store.recovery.findings == []
    assert store.queue_bounds("T", 0) == (3, 3)
    assert append(store, b"next") == FILE
    assert store.queue_bounds("T", 0) == (3, 4)
    assert bodies_of(store, "T", 0) == [b"next"]
    store.close()
    assert open_store(tmp_path, now_ms=clock, **BY_AGE).recovery.findings == []


# --- recovery, ours and Apache's -------------------------------------------------------------------------------------


def described(path: Path, clock: Hand) -> list[dict[str, Any]]:
    """Return what Apache's broker, and what ours, would make of the store at PATH."""
    given = SETTINGS, ApacheSettings.of(SETTINGS), clock.now_ms
    return [describe_apache(str(path), *given), describe_ours(str(path), *given)]


@pytest.mark.parametrize("clean", [True, False], ids=["after a stop", "after a kill"])
@pytest.mark.parametrize("idle", [True, False], ids=["last file empty", "last file used"])
@pytest.mark.parametrize("gone", [True, False], ids=["old files gone", "all files"])
def test_apaches_recovery_keeps_what_ours_does(
    clean: bool, idle: bool, gone: bool, tmp_path: Path, clock: Hand
) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk, now_ms=clock, **BY_AGE)
    for number in range(4):
        append(store, b"%d" % number)
        clock.now_ms += 10 * MINUTE
        store.tick()
    if not idle:
        append(store, b"last")
    left = 5 - idle
    if gone:
        expire(store, disk, clock)
        assert store.clean().log_files == 4
        left -= 4
    end = store.max_log_offset
    if clean:
        store.close()
    else:
        store.flush()
        store._close_files()

    for found in described(tmp_path, clock):
        assert found["accepted"]
        assert len(found["records"]) == left
        assert found["maxPhyOffset"] == end
        [queue] = [one for one in found["queues"] if one["topic"] == "T"]
        assert (queue["minOffset"], queue["maxOffset"]) == (4 * gone, 5 - idle)


@pytest.mark.long
def test_power_that_fails_at_any_operation_around_the_closing_of_a_file_costs_nothing_synced(
    tmp_path: Path,
) -> None:
    rolled = 0
    for crash_after in range(1, 200):
        home = tmp_path / f"before {crash_after}"
        home.mkdir()
        clock, disk = Hand(), RecordingDisk(str(home), crash_after)
        synced = appended = 0
        store = open_store(home, disk=disk, now_ms=clock, **BY_AGE)
        begin = disk.operations
        disk.crash_after = begin + crash_after
        with suppress(Crash):  # Power fails: what the disk has then is looked at below.
            for number in range(6):
                append(store, b"%d" % number)
                appended = number + 1
                if number % 3:
                    store.flush()
                    synced = appended
                clock.now_ms += 10 * MINUTE
                if number % 2:
                    store.tick()
            break
        left = tmp_path / f"after {crash_after}"
        disk.rebuild(str(left))

        store = open_store(left, now_ms=clock, **BY_AGE)

        found = records_of(store, "T", 0)
        numbers = [record.queue_offset for record in found]
        assert numbers[:synced] == list(range(synced))
        assert [record.body for record in found] == [b"%d" % number for number in numbers]
        assert len(found) <= appended + 1
        rolled += len(starts(store)) > 1
        append(store, b"more")
        assert records_of(store, "T", 0)[:-1] == found
        store.close()
        again: RecoveryReport = open_store(left, now_ms=clock, **BY_AGE).recovery
        assert again.clean
        assert again.findings == []
    else:
        pytest.fail("the script has more operations than were tried")
    assert rolled > 5
