"""Entering, reading and handing on timed messages, and the bytes that Apache makes of the same."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketmq.proto.errors import DiskFailure, StoreClosed, StoreFull
from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.timers.entry import Filing, TimerBatch
from pocketmq.store.timers.log import RECORD_SIZE
from pocketmq.store.timers.store import TimerStore
from pocketmq.store.timers.wheel import SLOTS
from pocketmq.tools.stores.our_reading import store_config

from ..fakes import FaultyDisk
from ..recorded import expected, recorded_store
from ..recorded import settings as recorded_settings
from ..runs import Hand, open_store
from ..timed import Message, batch_at, enter, keys_of, put, send, waiting

NOW = 1_700_000_000_000
SECOND = 1000
DAY = 86_400_000


def opened(path: Path, clock: Hand | None = None, **changes: Any) -> MessageStore:
    return open_store(path, now_ms=clock or Hand(NOW), timer_log_file_size_bytes=1104, **changes)


def messages(count: int, out_ms: int, name: str = "m") -> list[Message]:
    return [Message(f"{name}{number}", out_ms) for number in range(count)]


def names(count: int, begin: int = 0, name: str = "m") -> list[str]:
    return [f"{name}{number}" for number in range(begin, begin + count)]


# ---- the bytes


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize("name", ["delays", "consumption"])
def test_the_same_messages_come_to_the_bytes_of_apache(
    name: str, at_once: int, tmp_path: Path
) -> None:
    source = recorded_store(name, tmp_path / "store")
    log, wheel, check = (
        source / "timerlog" / f"{0:020d}",
        source / "timerwheel",
        source / "config" / "timercheck",
    )
    records = expected(name)["timer"]["log"]
    used = (len(records) + 10) * RECORD_SIZE
    wanted_log, wanted_wheel = head_of(log, used), wheel.read_bytes()
    for path in (log, wheel, check):
        path.unlink()
    write_times = {one["physicalOffset"]: one["writeTimeMs"] for one in records}
    config = store_config(str(source), ApacheSettings.of(recorded_settings(name)))
    clock = Hand(min(write_times.values()))
    store = MessageStore.open(config, disk=OsDisk(), now_ms=clock)

    offset, end = store.queue_bounds(TIMER_TOPIC, 0)
    whole = batch_at(store, offset, 10_000)
    assert whole.next_queue_offset == end
    # What Apache's log does not hold was due already, and handed on at once.
    logged = whole.take(np.isin(whole.log_offsets, list(write_times)))
    for write_ms, batch in same_times(logged, write_times, at_once):
        store.timers.enqueue(batch, write_ms)
    store.timers.queue_offset = end
    store.close()

    assert head_of(log, used) == wanted_log
    assert wheel.read_bytes() == wanted_wheel
    place = len(records) * RECORD_SIZE
    assert struct.unpack_from(">3q", check.read_bytes(), 8) == (place, end, end)


def head_of(path: Path, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def same_times(
    batch: TimerBatch, write_times: dict[int, int], most: int
) -> Iterator[tuple[int, TimerBatch]]:
    """Yield parts of BATCH of at most MOST messages that were entered in one unit of time."""
    times = [write_times[place] for place in batch.log_offsets.tolist()]
    begin = 0
    while begin < len(times):
        end = begin + 1
        while end < min(len(times), begin + most) and times[end] == times[begin]:
            end += 1
        rows = np.zeros(len(times), np.bool_)
        rows[begin:end] = True
        yield times[begin], batch.take(rows)
        begin = end


batches = st.lists(
    st.tuples(
        st.integers(-3 * DAY, 30 * DAY).map(lambda ahead: (NOW + ahead) // SECOND * SECOND),
        st.booleans(),
        st.integers(-(1 << 31), (1 << 31) - 1),
    ),
    min_size=1,
    max_size=60,
)


def made(rows: list[tuple[int, bool, int]], first: int) -> TimerBatch:
    return TimerBatch(
        log_offsets=np.arange(first, first + len(rows), dtype=np.int64) * 100,
        sizes=np.full(len(rows), 100, np.int32),
        out_ms=np.array([out for out, _, _ in rows], np.int64),
        deletes=np.array([deletes for _, deletes, _ in rows], np.bool_),
        topic_hashes=np.array([code for _, _, code in rows], np.int32),
        next_queue_offset=first + len(rows),
    )


@settings(max_examples=40)
@given(
    parts=st.lists(batches, min_size=1, max_size=3), window=st.sampled_from([2, 7, 3600, 172_800])
)
def test_one_by_one_and_all_at_once_come_to_the_same(
    parts: list[list[tuple[int, bool, int]]],
    window: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found = []
    for way in ("_enter_few", "_enter_many"):
        store = opened(tmp_path_factory.mktemp("way"), timer_roll_window_slots=window)
        timers = store.timers
        timers._prepare()
        first = 0
        for rows in parts:
            getattr(timers, way)(made(rows, first), NOW)
            first += len(rows)
        files = [bytes(file.view) for file in timers.log.files.files]
        found.append((files, slots_of(timers), timers.pending, timers.log.max_offset))
        store._close_files()
    assert found[0] == found[1]


def slots_of(timers: TimerStore) -> dict[int, tuple[int, int, int] | None]:
    times = timers.ring.pending_times().tolist()
    return {time: timers.ring.get(time) for time in times}


# ---- where a message is filed


@pytest.mark.parametrize(
    ("ahead", "filed", "rolls"),
    [
        (0, 0, False),
        (59, 59, False),
        (60, 30, True),
        (79, 30, True),
        (80, 60, True),
        (100_000, 60, True),
        (-1, 0, False),
        (-100_000, 0, False),
    ],
)
def test_far_messages_are_filed_on_the_way_and_overdue_ones_first(
    ahead: int, filed: int, rolls: bool, tmp_path: Path
) -> None:
    store = opened(tmp_path / "store", timer_roll_window_slots=60)

    put(store, NOW, [Message("m", NOW + ahead * SECOND)])

    slot = store.timers.slot(NOW + filed * SECOND)
    assert slot.read(10)
    [magic] = slot.records().magics.tolist()
    assert magic == (3 if rolls else 1)
    assert slot.records().due_ms.tolist() == [NOW + filed * SECOND]
    assert slot.records().write_ms.tolist() == [NOW]
    store.close()


def test_a_message_that_is_overdue_for_months_fits_a_record(tmp_path: Path) -> None:
    begin = NOW - 90 * DAY
    store = opened(tmp_path / "store", Hand(begin))
    store.timers.delivered_up_to(begin + 9 * SECOND)

    put(store, NOW, [Message("old", begin + 5 * SECOND)])
    put(store, NOW, messages(40, begin + 20 * SECOND))

    assert waiting(store) == {begin + 9 * SECOND: ["old"], begin + 20 * SECOND: names(40)}
    store.close()


def test_a_slot_that_the_wheel_has_no_place_for_must_wait(tmp_path: Path) -> None:
    clock = Hand(NOW)
    store = opened(tmp_path / "store", clock)
    put(store, NOW, [Message("first", NOW + SECOND)])
    turn = (SLOTS - 2) * SECOND
    put(store, NOW + turn, [Message("last", NOW + turn)])
    send(store, [Message("beyond", NOW + turn + SECOND), *messages(30, NOW + 2 * turn)])
    before = (store.timers.queue_offset, store.timers.log.max_offset, waiting(store))

    for most in (1, 31):
        with pytest.raises(StoreFull, match="wheel") as refused:
            enter(store, NOW + turn, most)
        assert refused.value.details["reason"] == "behind"

    assert (store.timers.queue_offset, store.timers.log.max_offset, waiting(store)) == before
    store.timers.delivered_up_to(NOW + 2 * SECOND)
    assert enter(store, NOW + turn, 1) == 1
    assert keys_of(store, NOW + turn + SECOND) == ["beyond"]
    store.close()


# ---- a full disk, a broken one, a closed or read-only store


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("torn", [0, 100])
def test_what_does_not_fit_the_disk_changes_nothing(count: int, torn: int, tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = opened(tmp_path / "store", disk=disk)
    put(store, NOW, messages(19, NOW + 5 * SECOND))
    send(store, messages(count, NOW + 5 * SECOND, "late"))
    before = (slots_of(store.timers), store.timers.log.max_offset, store.timers.queue_offset)
    disk.torn_write = torn

    disk.run_full("timerlog")
    with pytest.raises(StoreFull):
        enter(store, NOW)

    assert (
        slots_of(store.timers),
        store.timers.log.max_offset,
        store.timers.queue_offset,
    ) == before
    disk.heal()
    assert enter(store, NOW) == count
    assert keys_of(store, NOW + 5 * SECOND) == names(19) + names(count, name="late")
    store.close()


def test_a_full_disk_keeps_wheel_and_checkpoint_back(tmp_path: Path) -> None:
    disk, clock = FaultyDisk(), Hand(NOW)
    store = opened(tmp_path / "store", clock, disk=disk)
    put(store, NOW, messages(3, NOW + 5 * SECOND))
    disk.run_full("timerwheel")
    for _ in range(4):
        clock.now_ms += SECOND
        store.tick()
    assert store.health.state == "open"
    assert store.timers.checkpoint.written.log_flushed == 0

    disk.heal()
    for _ in range(3):
        clock.now_ms += SECOND
        store.tick()

    assert store.timers.checkpoint.written.log_flushed == 3 * RECORD_SIZE
    store.close()


def test_a_broken_disk_stops_the_store(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = opened(tmp_path / "store", disk=disk)
    send(store, messages(1, NOW))
    disk.break_writes("timerlog")

    with pytest.raises(DiskFailure):
        enter(store, NOW)

    assert store.health.state == "failed"
    with pytest.raises(DiskFailure, match="takes no more writes"):
        enter(store, NOW)
    store.close()


def test_a_store_that_is_only_looked_at_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    put(store, NOW, messages(50, NOW + 5 * SECOND))
    store._close_files()
    os.unlink(path / "timerwheel")
    before = contents(path)

    seen = MessageStore.open(replace(store.config), disk=OsDisk(), now_ms=Hand(NOW), read_only=True)

    assert waiting(seen) == {NOW + 5 * SECOND: names(50)}
    with pytest.raises(StoreClosed):
        put(seen, NOW, messages(1, NOW))
    seen.close()
    assert contents(path) == before


def contents(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


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
    slot = store.timers.slot(NOW + 5 * SECOND)
    while not slot.read(100):
        pass

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
    assert store.timers.take_parts(clock.now_ms, 0) == []
    assert store.timers.checkpoint.written.log_flushed == 0

    end = store.max_log_offset
    assert store.timers.take_parts(clock.now_ms, end - 1) == []
    parts = store.timers.take_parts(clock.now_ms, end)
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
    slot = store.timers.slot(NOW + 5 * SECOND)
    while not slot.read(7):
        pass
    assert slot.records().positions[0] == store.timers.log.min_offset
    store.close()


def test_a_filing_knows_no_clock() -> None:
    filing = Filing(1000, 60, NOW)
    assert filing.slot_of(NOW + 60_000, NOW) == (NOW + 30_000, 2)
