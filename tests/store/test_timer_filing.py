"""Where a timed message is filed in the wheel, and the bytes that Apache makes of the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pocketmq.proto.errors import StoreFull
from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.format.timer_log import RECORD_SIZE
from pocketmq.store.format.timer_wheel import SLOTS
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.timers.entry import TimerAppend, TimerBatch

from ..recorded import expected, recorded_store, settings as recorded_settings
from ..runs import Hand
from ..timed import (
    DAY,
    NOW,
    SECOND,
    Message,
    batch_at,
    enter,
    keys_of,
    messages,
    names,
    opened,
    put,
    send,
    slots_of,
    waiting,
)

pytestmark = pytest.mark.slow


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
    config = ApacheSettings.of(recorded_settings(name)).store_config(str(source))
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


def test_a_filing_knows_no_clock() -> None:
    filing = TimerAppend(1000, 60, NOW)
    assert filing.slot_of(NOW + 60_000, NOW) == (NOW + 30_000, 2)
