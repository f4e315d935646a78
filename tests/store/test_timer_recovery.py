"""Opening a store with timed messages: after a kill, and with parts of what Apache and we keep missing or damaged."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.format.timer_log import RECORD_SIZE
from pocketmq.store.format.timer_wheel import SLOT_SIZE, SLOTS, WHEEL_SIZE
from pocketmq.store.message_store import MessageStore

from ..fakes import FaultyDisk
from ..runs import Hand
from ..timed import (
    DAY,
    NOW,
    SECOND,
    Message,
    batch_at,
    enter_all,
    keys_of,
    messages,
    names,
    opened,
    put,
    read_slot,
    send,
    waiting,
)

pytestmark = pytest.mark.slow


def filled(path: Path) -> tuple[MessageStore, dict[int, list[str]]]:
    """Return a store where three slots wait and one was handed on, and what waits."""
    store = opened(path)
    put(store, NOW, messages(5, NOW + SECOND, "gone"))
    for part in range(4):
        put(store, NOW, messages(15, NOW + 20 * SECOND, f"a{part}-"))
        put(store, NOW, messages(7, NOW + 30 * SECOND, f"b{part}-"))
    put(store, NOW, [Message("recall", NOW + 30 * SECOND, deletes="b0-1")])
    put(store, NOW, messages(2, NOW + 3 * DAY, "c"))
    store.timers.delivered_up_to(NOW + 20 * SECOND)
    return store, waiting(store)


def counts(store: MessageStore) -> dict[int, int]:
    return {slot: store.timers.count(slot) for slot in waiting(store)}


WHEEL, CHECK = "timerwheel", "config/timercheck"


def remove(path: Path, *parts: str) -> None:
    for part in parts:
        if part == "timerlog":
            for file in (path / part).iterdir():
                file.unlink()
        else:
            (path / part).unlink()


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_everything_is_found_again(noted: bool, clean: bool, tmp_path: Path) -> None:
    store, left = filled(tmp_path / "store")
    numbers = counts(store)
    if noted:
        store.flush()
    put(store, NOW, messages(30, NOW + 40 * SECOND, "late"))
    left[NOW + 40 * SECOND] = names(30, name="late")
    numbers[NOW + 40 * SECOND] = 30
    pending = store.timers.pending
    store.close() if clean else store._close_files()

    again = opened(tmp_path / "store")

    found = waiting(again)
    if not noted and not clean:  # What was handed on was written down nowhere.
        assert found.pop(NOW + SECOND) == names(5, name="gone")
        pending += 5
    assert found == left
    assert {slot: again.timers.count(slot) for slot in left} == numbers
    assert again.timers.pending == pending
    assert again.timers.queue_offset == again.queue_bounds(TIMER_TOPIC, 0)[1]
    again.close()


@pytest.mark.parametrize("short", [None, 0, 4096, WHEEL_SIZE + 4096])
def test_a_wheel_that_is_missing_or_of_a_wrong_length_is_made_from_the_log(
    short: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    numbers, pending = counts(store), store.timers.pending
    store.close()
    if short is None:
        remove(path, WHEEL)
    else:
        os.truncate(path / WHEEL, short)

    for clean in (False, True):
        again = opened(path)
        assert waiting(again) == left
        assert counts(again) == numbers
        assert again.timers.pending == pending
        assert (path / WHEEL).stat().st_size == WHEEL_SIZE
        again.close() if clean else again._close_files()


@pytest.mark.parametrize("lost", [("timerlog",), ("timerlog", WHEEL)])
def test_a_lost_log_is_made_from_the_topic(lost: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.close()
    remove(path, *lost)

    again = opened(path)

    assert waiting(again) == left
    assert again.timers.read_ms == NOW + 20 * SECOND
    again.close()
    third = opened(path)
    assert waiting(third) == left
    third.close()


def test_a_log_that_lost_some_of_its_end_is_made_from_the_topic(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.close()
    (path / "timerlog" / f"{3312:020d}").write_bytes(bytes(1104))
    (path / "abort").write_bytes(b"1")

    again = opened(path)

    assert {slot: sorted(keys) for slot, keys in waiting(again).items()} == {
        slot: sorted(keys) for slot, keys in left.items()
    }
    again.close()


def test_what_was_rolled_is_made_again_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path, timer_roll_window_slots=60)
    far = NOW + 100 * SECOND
    put(store, NOW, [Message("far", far), Message("further", far + 7 * SECOND)])
    put(store, NOW + 60 * SECOND, [Message("far", far, rolls=1)])
    store.timers.delivered_up_to(NOW + 61 * SECOND)
    store.close()
    remove(path, "timerlog")

    again = opened(path, Hand(NOW + 61 * SECOND))

    assert waiting(again) == {far: ["far"], far + 7 * SECOND: ["further"]}
    assert again.timers.pending == 2
    again.close()


def test_an_interruption_of_that_begins_it_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.close()
    remove(path, "timerlog")
    disk = FaultyDisk()
    disk.fail_write = lambda name, size: _Stop() if name.endswith(f"{2208:020d}") else None  # type: ignore[assignment, return-value]
    with pytest.raises(_Stop):
        opened(path, disk=disk)
    assert (path / "pocketmq" / "timers-rebuilding").exists()

    again = opened(path)

    assert waiting(again) == left
    assert not (path / "pocketmq" / "timers-rebuilding").exists()
    again.close()


class _Stop(BaseException):
    pass


def test_without_a_checkpoint_all_of_the_last_week_waits(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.close()
    remove(path, CHECK)

    again = opened(path, Hand(NOW + 60 * SECOND))

    assert waiting(again) == {NOW + SECOND: names(5, name="gone")} | left
    assert again.timers.queue_offset == again.queue_bounds(TIMER_TOPIC, 0)[1]
    again.close()


def test_a_checkpoint_of_the_future_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.timers.delivered_up_to(NOW + 30 * DAY)
    store.close()

    again = opened(path)

    assert waiting(again) == {NOW + SECOND: names(5, name="gone")} | left
    again.close()


def test_a_clock_that_was_set_back_files_under_the_oldest_slot(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    store.timers.delivered_up_to(NOW)
    put(store, NOW - 40 * DAY, messages(2, NOW - 40 * DAY))
    put(store, NOW - 40 * DAY, messages(30, NOW - 40 * DAY, "n"))

    assert waiting(store) == {NOW: names(2) + names(30, name="n")}
    store.close()


def test_without_anything_the_topic_is_read_from_its_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.close()
    remove(path, "timerlog", WHEEL, CHECK)

    again = opened(path, Hand(NOW + 10 * SECOND))

    assert "all scheduled messages are delivered again" in caplog.text
    assert again.timers.queue_offset == 0
    enter_all(again, NOW + 10 * SECOND)
    rolling = NOW + 2 * DAY
    left[rolling + 10 * SECOND] = left.pop(rolling)
    assert waiting(again) == {NOW + 10 * SECOND: names(5, name="gone")} | left
    again.close()


def test_slots_are_found_however_long_the_broker_was_down(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.close()

    clock = Hand(NOW + 200 * DAY)
    again = opened(path, clock)

    assert waiting(again) == left
    again.timers.delivered_up_to(clock.now_ms)
    put(again, clock.now_ms, [Message("new", clock.now_ms + SECOND)])
    assert waiting(again) == {clock.now_ms + SECOND: ["new"]}
    again.close()


@pytest.mark.parametrize("keep", [4, 27, 28, 36, 39, 40])
def test_a_torn_last_record_is_entered_again(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.flush()
    put(store, NOW, messages(3, NOW + 40 * SECOND, "late"))
    last = store.timers.slot(NOW + 40 * SECOND).last
    file = store.timers.log.files.file_at(last)
    assert file is not None
    file.put(last - file.start + keep, bytes(RECORD_SIZE - keep))
    store._close_files()

    again = opened(path)
    if keep < 16:  # Without its bits it is no record at all.
        assert again.timers.log.max_offset == last
    enter_all(again, NOW)

    assert waiting(again) == left | {NOW + 40 * SECOND: names(3, name="late")}
    again.close()


def test_records_of_messages_that_the_log_lost_go(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.flush()
    end = store.max_log_offset
    put(store, NOW, messages(3, NOW + 20 * SECOND, "late"))
    store._close_files()
    for file in sorted((path / "commitlog").iterdir()):
        start = int(file.name)
        keep = min(max(end - start, 0), file.stat().st_size)
        data = file.read_bytes()
        file.write_bytes(data[:keep] + bytes(len(data) - keep))

    again = opened(path)

    assert waiting(again) == left
    assert again.timers.queue_offset == again.queue_bounds(TIMER_TOPIC, 0)[1]
    put(again, NOW, messages(3, NOW + 20 * SECOND, "new"))
    assert keys_of(again, NOW + 20 * SECOND)[-3:] == names(3, name="new")
    assert waiting(again)[NOW + 30 * SECOND] == left[NOW + 30 * SECOND]
    again.close()


def test_slots_that_point_beyond_the_log_are_repaired(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    numbers = counts(store)
    store.close()
    with open(path / WHEEL, "r+b") as file:
        for slot_ms, fields in (
            (NOW + 20 * SECOND, (0, 1 << 40, 99)),
            (NOW + 30 * SECOND, (1 << 40, 1 << 40, 99)),
        ):
            file.seek(slot_ms // SECOND % SLOTS * SLOT_SIZE + 8)
            file.write(struct.pack(">qqi", *fields))

    again = opened(path)

    assert waiting(again) == left
    assert counts(again) == numbers
    again.close()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_stop_amid_a_slot_that_is_cut_short_leaves_the_old_chain_or_the_new(
    sealed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    store.flush()
    slot = read_slot(store, NOW + 20 * SECOND)
    begin = store.timers.log.max_offset
    store.timers.replace_slot(NOW + 20 * SECOND, slot.records().positions[30:])
    # The first record is written last: without it, nothing behind it counts.
    files = store.timers.log.files
    if not sealed:
        place = store.timers.slot(NOW + 20 * SECOND).first
        first = files.file_at(place)
        assert first is not None
        first.put(place - first.start, bytes(RECORD_SIZE))
    store._close_files()

    again = opened(path)

    kept = left[NOW + 20 * SECOND] if not sealed else left[NOW + 20 * SECOND][30:]
    assert waiting(again) == left | {NOW + 20 * SECOND: kept}
    assert again.timers.queue_offset == again.queue_bounds(TIMER_TOPIC, 0)[1]
    assert (again.timers.log.max_offset > begin) == sealed
    again.close()


def test_messages_that_were_appended_but_not_entered_are_left_to_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store, left = filled(path)
    send(store, messages(4, NOW + 40 * SECOND, "new"))
    offset = store.timers.queue_offset
    store._close_files()

    again = opened(path)

    assert again.timers.queue_offset == offset
    enter_all(again, NOW)
    assert waiting(again)[NOW + 40 * SECOND] == names(4, name="new")
    assert waiting(again)[NOW + 20 * SECOND] == left[NOW + 20 * SECOND]
    again.close()


def test_an_entry_without_records_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    put(store, NOW, messages(2, NOW + SECOND))
    send(store, messages(3, NOW + SECOND, "bad"))
    batch = batch_at(store, 2, 3).take(np.zeros(3, np.bool_))
    store.timers.enqueue(batch, NOW)
    assert store.timers.queue_offset == 5
    store.close()

    again = opened(path)
    assert again.timers.queue_offset == 5
    assert waiting(again) == {NOW + SECOND: names(2)}
    again.close()
