"""Power fails at any moment during transactions: none whose half message was safe is lost, none is delivered wrongly.

A seed decides the traffic, the moment, and what of the unsynced survives; a failing case is replayed by its seed.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import CHECK_MAX_TIME_TOPIC
from pocketmq.store.disk import Disk
from pocketmq.store.os_disk import OsDisk

from ..broker.transactions.transacting import Hall, hall_config
from ..fake_calls import FakeCall
from ..fakes import Crash, RecordingDisk

CHECKS_MAX = 3


def hall(path: Path, disk: Disk, clock: VirtualClock) -> Hall:
    config = hall_config(path, log_file_size_bytes=16_384, queue_file_size_bytes=400)
    made = Hall(config, disk, clock, transaction_checks_max=CHECKS_MAX)
    made.start()
    return made


class Traffic:
    """Seeded transactions; remembers what was asked for, and of what the log was safe then."""

    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.begun: list[str] = []
        self.asked: dict[str, bool] = {}
        self.safely_begun: set[str] = set()
        self.safely_asked: set[str] = set()

    async def step(self, broker: Hall) -> None:
        choice = self.rng.random()
        if choice < 0.35:
            ids = [f"t{len(self.begun) + number}" for number in range(self.rng.choice([1, 1, 4]))]
            self.begun += ids  # Before the call: a crash inside it may leave them all the same.
            broker.begin(*ids)
        elif choice < 0.65 and self.begun:
            self.end(broker)
        elif choice < 0.75:
            await self.clock.advance(self.rng.choice([100, 6_000, 30_000]))
        elif choice < 0.9:
            broker.store.request_sync(broker.store.max_log_offset, lambda error: None)
            self.safely_begun = set(self.begun)
            self.safely_asked = set(self.asked)
        else:
            broker.offsets.save()

    def end(self, broker: Hall) -> None:
        """Say of some open transactions what becomes of them, in one turn."""
        ids = [unique for unique in self.begun if unique not in self.asked]
        for unique in self.rng.sample(ids, min(len(ids), self.rng.choice([1, 2]))):
            if broker.transactions._halves.open.get("P", unique) is None:
                continue  # Given up.
            commit = self.rng.random() < 0.7
            self.asked[unique] = commit
            broker.transactions.end(
                pb.EndTransactionRequest(
                    group="P",
                    topic="T",
                    transaction_id=unique,
                    resolution=pb.COMMIT if commit else pb.ROLLBACK,
                ),
                FakeCall(),
            )
        broker.transactions._decisions.carry_out()

    def check(self, broker: Hall) -> None:
        delivered = Counter(told(broker, "T").values())
        given_up = set(told(broker, CHECK_MAX_TIME_TOPIC).values())
        still_open = {half.transaction_id for half in broker.transactions._halves.open}
        assert set(delivered.values()) <= {1}
        assert still_open.isdisjoint(delivered)
        assert all(self.asked.get(unique) for unique in delivered)
        for unique in self.safely_begun:
            commit = self.asked.get(unique)
            if commit is None:
                assert (unique in still_open) != (unique in given_up)
            elif commit:
                assert (unique in delivered) != (unique in still_open)
        for unique in self.safely_asked:
            assert unique not in still_open
            assert (unique in delivered) == self.asked[unique]


def told(broker: Hall, topic: str) -> dict[int, str]:
    """Return the ids of the messages in TOPIC, by their place in the log.

    One whose properties the power cut damaged, which no checksum guards, is of nobody.
    """
    return {
        record.log_offset: record.body.decode()
        for record in broker.records(topic)
        if record.properties.get("UNIQ_KEY") == record.body.decode()
    }


async def power_cut(seed: int, folder: Path) -> tuple[Traffic, Path]:
    """Run traffic until the power fails; return it with a folder that the crash could have left."""
    clock = VirtualClock()
    home = folder / "before"
    home.mkdir()
    disk = RecordingDisk(str(home), seed)
    traffic = Traffic(seed, clock)
    disk.crash_after = traffic.rng.randint(60, 700)
    broker = None
    # The power fails under a call of this test: what is left of the store is looked at next.
    with suppress(Crash):
        broker = hall(home, disk, clock)
        broker.timers.start()
        while not disk.crashed:
            await traffic.step(broker)
            if traffic.rng.random() < 0.02:
                await broker.timers.stop()
                broker.transactions.close()
                broker.offsets.save()
                broker.store.close()
                traffic.safely_begun, traffic.safely_asked = set(traffic.begun), set(traffic.asked)
                broker = hall(home, disk, clock)
                broker.timers.start()
    if broker is not None:
        await broker.timers.stop()
    disk.rebuild(str(folder / "after"))
    return traffic, folder / "after"


@pytest.mark.parametrize("seed", range(40))
async def test_no_transaction_is_lost_or_delivered_wrongly(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    traffic, left = await power_cut(seed, tmp_path)

    broker = hall(left, OsDisk(), traffic.clock)
    traffic.check(broker)
    await broker.stop()

    broker = hall(left, OsDisk(), traffic.clock)
    assert broker.store.recovery.clean
    traffic.check(broker)
    await broker.stop()
