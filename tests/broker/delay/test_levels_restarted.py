"""Delay levels across stops, kills, power cuts and clocks that went back: nothing is lost, little comes twice."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from pocketmq.broker.delay.levels import CHUNK_MESSAGES
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.topics import SCHEDULE_TOPIC
from pocketmq.store.format.state_tables import DataVersion, DelayOffsets, render_delay_offsets

from ...fakes import Crash, RecordingDisk
from ...runs import bodies_of
from .leveling import HOUR_MS, START_MS, Leveling, offsets_in

pytestmark = pytest.mark.slow


async def test_after_a_clock_went_back_none_is_early_and_each_waits_from_when_it_came(
    tmp_path: Path,
) -> None:
    first = Leveling(tmp_path, VirtualClock(START_MS + 60_000))
    first.start()
    first.send(1, b"of the future")
    await first.stop()

    parts = Leveling(tmp_path, VirtualClock(START_MS))
    parts.start()
    # The store stamps all of these with START_MS + 60,000.
    parts.send(1, b"a")
    await parts.clock.advance(400)
    parts.send(1, b"b")
    parts.send(2, b"c")
    await parts.clock.advance(10_000)

    at = {body.decode(): instant_ms - START_MS for instant_ms, _, body in parts.arrived}
    assert at == {"of the future": 0, "a": 1_000, "b": 1_400, "c": 5_400}
    await parts.clock.advance(90_000)
    assert len(parts.arrived) == 4
    await parts.stop()


async def test_what_fell_due_meanwhile_comes_oldest_first_and_sends_go_on(tmp_path: Path) -> None:
    first = Leveling(tmp_path / "s")
    for number in range(40):
        first.send(3, *[b"%d" % (3 * number)] * 20)
        first.clock.start_at(first.clock.now_ms() + 5_100)
        first.send(2, *[b"%d" % (3 * number + 1)] * 20)
        first.clock.start_at(first.clock.now_ms() + 5_100)
    first.store.close()
    rig = Leveling(tmp_path / "s", VirtualClock(START_MS + HOUR_MS))
    assert rig.levels.waiting == 1600
    turns: list[int] = []

    async def somebody_else() -> None:
        while len(rig.arrived) < 1600:
            turns.append(len(rig.arrived))
            await asyncio.sleep(0)

    rig.timers.start()
    rig.levels.start()
    other = asyncio.create_task(somebody_else())
    await rig.clock.advance(0)
    await other

    dues = sorted(
        [START_MS + 10_200 * number + 10_000 for number in range(40)]
        + [START_MS + 10_200 * number + 10_100 for number in range(40)]
    )
    assert len(dues) == 80
    numbers = [int(body) for body in rig.bodies]
    assert numbers == sorted(numbers), "oldest first, whatever its level"
    steps = [after - before for before, after in pairwise(turns)]
    assert max(steps) <= CHUNK_MESSAGES, "the loop has its turns in between"
    await rig.stop()


async def test_after_a_clean_stop_nothing_comes_twice(tmp_path: Path) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a", b"b", b"c")
    rig.send(2, b"later")
    await rig.clock.advance(1_000)
    await rig.stop()
    assert offsets_in(tmp_path / "s") == {1: 3, 2: 0}

    rig = Leveling(tmp_path / "s", rig.clock)
    rig.start()
    await rig.clock.advance(HOUR_MS)

    assert rig.bodies == [b"later"]
    await rig.stop()
    assert offsets_in(tmp_path / "s") == {1: 3, 2: 1}


async def test_after_a_kill_only_what_came_since_the_last_save_comes_again(tmp_path: Path) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a")
    await rig.clock.advance(1_000)
    rig.progress.save()
    rig.store.tick()
    rig.send(1, b"b")
    await rig.clock.advance(1_000)
    rig.send(1, b"c")
    await rig.kill()
    shutil.copytree(tmp_path / "s", tmp_path / "killed")

    again = Leveling(tmp_path / "killed", rig.clock)
    again.start()
    await again.clock.advance(HOUR_MS)

    assert again.bodies == [b"b", b"c"]
    await again.stop()
    rig.store.close()


async def test_progress_is_written_only_once_the_copies_are_on_the_device(tmp_path: Path) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a")
    rig.store.tick()
    await rig.clock.advance(1_000)

    rig.progress.save()
    assert not (tmp_path / "s/config/delayOffset.json").exists()
    rig.send(1, b"b")
    rig.store.tick()

    assert offsets_in(tmp_path / "s") == {1: 1}
    before = (tmp_path / "s/config/delayOffset.json").stat().st_mtime_ns
    rig.progress.save()
    assert (tmp_path / "s/config/delayOffset.json").stat().st_mtime_ns == before, "nothing new"
    await rig.stop()


@pytest.mark.parametrize("seed", range(16))
def test_a_power_cut_loses_nothing_and_the_file_claims_nothing_untrue(
    seed: int, tmp_path: Path
) -> None:
    (tmp_path / "before").mkdir()
    disk = RecordingDisk(str(tmp_path / "before"), seed)

    async def until_the_power_fails() -> VirtualClock:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        rig = Leveling(tmp_path / "before" / "s", disk=disk)
        disk.crash_after = disk.operations + 40 + 57 * seed
        # The power fails under a call of ours, or under a task's: only the disk knows in any case.
        with suppress(Crash):
            rig.start()
            for number in range(1_000):
                rig.send(number % 3 + 1, b"%d" % number)
                await rig.clock.advance(700)
                if number % 3 == 0:
                    rig.progress.save()
                if number % 4 == seed % 4:
                    rig.store.tick()
                if disk.crashed:
                    break
        assert disk.crashed
        return rig.clock

    async def afterwards(clock: VirtualClock) -> None:
        rig = Leveling(tmp_path / "after" / "s", clock)
        delivered = set(bodies_of(rig.store, "T", 0))
        waited: set[bytes] = set()
        for level in (1, 2, 3):
            stored = bodies_of(rig.store, SCHEDULE_TOPIC, level - 1)
            assert set(stored[: rig.progress.offset(level)]) <= delivered
            waited |= set(stored)
        rig.start()
        await clock.advance(HOUR_MS)
        assert set(bodies_of(rig.store, "T", 0)) >= waited
        await rig.stop()

    clock = asyncio.run(until_the_power_fails())
    (tmp_path / "after").mkdir()
    disk.rebuild(str(tmp_path / "after"))
    asyncio.run(afterwards(clock))


async def test_a_position_outside_its_queue_is_corrected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.send(1, b"a")
    rig.file.save(render_delay_offsets(DelayOffsets(DataVersion(), {1: 99, 2: 7, 30: 4})))
    rig.store.close()

    rig = Leveling(tmp_path / "s", rig.clock)
    rig.start()
    rig.send(1, b"b")
    rig.send(2, b"first of its queue")
    await rig.clock.advance(HOUR_MS)

    assert rig.bodies == [b"b", b"first of its queue"]
    assert "position of delay level corrected" in caplog.text
    await rig.stop()
    assert offsets_in(tmp_path / "s") == {1: 2, 2: 1, 30: 4}, "another's levels are kept"


async def test_the_version_steps_every_two_hundred_messages(tmp_path: Path) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, *[b"x"] * 450)
    await rig.clock.advance(1_000)
    await rig.stop()

    version = json.loads(
        (tmp_path / "s/config/delayOffset.json").read_text().replace("1:450", '"1":450')
    )["dataVersion"]
    assert version["counter"] in (1, 2)
    assert version["timestamp"] == START_MS + 1_000
