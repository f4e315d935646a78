"""Timed messages on the virtual clock: each at its own instant, in order, once, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.broker_tables import BrokerTables
from pocketmq.broker.delay.deliveries import DelayedDeliveries
from pocketmq.broker.delay.progress import DeliveredNote
from pocketmq.broker.delay.timed import TimedDeliveries
from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.timing.timers import Timers
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import StoreFull
from pocketmq.proto.record_run import parse_run, starts_of
from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.config import StoreConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ...fakes import FaultyDisk
from ...recorded import recorded_store, settings
from ...runs import make_run, records_of

pytestmark = pytest.mark.slow

#: 250 ms after a full second.
START_MS = 1_700_000_000_250
HOUR_MS = 3_600_000
SMALL: dict[str, Any] = {
    "log_file_size_bytes": 1 << 22,
    "timer_log_file_size_bytes": 52 * 1000,
    "index": False,
}


class Delays:
    """A store, its timed deliveries on a clock that is moved, and a hand that sends to the timer topic."""

    def __init__(
        self,
        path: Path,
        clock: VirtualClock | None = None,
        *,
        disk: FaultyDisk | None = None,
        slot_messages_max: int = 1_000_000,
        pause_ms: int = 0,
        with_note: bool = True,
        **changes: Any,
    ) -> None:
        self.clock = clock or VirtualClock(START_MS)
        self.on_append: Callable[[Hashable], None] = lambda key: None
        config = StoreConfig(path=str(path), **(SMALL | changes))
        self.store = MessageStore.open(config, disk=disk or OsDisk(), now_ms=self.clock.unix_ms)
        self.timers = Timers(self.clock)
        self.timers.start()
        self.appends = Appender(self.store, lambda key: self.on_append(key))
        tables = BrokerTables.open(self.store, self.timers)
        tables.journal.start(lambda function: function())
        self.note = DeliveredNote(self.store, tables.delivered)
        self.note.find()
        self.timed = TimedDeliveries(
            self.store,
            self.timers,
            self.clock,
            DelayedDeliveries(self.appends),
            self.appends,
            slot_messages_max=slot_messages_max,
            pause_ms=pause_ms,
            note=self.note if with_note else None,
        )
        self.timed.start()

    @property
    def elapsed_ms(self) -> int:
        return self.clock.now_ms() - START_MS

    def send(self, body: bytes, after_ms: int, **properties: str) -> None:
        """Send BODY to be delivered AFTER_MS from the start of the clock."""
        self.send_all([(body, after_ms)], **properties)

    def send_all(self, messages: list[tuple[bytes, int]], **properties: str) -> None:
        given = [_properties(START_MS + after_ms, **properties) for _, after_ms in messages]
        self.appends.append([make_run(TIMER_TOPIC, 0, [body for body, _ in messages], given)])

    def recall(self, unique: str, after_ms: int, key: str | None = None) -> None:
        """Recall the message UNIQUE that is to be delivered AFTER_MS from the start."""
        self.send(b"0", after_ms, UNIQ_KEY=unique, TIMER_DEL_UNIQKEY=key or unique)

    def delivered(self, topic: str = "T", queue: int = 0) -> list[tuple[int, bytes]]:
        """Return when, from the start, and what was delivered."""
        return [
            (record.store_timestamp_ms - START_MS, record.body)
            for record in records_of(self.store, topic, queue)
        ]

    async def stop(self) -> None:
        self.timed.close()
        await self.timers.stop()
        self.note.remove()
        self.store.close()

    async def kill(self) -> None:
        """Let go of everything, as a kill does: what the store wrote stays."""
        self.timed._running = False
        await self.timers.stop()
        self.store._close_files()


def _properties(due_ms: int, **properties: str) -> dict[str, str]:
    out_ms = (due_ms - 1) // 1000 * 1000
    given = {
        "TIMER_DELIVER_MS": str(due_ms),
        "TIMER_OUT_MS": str(out_ms),
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
    }
    return {name: value for name, value in (given | properties).items() if value}


@pytest.fixture
async def delays(tmp_path: Path) -> Any:
    made = Delays(tmp_path)
    yield made
    await made.stop()


async def test_each_is_delivered_at_its_own_instant_and_in_order(delays: Delays) -> None:
    instants = [5_000, 3, 1, 750, 751, 749, 1_750, 90_001, 90_000, HOUR_MS, 3, 1_749]
    delays.send_all([(b"%d" % at, at) for at in instants])

    await delays.clock.advance(2 * HOUR_MS)

    assert delays.delivered() == [(at, b"%d" % at) for at in sorted(instants)]
    assert delays.timed.waiting == 0
    assert delays.store.timers.metrics.counts == {"T": 0}


async def test_none_is_early(delays: Delays) -> None:
    delays.send(b"1", 60_000)

    await delays.clock.advance(59_999)
    assert delays.delivered() == []
    assert delays.timed.waiting == 1
    await delays.clock.advance(1)

    assert delays.delivered() == [(60_000, b"1")]
    assert delays.timed.waiting == 0


async def test_those_of_one_instant_keep_their_order(delays: Delays) -> None:
    for number in range(40):
        delays.send(b"%d" % number, 4_000)
        if number % 7 == 0:
            await delays.clock.advance(90)

    await delays.clock.advance(5_000)

    assert delays.delivered() == [(4_000, b"%d" % number) for number in range(40)]


async def test_without_an_exact_instant_it_is_the_end_of_the_slot(delays: Delays) -> None:
    delays.send(b"none", 4_500, TIMER_DELIVER_MS="")
    delays.send(b"other slot", 4_500, TIMER_DELIVER_MS=str(START_MS + 9_500))
    delays.send(b"before", 4_500, TIMER_DELIVER_MS=str(START_MS + 3_750))
    delays.send(b"not a number", 4_500, TIMER_DELIVER_MS="soon")

    await delays.clock.advance(20_000)

    bodies = (b"none", b"other slot", b"before", b"not a number")
    assert delays.delivered() == [(4_750, body) for body in bodies]


async def test_what_is_sent_for_the_present_slot_joins_it(delays: Delays) -> None:
    delays.send(b"c", 700)
    await delays.clock.advance(100)
    delays.send(b"a", 500)
    delays.send(b"b", 700)
    delays.send(b"at once", 100)
    delays.send(b"past", -5_000)
    await delays.clock.advance(1_000)

    assert delays.delivered() == [
        (100, b"past"),
        (100, b"at once"),
        (500, b"a"),
        (700, b"c"),
        (700, b"b"),
    ]


async def test_properties_tell_when_it_was_entered_and_delivered(delays: Delays) -> None:
    await delays.clock.advance(100)
    delays.send(b"1", 5_000)
    await delays.clock.advance(5_000)

    (record,) = records_of(delays.store, "T", 0)
    assert record.properties["TIMER_ENQUEUE_MS"] == str(START_MS - 250)
    assert record.properties["TIMER_DEQUEUE_MS"] == str(START_MS + 5_000)


async def test_what_has_no_instant_is_passed_over(delays: Delays) -> None:
    delays.send_all([(b"%d" % number, 1_000) for number in range(3)])
    delays.send(b"odd", 1_000, TIMER_OUT_MS="")
    delays.send(b"odd", 1_000, TIMER_OUT_MS="12a")
    delays.send(b"odd", 1_000, TIMER_OUT_MS="9" * 19)
    delays.send(b"3", 1_000)

    await delays.clock.advance(2_000)

    assert [body for _, body in delays.delivered()] == [b"0", b"1", b"2", b"3"]
    assert delays.store.timers.queue_offset == 7


# --- recalls


@pytest.mark.parametrize("recalled_at_ms", [0, 100, 8_100, 9_000, 9_899])
async def test_a_recall_takes_its_message_out(delays: Delays, recalled_at_ms: int) -> None:
    for name in "abc":
        delays.send(name.encode(), 9_900, UNIQ_KEY=f"ID{name}")
    await delays.clock.advance(recalled_at_ms)
    delays.recall("IDb", 9_900)
    await delays.clock.advance(20_000)

    assert delays.delivered() == [(9_900, b"a"), (9_900, b"c")]
    assert delays.timed.waiting == 0
    assert delays.store.timers.metrics.counts == {"T": 0}


async def test_a_recall_may_name_the_topic_too(delays: Delays) -> None:
    delays.send(b"a", 5_000, UNIQ_KEY="ID+a")
    delays.send(b"b", 5_000, UNIQ_KEY="IDb")
    await delays.clock.advance(4_000)
    delays.recall("ID+a", 5_000, key="T+ID+a")
    delays.recall("IDb", 5_000, key="Other+IDb")
    await delays.clock.advance(4_000)

    assert delays.delivered() == [(5_000, b"b")]


async def test_a_recall_that_comes_too_late_changes_nothing(delays: Delays) -> None:
    delays.send(b"a", 5_000, UNIQ_KEY="ID")
    await delays.clock.advance(5_000)
    delays.recall("ID", 5_000)
    await delays.clock.advance(10)
    delays.send(b"b", 5_100, UNIQ_KEY="other")
    await delays.clock.advance(10_000)

    assert delays.delivered() == [(5_000, b"a"), (5_100, b"b")]
    assert delays.store.timers.metrics.counts == {"T": 0}


async def test_a_recall_before_its_message_counts_as_in_apache(delays: Delays) -> None:
    delays.recall("ID", 5_000)
    delays.send(b"a", 5_000, UNIQ_KEY="ID")
    await delays.clock.advance(10_000)

    assert delays.delivered() == []


# --- far ones


@pytest.mark.parametrize(
    "error", [StoreFull("no descriptor"), MemoryError()], ids=["full", "memory"]
)
@pytest.mark.parametrize("failing", range(5))
async def test_what_cannot_be_read_for_a_moment_is_delivered_and_recalled_all_the_same(
    delays: Delays, failing: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = MessageStore.read_records, count()

    def read_or_fail(store: MessageStore, *arguments: Any) -> Any:
        if next(calls) == failing:
            raise error
        return read(store, *arguments)

    monkeypatch.setattr(MessageStore, "read_records", read_or_fail)
    for name in "abc":
        delays.send(name.encode(), 9_900, UNIQ_KEY=f"ID{name}")
    delays.send(b"d", 4_500)
    await delays.clock.advance(8_500)
    delays.recall("IDb", 9_900)
    delays.send(b"e", 9_950)
    await delays.clock.advance(20_000)

    assert next(calls) > failing
    assert sorted(body for _, body in delays.delivered()) == [b"a", b"c", b"d", b"e"]
    assert delays.timed.waiting == 0


async def test_far_ones_roll_and_fire_exactly(delays: Delays) -> None:
    """Three days: filed one day ahead (a whole window would leave less than a third of one), then two more."""
    day = 24 * HOUR_MS
    delays.send(b"far", 3 * day + 123, UNIQ_KEY="far")
    delays.send(b"gone", 3 * day + 123, UNIQ_KEY="gone")
    delays.recall("gone", 3 * day + 123)

    await delays.clock.advance(3 * day)
    assert delays.delivered() == []
    rolls = [
        (record.body, record.properties["TIMER_ROLL_TIMES"], record.store_timestamp_ms)
        for record in records_of(delays.store, TIMER_TOPIC, 0)
        if "TIMER_ROLL_TIMES" in record.properties
    ]
    assert len({body for body, _, _ in rolls}) == 3
    assert all(START_MS + day - 1_000 <= at <= START_MS + 2 * day for _, _, at in rolls)
    await delays.clock.advance(1_000)

    assert delays.delivered() == [(3 * day + 123, b"far")]
    assert delays.store.timers.metrics.counts == {"T": 0}


async def test_rolls_of_a_small_window_are_never_late(tmp_path: Path) -> None:
    delays = Delays(tmp_path, timer_roll_window_slots=2)
    instants = [100 * n + 7 * (n % 13) for n in range(200)]
    delays.send_all([(b"%d" % at, at) for at in instants])

    await delays.clock.advance(60_000)

    assert delays.delivered() == [(at, b"%d" % at) for at in sorted(instants)]
    await delays.stop()


# --- stops


async def test_a_stop_amid_a_second_leaves_what_was_not_delivered(tmp_path: Path) -> None:
    delays = Delays(tmp_path)
    delays.send_all([(b"%d" % at, at) for at in (1_000, 1_100, 1_200, 1_300, 5_000)])
    delays.send(b"gone", 1_400, UNIQ_KEY="gone")
    delays.recall("gone", 1_400)
    await delays.clock.advance(1_150)
    await delays.stop()

    delays = Delays(tmp_path, delays.clock)
    assert delays.timed.waiting == 3
    await delays.clock.advance(10_000)

    assert delays.delivered() == [(at, b"%d" % at) for at in (1_000, 1_100, 1_200, 1_300, 5_000)]
    assert delays.store.timers.metrics.counts == {"T": 0}
    await delays.stop()


async def test_a_stop_amid_a_second_of_which_all_is_delivered(tmp_path: Path) -> None:
    delays = Delays(tmp_path)
    delays.send(b"1", 1_000)
    await delays.clock.advance(1_001)
    await delays.stop()

    delays = Delays(tmp_path, delays.clock)
    delays.send(b"2", 1_200)
    await delays.clock.advance(10_000)

    assert delays.delivered() == [(1_000, b"1"), (1_200, b"2")]
    await delays.stop()


async def test_what_fell_due_while_it_was_down_comes_first_oldest_first(tmp_path: Path) -> None:
    delays = Delays(tmp_path)
    instants = [50_000, 10_000, 40_500, 10_001, 3 * HOUR_MS]
    delays.send_all([(b"%d" % at, at) for at in instants])
    await delays.clock.advance(1)
    await delays.stop()

    clock = VirtualClock(START_MS + HOUR_MS)
    delays = Delays(tmp_path, clock)
    delays.send(b"new", HOUR_MS)
    await clock.advance(1)

    assert delays.delivered() == [
        (HOUR_MS, body) for body in (b"10000", b"10001", b"40500", b"50000", b"new")
    ]
    await clock.advance(4 * HOUR_MS)
    assert delays.delivered()[-1] == (3 * HOUR_MS, b"%d" % (3 * HOUR_MS))
    await delays.stop()


async def test_closing_twice_and_appends_after_it_are_harmless(tmp_path: Path) -> None:
    delays = Delays(tmp_path)
    delays.timed.close()
    delays.send(b"1", 100)
    delays.timed.close()
    await delays.clock.advance(1_000)
    assert delays.delivered() == []
    await delays.stop()


# --- trouble


async def test_a_wheel_that_is_behind_takes_new_ones_once_overdue_ones_are_gone(
    tmp_path: Path,
) -> None:
    """It spans two weeks: what is due in two days has no place beside what was due twelve days ago and more."""
    delays = Delays(tmp_path)
    delays.send(b"old", 10_000)
    await delays.clock.advance(1)
    await delays.stop()

    days_ms = 13 * 24 * HOUR_MS
    delays = Delays(tmp_path, VirtualClock(START_MS + days_ms))
    delays.send(b"new", days_ms + 47 * HOUR_MS)
    await delays.clock.advance(48 * HOUR_MS)

    assert [body for _, body in delays.delivered()] == [b"old", b"new"]
    assert delays.delivered()[1][0] == days_ms + 47 * HOUR_MS
    assert delays.delivered()[0][0] - days_ms <= 200
    await delays.stop()


async def test_messages_that_are_gone_from_the_log_hold_nobody_up(tmp_path: Path) -> None:
    delays = Delays(tmp_path, log_file_size_bytes=4096)
    delays.send_all([(b"x" * 1700, 5_000), (b"y" * 1700, 5_000), (b"z" * 1700, 90_000)])
    await delays.clock.advance(1_000)
    delays.appends.append([make_run("Other", 0, [b"." * 2000] * 8)])
    assert delays.store.log.files.delete_leading(1) == 1
    left = len(records_of(delays.store, TIMER_TOPIC, 0))
    assert 0 < left < 3
    await delays.clock.advance(100_000)

    assert len(delays.delivered()) == left
    assert delays.timed.waiting == 0
    await delays.stop()


async def test_what_comes_within_a_pause_goes_together(tmp_path: Path) -> None:
    delays = Delays(tmp_path, pause_ms=4)
    delays.send_all([(b"%d" % at, at) for at in range(1_000, 1_020)])
    await delays.clock.advance(2_000)

    late = [at - int(body) for at, body in delays.delivered()]
    assert late == [0] + [3, 2, 1, 0] * 4 + [3, 2, 1]
    delays.send_all([(b"alone", 3_000)])
    await delays.clock.advance(2_000)
    assert delays.delivered()[-1] == (3_000, b"alone")
    await delays.stop()


async def test_a_clock_that_was_set_back_holds_no_message_up(tmp_path: Path) -> None:
    delays = Delays(tmp_path, VirtualClock(START_MS + HOUR_MS))
    delays.send(b"1", HOUR_MS + 100)
    await delays.clock.advance(5_000)
    await delays.stop()

    delays = Delays(tmp_path, VirtualClock(START_MS))
    delays.send(b"2", 5_000)
    delays.send(b"3", -5_000)
    await delays.clock.advance(5_000)

    assert [body for _, body in delays.delivered()] == [b"1", b"3", b"2"]
    assert delays.timed.waiting == 0
    await delays.stop()


async def test_a_full_disk_delays_and_loses_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    delays = Delays(tmp_path, disk=disk)
    instants = list(range(1_000, 2_000, 50))
    delays.send_all([(b"%d" % at, at) for at in instants])
    await delays.clock.advance(1_225)
    disk.run_full("commitlog")
    await delays.clock.advance(275)
    disk.heal()
    await delays.clock.advance(2_000)

    found = delays.delivered()
    assert [body for _, body in found] == [b"%d" % at for at in instants]
    # From 1250 on nothing was taken; tries every 100 ms, so the first that worked was the one at 1550.
    assert [at for at, _ in found] == [at if at < 1_225 else max(at, 1_550) for at in instants]
    await delays.stop()


async def test_what_cannot_be_entered_is_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    delays = Delays(tmp_path, disk=disk)
    disk.run_full("timerlog")
    delays.send(b"1", 1_000)
    delays.send(b"2", 50)
    await delays.clock.advance(120)
    assert delays.store.timers.queue_offset == 0
    assert delays.timed.waiting == 2
    disk.heal()
    await delays.clock.advance(2_000)

    assert delays.delivered() == [(200, b"2"), (1_000, b"1")]
    await delays.stop()


@pytest.mark.long
async def test_a_backlog_does_not_starve_sends(tmp_path: Path) -> None:
    """100,000 that fell due while the broker was down: each turn of the loop delivers a chunk of them at most."""
    delays = Delays(tmp_path, log_file_size_bytes=1 << 26)
    for second in range(50):
        delays.send_all(
            [(b"%03d" % (n // 10), 5_000 + 1_000 * second + n % 7) for n in range(2_000)]
        )
    await delays.clock.advance(1)
    assert delays.timed.waiting == 100_000
    await delays.stop()

    clock = VirtualClock(START_MS + HOUR_MS)
    delays = Delays(tmp_path, clock, log_file_size_bytes=1 << 26, slot_messages_max=5_000)
    turns: list[int] = []
    loop = asyncio.get_running_loop()

    def turn() -> None:
        """Send something in every turn, and note how many messages were delivered by then."""
        turns.append(delays.store.queue_bounds("T", 0)[1])
        delays.appends.append([make_run("Sent", 0, [b"%d" % turns[-1]])])
        if turns[-1] < 100_000:
            loop.call_soon(turn)

    turn()
    await clock.advance(0)

    assert delays.timed.waiting == 0
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 500
    assert delays.store.queue_bounds("Sent", 0)[1] >= 200
    numbers = [int(body) for body in _bodies(delays.store, "T", 0)]
    assert numbers == 50 * [n // 10 for n in sorted(range(2_000), key=lambda n: (n % 7, n))]
    assert delays.store.timers.read_ms == clock.now_ms() // 1_000 * 1_000
    await delays.stop()


def _bodies(store: MessageStore, topic: str, queue: int) -> Iterator[bytes]:
    """Yield the bodies of a long queue."""
    offset, end = store.queue_bounds(topic, queue)
    while offset < end:
        slices = store.read_queue(topic, queue, offset, 10_000, 1 << 22)
        columns = parse_run(slices.records, starts_of(slices.sizes))
        for start, size in zip(
            columns.body_start.tolist(), columns.body_size.tolist(), strict=True
        ):
            yield slices.records[start : start + size]
        offset = slices.next_offset


# --- what another broker left


async def test_what_apache_left_is_delivered_as_apache_would(tmp_path: Path) -> None:
    """The store `delays`, from the moment when its broker stopped."""
    path = recorded_store("delays", tmp_path / "delays")
    clock = VirtualClock(1_795_226_137_000)
    assert settings("delays") == {}
    default = StoreConfig(path="")
    delays = Delays(path, clock, **{name: getattr(default, name) for name in SMALL})
    before = {queue: len(records_of(delays.store, "Timed", queue)) for queue in (0, 1)}
    sent = {
        record.properties["UNIQ_KEY"]: record
        for record in records_of(delays.store, TIMER_TOPIC, 0)
        if "TIMER_DEL_UNIQKEY" not in record.properties
    }
    (example,) = (
        record
        for record in records_of(delays.store, "Timed", 0)
        if record.properties["KEYS"] == "at-6-0"
    )
    assert delays.timed.waiting == 9
    assert delays.store.timers.metrics.count("Timed") == 9

    await clock.advance(3 * 24 * HOUR_MS)

    found = {}
    for queue in (0, 1):
        for record in records_of(delays.store, "Timed", queue)[before[queue] :]:
            found[record.properties["KEYS"]] = record
            given = sent[record.properties["UNIQ_KEY"]]
            added = {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
            if "roll" in record.properties["KEYS"]:
                added |= {"TIMER_ROLL_TIMES"}
            else:
                assert record.properties.keys() - given.properties.keys() == (
                    example.properties.keys() - sent[example.properties["UNIQ_KEY"]].properties
                )
            kept = {name: value for name, value in record.properties.items() if name not in added}
            assert kept == dict(given.properties)
            assert record.queue_id == int(given.properties["REAL_QID"])
            assert (record.body, record.flag, record.born_timestamp_ms, record.born_host) == (
                given.body,
                given.flag,
                given.born_timestamp_ms,
                given.born_host,
            )
    assert {keys: record.store_timestamp_ms for keys, record in found.items()} == {
        "hour-0": 1_795_229_697_251,
        "hour-1": 1_795_229_697_251,
        "hour-2": 1_795_229_697_251,
        "day-0": 1_795_312_498_000,
        "day-1": 1_795_312_498_000,
        "day-2": 1_795_312_498_000,
        "beyond-roll-window-0": 1_795_476_098_000,
        "beyond-roll-window-1": 1_795_476_098_000,
        "beyond-roll-window-2": 1_795_476_098_000,
    }
    assert {found[f"beyond-roll-window-{n}"].properties["TIMER_ROLL_TIMES"] for n in range(3)} == {
        "1"
    }
    assert delays.timed.waiting == 0
    assert delays.store.timers.metrics.count("Timed") == 0
    await delays.stop()
