"""The wall clock is set while messages wait: what is due by it comes when it shows its time, and nothing else waits."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pocketmq.proto.record import decode_record

from .leveling import Leveling
from .test_timed import START_MS, Delays

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STEPS_MS = (1, 900, HOUR_MS, DAY_MS)


class Arrivals:
    """Notes the instant, from the start, at which each body comes to T."""

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._seen = 0
        self.instants: dict[bytes, int] = {}
        delays.on_append = self._note

    def _note(self, key: object) -> None:
        store = self._delays.store
        _, end = store.queue_bounds("T", 0)
        while self._seen < end:
            record = decode_record(store.read_queue("T", 0, self._seen, 1, 1 << 20).records)
            assert record.body not in self.instants, "it comes once"
            self.instants[record.body] = self._delays.clock.now_ms() - START_MS
            self._seen += 1


# --- levels


@pytest.mark.parametrize("step_ms", [-DAY_MS, -HOUR_MS, -1])
async def test_a_level_waits_no_longer_than_its_delay_where_the_clock_is_set_back(
    tmp_path: Path, step_ms: int
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    begin_ms = rig.clock.now_ms()
    rig.send(3, b"10 s")
    await rig.clock.advance(4_000)

    rig.clock.step(step_ms)
    rig.send(3, b"10 s more")
    await rig.clock.advance(20_000)

    assert [(at - begin_ms, body) for at, _, body in rig.arrived] == [
        (10_000, b"10 s"),
        (14_000, b"10 s more"),
    ]
    await rig.stop()


async def test_a_level_comes_when_a_clock_that_is_set_forward_shows_its_time(
    tmp_path: Path,
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    begin_ms = rig.clock.now_ms()
    rig.send(18, b"2 h")
    rig.send(1, b"1 s")
    await rig.clock.advance(10)

    rig.clock.step(HOUR_MS)
    rig.send(1, b"later")
    await rig.clock.advance(2 * HOUR_MS)

    assert [(at - begin_ms, body) for at, _, body in rig.arrived] == [
        (10, b"1 s"),
        (1_010, b"later"),
        (HOUR_MS, b"2 h"),
    ]
    await rig.stop()


async def test_a_step_on_and_back_delays_no_level(tmp_path: Path) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    begin_ms = rig.clock.now_ms()
    rig.send(17, b"1 h")
    rig.clock.step(1_000)
    rig.send(1, b"within")
    await rig.clock.advance(100)
    rig.clock.step(-1_000)
    rig.send(1, b"after")

    await rig.clock.advance(HOUR_MS)

    assert [(at - begin_ms, body) for at, _, body in rig.arrived] == [
        (1_000, b"within"),
        (1_100, b"after"),
        (HOUR_MS, b"1 h"),
    ]
    await rig.stop()


# --- timed messages


async def test_a_timed_message_comes_when_the_new_clock_shows_its_time(tmp_path: Path) -> None:
    delays = Delays(tmp_path / "s")
    arrivals = Arrivals(delays)
    delays.send(b"by the old clock", 10_000)
    await delays.clock.advance(4_000)

    delays.clock.step(-HOUR_MS)
    delays.send(b"by the new one", 9_000 - HOUR_MS)
    await delays.clock.advance(2 * HOUR_MS)

    assert arrivals.instants == {b"by the new one": 9_000, b"by the old clock": HOUR_MS + 10_000}
    await delays.stop()


async def test_what_a_clock_that_is_set_forward_has_passed_comes_at_once(tmp_path: Path) -> None:
    delays = Delays(tmp_path / "s")
    arrivals = Arrivals(delays)
    delays.send_all([(b"in a minute", 60_000), (b"in two hours", 2 * HOUR_MS)])
    await delays.clock.advance(4_000)

    delays.clock.step(HOUR_MS)
    await delays.clock.advance(2 * HOUR_MS)

    assert arrivals.instants == {b"in a minute": 4_000, b"in two hours": HOUR_MS}
    await delays.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("pause_ms", [0, 5])
async def test_each_comes_once_as_soon_as_the_clock_shows_its_time_however_it_is_set(
    tmp_path: Path, seed: int, pause_ms: int
) -> None:
    random = Random(seed)
    delays = Delays(tmp_path / "s", pause_ms=pause_ms)
    arrivals = Arrivals(delays)
    clock = delays.clock
    due_ms: dict[bytes, int] = {}
    wanted: dict[bytes, int] = {}

    def expect(until_ms: int) -> None:
        """Note when, between now and UNTIL_MS from the start, the clock shows the time of what waits."""
        now_ms = clock.now_ms() - START_MS
        for body in due_ms.keys() - wanted.keys():
            at_ms = max(now_ms, now_ms + due_ms[body] - (clock.unix_ms() - START_MS))
            if at_ms <= until_ms:
                wanted[body] = at_ms

    for number in range(40):
        fate = random.random()
        if fate < 0.4:
            body = b"%d" % number
            after_ms = random.choice((10, 700, 40_000, HOUR_MS, DAY_MS))
            due_ms[body] = clock.unix_ms() - START_MS + random.randint(1, after_ms)
            delays.send(body, due_ms[body])
        elif fate < 0.6:
            clock.step(random.choice((-1, 1)) * random.choice(STEPS_MS))
            expect(clock.now_ms() - START_MS)
            await clock.advance(0)  # What nobody had a turn to see was never shown.
        else:
            by_ms = random.randint(0, random.choice((100, 10_000, 2 * HOUR_MS)))
            expect(clock.now_ms() - START_MS + by_ms)
            await clock.advance(by_ms)
    expect(10 * DAY_MS + clock.now_ms() - START_MS)
    await clock.advance(10 * DAY_MS)

    late = {body: arrivals.instants.get(body, -1) - at_ms for body, at_ms in wanted.items()}
    assert wanted.keys() == due_ms.keys()
    assert all(0 <= by_ms <= pause_ms for by_ms in late.values()), late
    await delays.stop()
