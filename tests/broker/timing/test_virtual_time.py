"""The store's mark of a virtual clock, and the calls that tell and move the time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.timing.virtual_mark import begin, check_clock, keep_mark
from pocketmq.broker.timing.virtual_time import advance, methods
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.errors import InvalidArgument, StoreFull, StoreMismatch, Unsupported
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.checkpoints import CHECKPOINT_SIZE, Checkpoint
from pocketmq.store.config import StoreConfig
from pocketmq.store.os_disk import OsDisk

from ...fakes import FaultyDisk

HOUR_MS = 3_600_000
NOW_MS = 1_760_000_000_000


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    folder = tmp_path / "store"
    folder.mkdir()
    return StoreConfig(path=str(folder))


def mark_of(config: StoreConfig) -> Any:
    file = Path(config.path) / "pocketmq" / "clock.json"
    return json.loads(file.read_text()) if file.exists() else None


def write_mark(config: StoreConfig, text: str) -> None:
    file = Path(config.path) / "pocketmq" / "clock.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def write_newest(config: StoreConfig, newest_ms: int) -> None:
    data = Checkpoint(log_time_ms=newest_ms).pack().ljust(CHECKPOINT_SIZE, b"\0")
    Path(config.checkpoint_path).write_bytes(data)


# ---------------------------------------------------------------- where time begins


@pytest.mark.parametrize(
    ("mark", "newest_ms", "start_ms"),
    [
        (None, 0, NOW_MS),
        (None, NOW_MS - 5, NOW_MS),
        (None, NOW_MS + 5, NOW_MS + 5),
        (NOW_MS - HOUR_MS, 0, NOW_MS - HOUR_MS),
        (NOW_MS + HOUR_MS, NOW_MS, NOW_MS + HOUR_MS),
        (NOW_MS - HOUR_MS, NOW_MS - 3, NOW_MS - 3),
    ],
    ids=["new", "older", "of the future", "stood back", "stood ahead", "newer than the mark"],
)
def test_virtual_time_goes_on_where_it_stood_and_never_before_the_newest_message(
    config: StoreConfig, mark: int | None, newest_ms: int, start_ms: int
) -> None:
    if mark is not None:
        write_mark(config, json.dumps({"clock": "virtual", "now_ms": mark}))
    write_newest(config, newest_ms)

    assert check_clock(OsDisk(), config, virtual=True, now_ms=NOW_MS) == start_ms


def test_the_system_clock_opens_a_store_without_a_mark(config: StoreConfig) -> None:
    write_newest(config, NOW_MS + 5)

    assert check_clock(OsDisk(), config, virtual=False, now_ms=NOW_MS) == NOW_MS
    assert check_clock(OsDisk(), config, virtual=False, now_ms=NOW_MS, force=True) == NOW_MS


def test_the_system_clock_refuses_a_marked_store_unless_forced(config: StoreConfig) -> None:
    write_mark(config, '{"clock":"virtual","now_ms":1760000000000}')

    with pytest.raises(StoreMismatch) as refused:
        check_clock(OsDisk(), config, virtual=False, now_ms=NOW_MS)

    for word in ("2025-10-09 08:53:20.000Z", "--clock virtual", "--force-clock", config.path):
        assert word in refused.value.message
    assert mark_of(config) is not None

    assert check_clock(OsDisk(), config, virtual=False, now_ms=NOW_MS, force=True) == NOW_MS
    assert mark_of(config) is None
    assert check_clock(OsDisk(), config, virtual=False, now_ms=NOW_MS) == NOW_MS


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"now_ms":"x"}', '{"now_ms":-1}', "\x00\x00"]
)
def test_a_mark_that_cannot_be_read_is_a_mark(config: StoreConfig, text: str) -> None:
    write_mark(config, text)
    write_newest(config, 1234)

    with pytest.raises(StoreMismatch, match="unknown time"):
        check_clock(OsDisk(), config, virtual=False, now_ms=NOW_MS)
    assert check_clock(OsDisk(), config, virtual=True, now_ms=NOW_MS) == 1234


def test_a_mark_of_a_far_future_is_told_all_the_same(config: StoreConfig) -> None:
    write_mark(config, '{"clock":"virtual","now_ms":999999999999999999}')

    with pytest.raises(StoreMismatch, match="at 999999999999999999 ms"):
        check_clock(OsDisk(), config, virtual=False, now_ms=NOW_MS)


# ---------------------------------------------------------------- while a broker runs


async def test_the_mark_is_ahead_of_every_move_and_stays_after_the_stop(
    config: StoreConfig,
) -> None:
    clock = VirtualClock(NOW_MS)
    mark = keep_mark(clock, OsDisk(), config)
    assert mark_of(config) == {"clock": "virtual", "now_ms": NOW_MS}
    seen: list[int] = []

    async def look() -> None:
        await clock.sleep_until(NOW_MS + 10)
        seen.append(mark_of(config)["now_ms"])

    looking = asyncio.create_task(look())
    await clock.advance(HOUR_MS)
    await looking
    assert seen == [NOW_MS + HOUR_MS]

    mark.close()
    mark.close()
    await clock.advance(HOUR_MS)
    assert mark_of(config) == {"clock": "virtual", "now_ms": NOW_MS + HOUR_MS}


async def test_a_clock_begins_where_the_store_stood(config: StoreConfig) -> None:
    clock = VirtualClock(NOW_MS)
    mark = keep_mark(clock, OsDisk(), config)
    await clock.advance(HOUR_MS)
    mark.close()
    behind, ahead = VirtualClock(5), VirtualClock(NOW_MS + 2 * HOUR_MS)

    begin(behind, OsDisk(), config)
    begin(ahead, OsDisk(), config)

    assert behind.now_ms() == NOW_MS + HOUR_MS
    assert ahead.now_ms() == NOW_MS + 2 * HOUR_MS
    with pytest.raises(StoreMismatch):
        begin(SystemClock(), OsDisk(), config)


def test_the_system_clock_leaves_no_mark(config: StoreConfig) -> None:
    clock = SystemClock()
    begin(clock, OsDisk(), config)
    mark = keep_mark(clock, OsDisk(), config)
    mark.close()

    assert mark_of(config) is None


async def test_a_full_disk_does_not_stop_time(
    config: StoreConfig, caplog: pytest.LogCaptureFixture
) -> None:
    clock, disk = VirtualClock(NOW_MS), FaultyDisk()
    mark = keep_mark(clock, disk, config)
    disk.fail_write = lambda path, size: StoreFull("no room")

    await clock.advance(HOUR_MS)
    mark.close()

    assert clock.now_ms() == NOW_MS + HOUR_MS
    assert caplog.text.count("not written reason=no room") == 2
    with pytest.raises(StoreFull):
        keep_mark(clock, disk, config)
    assert mark_of(config) == {"clock": "virtual", "now_ms": NOW_MS}


# ---------------------------------------------------------------- the calls


async def test_time_is_told_and_moved() -> None:
    clock = VirtualClock(NOW_MS)
    table = methods(clock)
    now, move = (table[f"/pocketmq.v1.Broker/{name}"].handler for name in ("Now", "AdvanceClock"))

    assert now(pb.ClockRequest(), None) == pb.ClockReply(now_ms=NOW_MS, virtual=True)
    moved = await move(pb.AdvanceClockRequest(by_ms=250), None)
    assert moved == pb.ClockReply(now_ms=NOW_MS + 250, virtual=True)
    assert await advance(clock, "1h30m") == NOW_MS + 250 + 5_400_000
    assert await advance(clock, 1) == NOW_MS + 251 + 5_400_000


@pytest.mark.parametrize("by", [-1, 10**15, "soon", "-1s"])
async def test_a_bad_step_moves_nothing(by: int | str) -> None:
    clock = VirtualClock(NOW_MS)

    with pytest.raises(InvalidArgument):
        await advance(clock, by)

    assert clock.now_ms() == NOW_MS


async def test_the_machine_s_clock_is_told_and_not_moved() -> None:
    clock = SystemClock()
    before = clock.now_ms()
    reply = methods(clock)["/pocketmq.v1.Broker/Now"].handler(pb.ClockRequest(), None)

    assert before <= reply.now_ms <= clock.now_ms()
    assert not reply.virtual
    with pytest.raises(Unsupported, match="start it with --clock virtual"):
        await advance(clock, 1)


async def test_a_caller_who_gives_up_does_not_stop_the_move() -> None:
    clock = VirtualClock(NOW_MS)
    clock.hold()
    asking = asyncio.create_task(advance(clock, HOUR_MS))
    for _ in range(100):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait((asking,))
    clock.release()

    await clock.advance(0)

    assert clock.now_ms() == NOW_MS + HOUR_MS
