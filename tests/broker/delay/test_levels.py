"""Delay levels on the virtual clock: each message at its own instant, in order, once, whatever comes between."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketmq.broker.delay.levels import CHUNK_MESSAGES, RETRY_MS
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import PocketMQError, StoreFull
from pocketmq.proto.record import SYS_FLAG_AT, SYS_ROLLBACK
from pocketmq.proto.topics import SCHEDULE_TOPIC
from pocketmq.store.config import StoreConfig, apply_apache_settings
from pocketmq.store.run import Appended, Run
from pocketmq.store.state_tables import (
    DataVersion,
    DelayOffsets,
    parse_delay_offsets,
    render_delay_offsets,
)

from ...fakes import Crash, FaultyDisk, RecordingDisk
from ...recorded import recorded_store
from ...recorded import settings as recorded_settings
from ...runs import bodies_of, records_of
from .leveling import START_MS, Leveling

HOUR_MS = 3_600_000
LEVELS_MS = StoreConfig(path="").delay_levels_ms


def _offsets(store: Path) -> dict[int, int]:
    """Return what the file says."""
    return parse_delay_offsets((store / "config" / "delayOffset.json").read_text()).offsets


# --- when


async def test_each_level_delivers_to_the_millisecond(tmp_path: Path) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    wanted = []
    for level, delay_ms in enumerate(LEVELS_MS, start=1):
        await rig.clock.advance(7)
        wanted.append((rig.clock.now_ms() + delay_ms, b"level %d" % level))
        rig.send(level, b"level %d" % level)
    assert rig.levels.waiting == 18

    await rig.clock.advance(3 * HOUR_MS)

    assert [(instant, body) for instant, _, body in rig.arrived] == sorted(wanted)
    assert rig.levels.waiting == 0
    copy = records_of(rig.store, "T", 0)[0]
    assert dict(copy.properties) == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
    await rig.stop()


async def test_what_is_due_at_one_instant_comes_in_the_order_of_the_log(tmp_path: Path) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(2, b"5 s")
    await rig.clock.advance(4_000)
    rig.send(1, b"1 s", b"1 s too")

    await rig.clock.advance(1_000)

    assert rig.bodies == [b"5 s", b"1 s", b"1 s too"]
    await rig.stop()


async def test_with_a_pause_what_is_due_within_it_goes_together(tmp_path: Path) -> None:
    rig = Leveling(tmp_path / "s", pause_ms=5)
    rig.start()
    for number in range(12):
        rig.send(1, b"%d" % number)
        await rig.clock.advance(1)
    await rig.clock.advance(988 + 500)
    rig.send(1, b"alone")
    await rig.clock.advance(5_000)

    instants = [instant - START_MS - 1_000 for instant, _, _ in rig.arrived]
    assert instants == [0, 5, 5, 5, 5, 5, 10, 10, 10, 10, 10, 15, 1_500]
    assert rig.bodies == [*(b"%d" % number for number in range(12)), b"alone"]
    await rig.stop()


_events = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 999, 1_000, 4_000, 5_000, 9_000, 30_000]),
        st.integers(1, 4),
        st.integers(1, 3),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(_events, st.integers(0, 12))
def test_the_sequence_is_that_of_the_times_also_across_a_restart(
    events: list[tuple[int, int, int, int]], stop_after: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_check_sequence(Path(folder), events, stop_after))


async def _check_sequence(
    folder: Path, events: list[tuple[int, int, int, int]], stop_after: int
) -> None:
    clock = VirtualClock(START_MS)
    rig = Leveling(folder / "s", clock)
    rig.start()
    wanted: list[tuple[int, int, int, bytes]] = []
    arrived: list[tuple[int, int, bytes]] = []
    for number, (wait_ms, level, count, queue) in enumerate(events):
        await clock.advance(wait_ms)
        bodies = [b"%d %d" % (number, one) for one in range(count)]
        rig.send(level, *bodies, queue=queue)
        due_ms = clock.now_ms() + LEVELS_MS[level - 1]
        wanted += [(due_ms, len(wanted) + one, queue, body) for one, body in enumerate(bodies)]
        if number == stop_after:
            await rig.stop()
            arrived += rig.arrived
            rig = Leveling(folder / "s", clock)
            rig.start()
    await clock.advance(HOUR_MS)
    await rig.stop()

    arrived += rig.arrived
    in_order = [(due_ms, queue, body) for due_ms, _, queue, body in sorted(wanted)]
    # What is due in one instant is appended queue by queue.
    for queue in (0, 1):
        found = [one for one in arrived if one[1] == queue]
        assert found == [one for one in in_order if one[1] == queue]
    assert [instant for instant, _, _ in arrived] == [instant for instant, _, _ in in_order]


async def test_a_message_of_a_clock_that_was_ahead_is_due_at_once(tmp_path: Path) -> None:
    ahead = Leveling(tmp_path / "s", VirtualClock(START_MS + HOUR_MS))
    ahead.send(3, b"from the future")
    ahead.store.close()
    rig = Leveling(tmp_path / "s")
    rig.start()

    await rig.clock.advance(0)

    assert rig.arrived == [(START_MS, 0, b"from the future")]
    await rig.stop()


# --- stopped and started


async def test_after_a_clock_went_back_none_is_early_and_each_waits_from_when_it_is_seen(
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
    # One that comes while others of its level wait is seen when they are done.
    assert at == {"of the future": 0, "a": 1_000, "b": 2_000, "c": 5_400}
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
    assert _offsets(tmp_path / "s") == {1: 3, 2: 0}

    rig = Leveling(tmp_path / "s", rig.clock)
    rig.start()
    await rig.clock.advance(HOUR_MS)

    assert rig.bodies == [b"later"]
    await rig.stop()
    assert _offsets(tmp_path / "s") == {1: 3, 2: 1}


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

    assert _offsets(tmp_path / "s") == {1: 1}
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
    assert "position of a delay level was corrected" in caplog.text
    await rig.stop()
    assert _offsets(tmp_path / "s") == {1: 2, 2: 1, 30: 4}, "another's levels are kept"


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


# --- what goes wrong


async def test_what_the_store_cannot_take_is_tried_again_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    rig = Leveling(tmp_path / "s", disk=disk)
    rig.start()
    rig.send(1, b"a", b"b")
    rig.send(1, b"c", queue=1)
    await rig.clock.advance(500)
    rig.send(1, b"d")
    disk.run_full("commitlog")
    await rig.clock.advance(5_000)
    assert rig.arrived == []
    assert caplog.text.count("delay levels wait") == 1
    disk.heal()

    await rig.clock.advance(RETRY_MS)

    now = START_MS + 5_500 + RETRY_MS
    assert sorted(rig.arrived[:3]) == [(now, 0, b"a"), (now, 0, b"b"), (now, 1, b"c")]
    assert rig.arrived[3:] == [(now, 0, b"d")]
    await rig.stop()


async def test_a_part_that_was_taken_is_not_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a")
    rig.send(1, b"b", queue=1)
    append_many = rig.store.append_many

    def only_the_first(runs: Sequence[Run]) -> list[Appended | PocketMQError]:
        return [append_many(runs[:1])[0], StoreFull("no room")]

    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "append_many", only_the_first)
        await rig.clock.advance(1_000)
    assert rig.bodies == [b"a"]

    await rig.clock.advance(RETRY_MS)

    assert rig.bodies == [b"a", b"b"]
    await rig.stop()


async def test_a_record_that_cannot_be_read_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a", b"bad", b"c")
    bad = records_of(rig.store, SCHEDULE_TOPIC, 0)[1]
    file = rig.store.log.files.files[0]
    file.mapping.write(bad.log_offset + SYS_FLAG_AT, SYS_ROLLBACK.to_bytes(4, "big"))

    with caplog.at_level(logging.WARNING):
        await rig.clock.advance(1_000)

    assert rig.bodies == [b"a", b"c"]
    assert "records are not where their queue entries say" in caplog.text
    assert rig.levels.waiting == 0
    await rig.stop()


async def test_a_bug_does_not_stop_the_levels_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a")

    def broken(runs: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "append_many", broken)
        await rig.clock.advance(1_000)
    assert "a bug" in caplog.text
    await rig.clock.advance(10_000)

    assert rig.bodies == [b"a"]
    await rig.stop()


# --- Apache's store


async def test_what_apache_left_waiting_comes_as_it_would_have(tmp_path: Path) -> None:
    path = recorded_store("delays", tmp_path / "s")
    config = apply_apache_settings(StoreConfig(path=str(path)), recorded_settings("delays"))
    positions = _offsets(path)
    clock = VirtualClock(1_795_226_140_000)  # some seconds after its last message
    reader = Leveling(path, clock, config=config)
    waiting = {}
    for level in range(1, 19):
        low, high = reader.store.queue_bounds(SCHEDULE_TOPIC, level - 1)
        if low < high:
            stored = records_of(reader.store, SCHEDULE_TOPIC, level - 1)
            for record in stored[positions.get(level, 0) :]:
                waiting[record.properties["KEYS"]] = record
    assert len(waiting) > 8
    before = {
        name: reader.store.queue_bounds(*name)[1] for name in (("Delayed", 0), ("Delayed", 1))
    }
    reader.start()

    await clock.advance(3 * HOUR_MS)

    found = {}
    for (topic, queue), end in before.items():
        for copy in records_of(reader.store, topic, queue)[end:]:
            assert copy.properties["KEYS"] not in found, "once"
            found[copy.properties["KEYS"]] = copy
    assert found.keys() == waiting.keys()
    for key, copy in found.items():
        waited = waiting[key]
        delay_ms = LEVELS_MS[int(waited.properties["DELAY"]) - 1]
        assert copy.store_timestamp_ms == waited.store_timestamp_ms + delay_ms
        assert copy.properties == waited.properties
        assert (copy.body, copy.born_timestamp_ms) == (waited.body, waited.born_timestamp_ms)
    ends = {level: reader.store.queue_bounds(SCHEDULE_TOPIC, level - 1)[1] for level in positions}
    await reader.stop()
    assert _offsets(path) == ends


@pytest.mark.parametrize("copies", [1, 3, CHUNK_MESSAGES + 5])
async def test_where_records_were_lost_the_one_behind_comes_once(
    tmp_path: Path, copies: int
) -> None:
    """Recovery has the entries of lost records tell of the next record of the queue."""
    rig = Leveling(tmp_path / "s")
    rig.send(1, b"a")
    rig.send(1, b"b")
    queue = rig.store.queues.find_or_make(SCHEDULE_TOPIC, 0)
    log_offsets, sizes, codes = (column[-1:] for column in queue.entries(0, 2))
    queue.append(
        2, np.repeat(log_offsets, copies), np.repeat(sizes, copies), np.repeat(codes, copies)
    )
    rig.start()
    await rig.clock.advance(1_000)
    rig.send(1, b"c")

    await rig.clock.advance(1_000)

    assert rig.bodies == [b"a", b"b", b"c"]
    assert rig.levels.waiting == 0
    await rig.stop()
