"""Records that are damaged underneath an open store, or were while it was closed: no wrong body is ever read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pocketmq.proto.record import SYS_ROLLBACK, SYS_TRANSACTION, decode_record
from pocketmq.store.message_store import MessageStore
from pocketmq.store.slices import Slices

from ..damage import BODY_AT, flip, flip_stopped, log_offset_of
from ..runs import Hand, bodies_of, make_run, open_store, records_of

_MINUTE_MS = 60_000


def filled(path: Path, *, now_ms: Hand | None = None) -> MessageStore:
    store = open_store(path, now_ms=now_ms)
    for number in range(10):
        store.append(make_run("T", 0, [b"body %04d" % number], {"KEYS": f"k{number}"}))
        store.append(make_run("U", 0, [b"another %d" % number]))
    return store


def wanted_without(*numbers: int) -> list[bytes]:
    return [b"body %04d" % number for number in range(10) if number not in numbers]


@pytest.mark.parametrize("number", [0, 4, 9])
def test_a_body_changed_under_an_open_store_is_not_read(tmp_path: Path, number: int) -> None:
    store = filled(tmp_path)
    at = log_offset_of(store, number)
    flip(store, at)

    assert bodies_of(store, "T", 0) == wanted_without(number)
    assert store.read_at(at) is None
    assert store.by_message_id(f"7F000001000000AA{at:016X}") is None
    assert store.lookup("T", f"k{number}") == []
    assert store.damages.count == 1
    store.close()


def test_it_is_kept_aside_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(tmp_path)
    at = log_offset_of(store, 4)
    flip(store, at)
    damaged = store.log.record(at)

    for _ in range(3):
        bodies_of(store, "T", 0)

    assert (tmp_path / "pocketmq/broken" / f"log-{at:020d}").read_bytes() == damaged
    [said] = [one.args for one in caplog.records if "damaged record found" in one.message]
    assert isinstance(said, dict)
    assert (said["topic"], said["queue"], said["queue_offset"]) == ("T", 0, 4)
    assert said["log_offset"] == at
    store.close()


def test_its_place_is_one_that_nobody_delivers(tmp_path: Path) -> None:
    """Apache's broker believes queue entries: the one of a damaged record points to a neighbour."""
    store = filled(tmp_path)
    at = log_offset_of(store, 4)
    flip(store, at)
    bodies_of(store, "T", 0)

    left = decode_record(store.log.record(at) or b"")

    assert left.sys_flag & SYS_TRANSACTION == SYS_ROLLBACK
    assert left.crc_ok
    assert log_offset_of(store, 4) == log_offset_of(store, 5)
    store.close()


@pytest.mark.parametrize("ending", ["stop", "kill", "kill, everything read"])
@pytest.mark.parametrize("number", [0, 4, 9])
def test_what_was_set_aside_stays_so_and_the_rest_keeps_its_numbers(
    tmp_path: Path, ending: str, number: int
) -> None:
    store = filled(tmp_path / "store")
    flip(store, log_offset_of(store, number))
    bodies_of(store, "T", 0)
    if ending == "stop":
        store.close()
    shutil.copytree(tmp_path / "store", tmp_path / "left")
    if "everything" in ending:
        (tmp_path / "left/pocketmq/verified.json").unlink(missing_ok=True)
    store.close()

    again = open_store(tmp_path / "left")

    assert [one.body for one in records_of(again, "T", 0)] == wanted_without(number)
    offsets = [one.queue_offset for one in records_of(again, "T", 0)]
    assert offsets == [one for one in range(10) if one != number]
    assert len(bodies_of(again, "U", 0)) == 10
    again.append(make_run("T", 0, [b"next"]))
    assert records_of(again, "T", 0)[-1].queue_offset == 10
    again.close()


@pytest.mark.parametrize("checked", [True, False])
def test_after_a_clean_stop_it_is_found_when_it_is_read(tmp_path: Path, checked: bool) -> None:
    store = filled(tmp_path)
    at = log_offset_of(store, 4)
    store.close()
    flip_stopped(tmp_path, at, BODY_AT + 3)

    again = open_store(tmp_path)

    assert again.recovery.scanned_records == 0
    seen = again.read_queue("T", 0, 0, 100, 1 << 20, check_crcs=checked)
    assert (len(seen), seen.lost) == ((9, 1) if checked else (10, 0))
    again.close()


def test_after_a_kill_with_verification_past_it_is_found_when_it_is_read(tmp_path: Path) -> None:
    clock = Hand()
    store = filled(tmp_path / "store", now_ms=clock)
    at = log_offset_of(store, 4)
    for step_ms in (0, _MINUTE_MS, 1_000):
        clock.now_ms += step_ms
        store.tick()
    shutil.copytree(tmp_path / "store", tmp_path / "left")
    flip_stopped(tmp_path / "left", at, BODY_AT + 3)

    again = open_store(tmp_path / "left", now_ms=clock)

    assert again.recovery.scanned_records == 0
    assert not again.recovery.clean
    assert bodies_of(again, "T", 0) == wanted_without(4)
    again.close()
    store.close()


@pytest.mark.parametrize("chosen", [False, True])
def test_readers_hear_how_many_they_step_over(tmp_path: Path, chosen: bool) -> None:
    store = filled(tmp_path)
    flip(store, log_offset_of(store, 4))
    flip(store, log_offset_of(store, 5))

    def read(offset: int) -> Slices:
        choose = (lambda codes: codes == codes) if chosen else None
        return store.read_queue("T", 0, offset, 100, 1 << 20, choose)

    for _ in range(2):  # First they are found; then they are repetitions.
        assert (read(0).lost, read(4).lost, read(6).lost) == (2, 2, 0)
        assert read(0).next_offset == 10
    store.close()


def test_every_single_bit_of_a_record_that_the_crc_covers_is_noticed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    at = log_offset_of(store, 4)
    file = store.log.files.file_at(at)
    assert file is not None
    covered = [*range(BODY_AT, BODY_AT + 9), 9, 10, 11]
    for place in covered:
        for bit in range(8):
            whole = store.log.record(at) or b""
            file.put(at - file.start + place, bytes((whole[place] ^ 1 << bit,)))
            assert store.read_at(at) is None
            file.put(at - file.start, whole)
    assert store.read_at(at) is not None
    store.close()


def test_a_store_opened_for_reading_leaves_it_out_and_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    at = log_offset_of(store, 4)
    store.close()
    flip_stopped(tmp_path, at, BODY_AT + 3)
    seen = MessageStore.open(store.config, disk=store.disk, now_ms=Hand(), read_only=True)

    assert bodies_of(seen, "T", 0) == wanted_without(4)
    assert bodies_of(seen, "T", 0) == wanted_without(4)
    assert seen.damages.count == 1
    assert not (tmp_path / "pocketmq/broken").exists()


def test_a_record_whose_lengths_disagree_is_left_out_and_kept_aside(tmp_path: Path) -> None:
    store = filled(tmp_path)
    at = log_offset_of(store, 4)
    flip(store, at, 84)

    assert bodies_of(store, "T", 0) == wanted_without(4)
    assert store.read_at(at) is None
    assert (tmp_path / "pocketmq/broken" / f"log-{at:020d}").exists()
    store.close()
