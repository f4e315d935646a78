"""The timer wheel and the timer log, held against what Apache's broker wrote."""

import struct
from pathlib import Path

import pytest

from pocketmq.store.format.timer_log import RECORD_SIZE, TimerBlank, TimerRecord, records
from pocketmq.store.format.timer_wheel import SLOT_SIZE, SLOTS, WHEEL_SIZE, Slot, TimerWheel

from ..recorded import expected, recorded_store


@pytest.mark.parametrize("name", ["delays", "consumption", "basic"])
def test_a_recorded_wheel_is_read(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    wheel = TimerWheel.parse(memoryview((store / "timerwheel").read_bytes()))

    wanted = {
        slot["index"]: (slot["timeMs"] // 1000, slot["firstPos"], slot["lastPos"], slot["num"])
        for slot in expected(name)["timer"]["slots"]
    }
    found = {n: (s.time, s.first, s.last, s.count) for n, s in wheel.slots.items()}
    assert found == wanted
    assert all(wheel.number_of(slot.time) == number for number, slot in wheel.slots.items())


@pytest.mark.parametrize("name", ["delays", "consumption"])
def test_a_recorded_timer_log_is_read(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    wanted = expected(name)["timer"]["log"]
    with open(store / "timerlog" / f"{0:020d}", "rb") as file:
        data = file.read(len(wanted) * RECORD_SIZE)

    found = list(records(memoryview(data), 0))

    assert all(isinstance(record, TimerRecord) and record.is_sound for record in found)
    assert [
        (record.position, record.previous, record.delay_ms, record.log_offset, record.topic_hash)
        for record in found
        if isinstance(record, TimerRecord)
    ] == [
        (one["pos"], one["prevPos"], one["delayMs"], one["physicalOffset"], one["topicHash"])
        for one in wanted
    ]


def test_a_blank_ends_a_file() -> None:
    record = struct.pack(">iqiqiqiiq", 52, -1, 1, 1000, 5, 77, 200, 3, 0)
    blank = struct.pack(">iqi", 148, 0, 0xCBD43194 - (1 << 32)).ljust(148, b"\0")

    found = list(records(memoryview(record + blank), 1000))

    assert found[0] == TimerRecord(1000, 52, -1, 1, 1000, 5, 77, 200, 3, 0)
    assert found[1:] == [TimerBlank(1052, 148)]


def test_a_slot_of_another_round_begins_anew() -> None:
    wheel = TimerWheel({5: Slot(5, 10, 20, 2, 0)})

    wheel.set_last(5 + SLOTS, 300)
    wheel.set_last(5 + SLOTS, 352)
    wheel.set_last(6, 404)

    assert wheel.slots[5] == Slot(5 + SLOTS, 300, 352, 2, 0)
    assert wheel.slots[6] == Slot(6, 404, 404)


def test_slots_that_point_beyond_the_log_are_found() -> None:
    wheel = TimerWheel(
        {7: Slot(SLOTS + 7, 52, 520, 1), 8: Slot(8, 0, 9999, 1), 9: Slot(SLOTS + 9, 104, 104)}
    )

    assert wheel.first_beyond(SLOTS + 1, 500) == 52
    assert wheel.first_beyond(SLOTS + 1, 600) is None


def test_every_used_slot_is_found() -> None:
    data = bytearray(WHEEL_SIZE)
    for number in (0, 1, 65_535, 65_536, SLOTS - 1):
        struct.pack_into(">qqqii", data, number * SLOT_SIZE, number + SLOTS, 1, 2, 3, 0)

    wheel = TimerWheel.parse(memoryview(data))

    assert sorted(wheel.slots) == [0, 1, 65_535, 65_536, SLOTS - 1]
