"""Power fails at any moment: no timed message that was on the device is lost, and what comes twice is bounded.

The disk knows which sectors and names are surely on the device (tests/fakes.py). A seed decides the traffic, the moment
and what survives; a failing case is replayed by its seed.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.format.timer_log import DELETE
from pocketmq.store.message_store import MessageStore

from ..fakes import Crash, RecordingDisk
from ..runs import Hand, bodies_of, make_run, open_store
from ..timed import NOW, SECOND, Message, enter, enter_all, keys_of, read_slot, send

pytestmark = pytest.mark.long

DELIVERED = "Delivered"


def opened(path: Path, clock: Hand, disk: RecordingDisk | None = None) -> MessageStore:
    return open_store(
        path,
        disk=disk,
        now_ms=clock,
        timer_log_file_size_bytes=1104,
        timer_roll_window_slots=60,
        log_file_size_bytes=1 << 14,
    )


class Broker:
    """Seeded sends, entries, deliveries, ticks, stops; knows what was acknowledged as synced."""

    def __init__(self, rng: random.Random, clock: Hand) -> None:
        self.rng = rng
        self.clock = clock
        self.sent = 0
        self.synced: set[str] = set()

    def step(self, store: MessageStore) -> None:
        self.clock.now_ms += self.rng.randint(0, 900)
        choice = self.rng.random()
        if choice < 0.3:
            self.send(store)
        elif choice < 0.6:
            enter(store, self.clock.now_ms, self.rng.choice([1, 5, 100]))
        elif choice < 0.75:
            self.deliver(store, self.clock.now_ms)
        elif choice < 0.95:
            store.tick()
        else:
            self.stop_amid(store)

    def send(self, store: MessageStore) -> None:
        unit = self.clock.now_ms // SECOND * SECOND
        count = self.rng.choice([1, 3, 20])
        made = [
            Message(f"m{self.sent + n}", unit + self.rng.randint(0, 20) * SECOND)
            for n in range(count)
        ]
        self.sent += count
        send(store, made)
        if self.rng.random() < 0.5:
            done: list[object] = []
            store.request_sync(store.max_log_offset, done.append)
            assert done == [None]
            self.synced |= {message.key for message in made}

    def deliver(self, store: MessageStore, up_to_ms: int) -> None:
        """Hand on every slot before UP_TO_MS, oldest first."""
        timers = store.timers
        while (slot := timers.next_slot(timers.read_ms)) is not None and slot < up_to_ms:
            self.hand_on(store, [key for key in keys_of(store, slot) if key[0] != "-"])
            timers.delivered_up_to(slot + SECOND)
        timers.delivered_up_to(max(timers.read_ms, up_to_ms // SECOND * SECOND))

    def hand_on(self, store: MessageStore, keys: list[str]) -> None:
        for key in keys:
            store.append(make_run(DELIVERED, 0, [key.encode()]))

    def stop_amid(self, store: MessageStore) -> None:
        """Hand on the first half of the oldest slot and leave the rest, as a stop would."""
        timers = store.timers
        slot_ms = timers.next_slot(timers.read_ms)
        if slot_ms is None or slot_ms > self.clock.now_ms:
            return
        timers.delivered_up_to(slot_ms)
        positions = read_slot(store, slot_ms, page=50).records().positions
        half = len(positions) // 2
        self.hand_on(store, [key for key in keys_of(store, slot_ms)[:half] if key[0] != "-"])
        timers.replace_slot(slot_ms, positions[half:])


def delivered(store: MessageStore) -> set[str]:
    return {body.decode() for body in bodies_of(store, DELIVERED, 0)}


def power_cut(seed: int, tmp_path: Path, most: int) -> tuple[Broker, Path, Hand]:
    rng = random.Random(seed)
    clock = Hand(NOW)
    home = tmp_path / "before"
    home.mkdir()
    disk = RecordingDisk(str(home), seed)
    broker = Broker(rng, clock)
    disk.crash_after = rng.randint(1, most)
    try:
        store = opened(home, clock, disk)
        while True:
            broker.step(store)
            if rng.random() < 0.02:
                store.close()
                store = opened(home, clock, disk)
    except Crash:
        disk.rebuild(str(tmp_path / "after"))
    return broker, tmp_path / "after", clock


@pytest.mark.parametrize("seed", range(40))
def test_no_message_that_was_on_the_device_is_lost(seed: int, tmp_path: Path) -> None:
    broker, left, clock = power_cut(seed, tmp_path, 300 if seed % 2 else 1500)

    store = opened(left, clock)
    enter_all(store, clock.now_ms)
    broker.deliver(store, clock.now_ms + 100 * SECOND)

    assert broker.synced <= delivered(store)
    assert store.timers.pending == 0 or only_marks(store)
    assert store.timers.queue_offset == store.queue_bounds(TIMER_TOPIC, 0)[1]
    store.close()


def only_marks(store: MessageStore) -> bool:
    slot = read_slot(store, store.timers.next_slot(0) or 0, page=10)
    return bool((slot.records().magics & DELETE).all())


@pytest.mark.parametrize("seed", range(40, 46))
def test_power_may_fail_again_during_recovery(seed: int, tmp_path: Path) -> None:
    broker, left, clock = power_cut(seed, tmp_path, 1500)
    rng = random.Random(seed)
    for attempt in range(3):
        disk = RecordingDisk(str(left), seed + attempt)
        disk.crash_after = rng.randint(0, 40)
        with contextlib.suppress(Crash):
            store = opened(left, clock, disk)
            enter_all(store, clock.now_ms)
            store.tick()
            store._close_files()
        left = tmp_path / f"after {attempt}"
        disk.rebuild(str(left))

    store = opened(left, clock)
    enter_all(store, clock.now_ms)
    broker.deliver(store, clock.now_ms + 100 * SECOND)

    assert broker.synced <= delivered(store)
    store.close()
