"""Deliveries and timed messages of a follower: nothing that waits is passed over, and no more comes again than must."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pocketmq.broker.broker_tables import BrokerTables
from pocketmq.broker.delay.timed_pages import enter_page
from pocketmq.broker.pop.deliveries import FoundQueue, PopKey
from pocketmq.broker.replication import state_deliveries
from pocketmq.broker.replication.state_deliveries import (
    DELIVERIES_FILE,
    DeliveriesPart,
    DeliveriesSink,
)
from pocketmq.broker.replication.state_source import StateSource
from pocketmq.broker.replication.state_timers import TIMERS_FILE, TimersSink, TimersState
from pocketmq.broker.replication.table_part import TablePart
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.message_store import MessageStore

from ...runs import Hand, bodies_of, open_store
from ...store.following import feed
from ...timed import NOW, SECOND, Message, opened, send, waiting
from ..pop.popping import GROUP, INVISIBLE_MS, TOPIC, Popping, found_in, seen
from ..pop.table_files import SMALL

# --- deliveries


#: By queue: how far was looked; by offset: attempt, and whose it is until when, if that has not passed.
Tables = dict[PopKey, tuple[int, dict[int, tuple[int, str, int]]]]


def done_by(broker: Popping) -> Tables:
    return tables_of(found_in(broker.pops), broker.clock.now_ms())


def tables_of(found: dict[PopKey, FoundQueue], now_ms: int) -> Tables:
    """Return what is known of the queues of which anything is."""
    tables = {
        key: (
            queue.looked,
            {
                offset: (one.attempt, one.owner, one.until_ms)
                if one.until_ms > now_ms
                else (one.attempt, "", 0)
                for offset, one in queue.in_flight.items()
            },
        )
        for key, queue in found.items()
    }
    return {key: table for key, table in tables.items() if table != (0, {})}


class Pair:
    """A broker that delivers, and a follower's table, by a clock that is SKEW_MS ahead of the broker's."""

    def __init__(self, path: Path, skew_ms: int = 0) -> None:
        self.broker = Popping(path / "master", sizes=SMALL, queues=2)
        self.store = open_store(path / "follower", replica=True)
        part = DeliveriesPart(self.broker.tables.deliveries, self.broker.clock)
        self.source = StateSource(1, [part], lambda: 0, lambda: [2])
        self.skew_ms = skew_ms
        self.now_ms = 0
        self.links = 0
        self.wholes = 0
        self.open()
        self.connect()

    def open(self) -> None:
        self.tables = BrokerTables.open(self.store, Skewed(self.broker.clock, self.skew_ms))

    def connect(self) -> None:
        """A new link; the follower has started anew."""
        self.source.lost(self.links)
        self.links += 1
        clock = Skewed(self.broker.clock, self.skew_ms)
        self.sink = DeliveriesSink(self.tables.deliveries, clock)
        self.take(self.source.hello(self.links, 2, {DELIVERIES_FILE: 0}))

    def take(self, frames: list[tuple[int, pb.FollowState]]) -> None:
        for link, frame in frames:
            whole = frame.WhichOneof("content") == "whole"
            self.wholes += whole
            content = self.sink.read(frame.whole if whole else frame.diff)
            self.sink.apply(content, whole=whole, log_offset=0)
            ack = pb.FollowStateAck(file=DELIVERIES_FILE, version=frame.version)
            self.sink.when_safe(lambda error: None)
            self.source.acked(link, ack)

    def change(self) -> None:
        self.now_ms += 1_000
        self.take(self.source.changed(self.now_ms))

    def said(self) -> Tables:
        """Return what the follower has, as of the broker's clock."""
        found = self.tables.deliveries.found()
        for queue in found.values():
            for offset, one in queue.in_flight.items():
                queue.in_flight[offset] = one._replace(until_ms=one.until_ms - self.skew_ms)
        return tables_of(found, self.broker.clock.now_ms())

    async def stop(self) -> None:
        self.sink.close()
        self.tables.journal.close()
        await self.broker.stop()
        self.store.close()


class Skewed:
    """A clock whose instants are MS ahead of CLOCK, which runs beside it."""

    def __init__(self, clock: VirtualClock, ms: int) -> None:
        self._clock = clock
        self._ms = ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._ms

    def unix_ms(self) -> int:
        return self._clock.unix_ms()


@pytest.mark.parametrize("seed", range(6))
async def test_a_follower_knows_what_was_delivered(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_deliveries, "DIFFS_MIN", 3_000)
    rng = random.Random(seed)
    pair = Pair(tmp_path, skew_ms=rng.choice([0, 7_000_000, -5_000]))
    broker, lent = pair.broker, []
    for _ in range(200):
        match rng.randrange(9):
            case 0 | 1:
                broker.send(*[b"m"] * rng.randrange(1, 9), queue=rng.randrange(2))
            case 2 | 3:
                lent += broker.pop(rng.randrange(1, 9), client_id=f"c{rng.randrange(3)}")
            case 4 | 5 if lent:
                broker.ack(lent.pop(rng.randrange(len(lent))))
            case 6:
                await broker.clock.advance(rng.choice([1, 1_000, INVISIBLE_MS]))
                lent.clear()
            case 7:
                pair.change()
                assert pair.said() == done_by(broker)
            case 8 if rng.random() < 0.2:
                pair.connect()
                assert pair.said() == done_by(broker)
    pair.change()
    assert pair.wholes > 2
    expected = done_by(broker)
    pair.tables.journal.close()
    pair.open()
    assert pair.said() == expected
    await pair.stop()


async def test_a_group_that_is_forgotten_is_so_on_a_follower(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.broker.send(b"a", b"b")
    assert seen(pair.broker.pop()) == [(b"a", 1), (b"b", 1)]
    pair.change()
    key = PopKey(GROUP, TOPIC, 0)
    assert pair.said()[key][1].keys() == {0, 1}
    pair.broker.pops.forget_group(GROUP)
    pair.change()
    assert key not in pair.said()
    await pair.stop()


async def test_damaged_deliveries_are_refused(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pytest.raises(ValueError, match="no clock"):
        pair.sink.read(b"\xff and more")
    with pytest.raises(ValueError, match="ends after"):
        pair.sink.read(bytes(16) + b"\xff and more")
    await pair.stop()


# --- timed messages


class TimedPair:
    """Two stores with timers, of which one follows."""

    def __init__(self, path: Path) -> None:
        self.clock = Hand(NOW)
        self.master = opened(path / "master", self.clock, replica=True)
        self.follower = opened(path / "follower", self.clock, replica=True)
        self.follower.follow()
        self.source = StateSource(
            1,
            [TablePart(TimersState(self.master.timers))],
            lambda: self.master.max_log_offset,
            lambda: [2],
        )
        self.sink = TimersSink(self.follower, self.clock)
        self.frames = self.source.hello(1, 2, {TIMERS_FILE: 0})
        self.now_ms = 0

    def enter(self, pages: int = 100) -> None:
        for _ in range(pages):
            enter_page(self.master, self.clock())

    def deliver(self) -> None:
        """The master hands on all that is due."""
        self.master.timers.delivered_up_to(self.clock.now_ms // SECOND * SECOND)

    def change(self) -> None:
        self.now_ms += 1_000
        self.frames += self.source.changed(self.now_ms)

    def take(self, rng: random.Random) -> None:
        """The follower gets the log, and then what is under way."""
        feed(self.master, self.follower, rng)
        for _, frame in self.frames:
            whole = frame.WhichOneof("content") == "whole"
            said = self.sink.read(frame.whole if whole else frame.diff)
            self.sink.apply(said, whole=whole, log_offset=frame.log_offset)
            self.source.acked(1, pb.FollowStateAck(file=TIMERS_FILE, version=frame.version))
        self.frames.clear()

    def left(self, store: MessageStore) -> set[str]:
        """Return which messages a broker on STORE delivers from now on."""
        found = {key for keys in waiting(store).values() for key in keys}
        bodies = bodies_of(store, TIMER_TOPIC, 0)
        return found | {body.decode() for body in bodies[store.timers.queue_offset :]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_follower_passes_over_no_timed_message_that_its_master_has_not_delivered(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    pair, count = TimedPair(tmp_path), 0
    for _ in range(60):
        match rng.randrange(7):
            case 0 | 1:
                dues = [pair.clock.now_ms + rng.randint(-3, 9) * SECOND for _ in range(3)]
                send(pair.master, [Message(f"m{count + n}", due) for n, due in enumerate(dues)])
                count += 3
            case 2:
                pair.enter()
            case 3:
                pair.enter()  # Only then a slot is over.
                pair.deliver()
            case 4:
                pair.clock.now_ms += rng.randint(1, 3) * SECOND
            case 5:
                pair.change()
            case 6:
                pair.take(rng)
                pair.sink.go_on(rng.choice([0, 1, None]))
        feed(pair.master, pair.follower, rng)
        assert pair.left(pair.master) <= pair.left(pair.follower)
    pair.enter()
    pair.deliver()
    pair.change()
    pair.take(rng)
    pair.sink.close()
    assert pair.left(pair.follower) == pair.left(pair.master)
    assert pair.follower.timers.read_ms == pair.master.timers.read_ms


def test_a_follower_counts_what_waits_as_its_master_does(tmp_path: Path) -> None:
    pair, rng = TimedPair(tmp_path), random.Random(1)
    send(pair.master, [Message(f"m{n}", NOW + n * SECOND) for n in range(9)])
    pair.enter()
    pair.clock.now_ms += 5 * SECOND
    pair.deliver()
    pair.master.timers.metrics.replace({"Timed": 4})
    pair.change()
    pair.take(rng)
    pair.sink.go_on(None)
    assert pair.follower.timers.metrics.counts == {"Timed": 4}


def test_a_follower_enters_timed_messages_a_page_at_a_time(tmp_path: Path) -> None:
    pair, rng = TimedPair(tmp_path), random.Random(1)
    told: list[object] = []
    for begin in range(0, 1_000, 500):
        send(pair.master, [Message(f"m{begin + n}", NOW + SECOND) for n in range(500)])
    pair.enter()
    pair.clock.now_ms += 3 * SECOND
    pair.deliver()
    pair.change()
    pair.take(rng)
    pair.sink.when_safe(told.append)
    pair.sink.go_on(1)
    assert 0 < pair.follower.timers.queue_offset < 1_000
    assert not told
    pair.sink.go_on(None)
    assert told == [None]
    assert pair.left(pair.follower) == set()


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"other":1}', b'{"progress":{"last":7}}'])
def test_progress_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    sink = TimedPair(tmp_path).sink
    with pytest.raises((ValueError, TypeError)):
        sink.read(content)
