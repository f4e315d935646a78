"""Reading and handing on timed messages, and what of it the checkpoint says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from pocketmq.store.format.timer_log import RECORD_SIZE
from pocketmq.store.format.timer_wheel import SLOTS

from ..fakes import FaultyDisk
from ..runs import Hand
from ..timed import (
    DAY,
    NOW,
    SECOND,
    Message,
    keys_of,
    messages,
    names,
    opened,
    put,
    read_slot,
    waiting,
)


def test_no_files_without_timed_messages(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    assert (store.timers.next_slot(0), store.timers.pending) == (None, 0)
    store.timers.delivered_up_to(NOW + 5 * SECOND)
    store.tick()
    store.close()

    assert not (tmp_path / "store" / "timerwheel").exists()
    assert not (tmp_path / "store" / "timerlog").exists()
    assert not (tmp_path / "store" / "config" / "timercheck").exists()


# ---- reading slots


@pytest.mark.parametrize("page", [1, 7, 1000])
@pytest.mark.parametrize("others", [0, 3, 40])
def test_a_slot_is_read_in_pages_oldest_first(page: int, others: int, tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    mine: list[str] = []
    for part in range(6):
        mine += names(5, 5 * part)
        put(store, NOW, [Message(name, NOW + 5 * SECOND) for name in mine[-5:]])
        put(store, NOW, messages(others, NOW + 9 * SECOND, f"other{part}-"))

    assert keys_of(store, NOW + 5 * SECOND, page=page) == mine
    assert store.timers.count(NOW + 5 * SECOND) == 30
    assert store.timers.count(NOW + 4 * SECOND) == 0
    assert keys_of(store, NOW + 4 * SECOND, page=page) == []
    store.close()


def test_what_was_entered_while_a_slot_was_read_is_read_after_it(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    put(store, NOW, messages(30, NOW))
    slot = store.timers.slot(NOW)
    assert not slot.read(5)

    put(store, NOW, messages(25, NOW, "late"))
    while not slot.read(5):
        pass
    more = store.timers.slot(NOW, after=slot.last)
    while not more.read(5):
        pass

    assert len(slot.records()) == 30
    assert len(more.records()) == 25
    assert more.records().positions[0] > slot.last
    again = store.timers.slot(NOW, after=more.last)
    assert again.complete
    assert len(again.records()) == 0
    store.close()


@pytest.mark.parametrize("link", [-7, 1 << 40, 52 * 60, 51, 52 * 15])
def test_a_link_that_leads_nowhere_ends_the_chain(link: int, tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    put(store, NOW, messages(30, NOW))
    file = store.timers.log.files.files[0]
    file.put(52 * 15 + 4, struct.pack(">q", link))

    assert keys_of(store, NOW)[-15:] == names(15, 15)
    store.close()


def test_the_next_slot_is_found_around_the_wheel(tmp_path: Path) -> None:
    base = (
        NOW // SECOND // SLOTS * SLOTS + SLOTS - 5
    ) * SECOND  # Five slots before the wheel's end.
    store = opened(tmp_path / "store", Hand(base))
    outs = [base + ahead * SECOND for ahead in (2, 4, 5, 7, 1000)]
    put(store, base, [Message(str(out), out) for out in outs])

    found, at = [], store.timers.next_slot(0)
    while at is not None:
        found.append(at)
        at = store.timers.next_slot(at + 1)

    assert found == outs
    store.timers.delivered_up_to(outs[3])
    assert store.timers.next_slot(0) == outs[3]
    assert store.timers.pending == 2
    store.close()


# ---- handing on


def test_after_a_clean_stop_amid_a_slot_exactly_the_rest_is_left(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    put(store, NOW, messages(2, NOW + SECOND, "first"))
    put(store, NOW, messages(50, NOW + 5 * SECOND))
    put(store, NOW, messages(3, NOW + 9 * SECOND, "later"))
    store.timers.delivered_up_to(NOW + 5 * SECOND)
    slot = read_slot(store, NOW + 5 * SECOND)

    store.timers.replace_slot(NOW + 5 * SECOND, slot.records().positions[20:])
    left = {NOW + 5 * SECOND: names(30, 20), NOW + 9 * SECOND: names(3, name="later")}
    assert waiting(store) == left
    assert store.timers.pending == 33
    store.close()

    for clean in (True, False):
        store = opened(path)
        assert waiting(store) == left
        assert store.timers.pending == 33
        assert store.timers.queue_offset == 55
        assert store.timers.read_ms == NOW + 5 * SECOND
        store.close() if clean else store._close_files()
    store = opened(path)
    store.timers.replace_slot(NOW + 5 * SECOND, np.empty(0, np.int64))
    assert waiting(store) == {NOW + 9 * SECOND: names(3, name="later")}
    assert store.timers.read_ms == NOW + 6 * SECOND
    store.close()


def test_recalls_take_one_off_the_count(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    put(store, NOW, [*messages(3, NOW + SECOND), Message("r", NOW + SECOND, deletes="m1")])

    assert store.timers.count(NOW + SECOND) == 2
    assert keys_of(store, NOW + SECOND) == ["m0", "m1", "m2", "-r"]
    store.close()


# ---- the checkpoint


def test_the_checkpoint_says_only_what_is_on_the_device(tmp_path: Path) -> None:
    clock = Hand(NOW)
    store = opened(tmp_path / "store", clock)
    callers: list[object] = []
    store.start(callers.append)
    put(store, NOW, messages(4, NOW + SECOND))
    for _ in range(3):
        clock.now_ms += SECOND
        store.tick()
    assert store.timers.take_parts(0) == []
    assert store.timers.checkpoint.written.log_flushed == 0

    end = store.max_log_offset
    assert store.timers.take_parts(end - 1) == []
    parts = store.timers.take_parts(end)
    assert parts[-2] is store.timers.ring
    for part in parts:
        part.sync()

    written = store.timers.checkpoint.written
    assert (written.log_flushed, written.queue_offset) == (4 * RECORD_SIZE, 4)
    store._background.stop()
    store._close_files()


def test_passing_time_alone_is_written_once_a_minute(tmp_path: Path) -> None:
    clock = Hand(NOW)
    store = opened(tmp_path / "store", clock)
    put(store, NOW, messages(1, NOW + 2 * SECOND))
    written = []
    for _ in range(150):
        clock.now_ms += SECOND
        store.timers.delivered_up_to(clock.now_ms)
        store.tick()
        written.append(store.timers.checkpoint.written.last_read_ms)

    assert len(set(written)) < 8
    assert clock.now_ms - written[-1] <= 62 * SECOND
    assert written[5] >= NOW + 3 * SECOND
    store.close()


# ---- growing old


def test_log_files_of_deleted_messages_go(tmp_path: Path) -> None:
    disk = FaultyDisk()
    clock = Hand(NOW)
    store = opened(tmp_path / "store", clock, disk=disk, retention_ms=1000, clean_files_max=3)
    put(store, NOW, messages(100, NOW + 5 * SECOND))
    files = len(store.timers.log.files.files)
    disk.used_percent = 88  # So full that nothing keeps a file.
    for file in store.log.files.files:
        disk.modified[file.path] = NOW - DAY

    cleaned = store.clean()

    offsets = store.timers.log.file_rows(store.timers.log.files.files[0])["log_offset"]
    assert 0 < cleaned.timer_files < files
    assert int(offsets[-1]) >= store.min_log_offset
    slot = read_slot(store, NOW + 5 * SECOND, page=7)
    assert slot.records().positions[0] == store.timers.log.min_offset
    store.close()
