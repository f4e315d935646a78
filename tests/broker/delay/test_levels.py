"""Delay levels on the virtual clock: each message at its own instant, in order, once."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from pocketmq.proto.clock import VirtualClock

from ...runs import records_of
from .leveling import HOUR_MS, LEVELS_MS, START_MS, Leveling


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


@pytest.mark.long
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
