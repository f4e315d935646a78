"""Power fails at any moment during pops: nothing is lost, and what was answered as safe stays acknowledged.

A seed decides the traffic, the moment, and what of the unsynced survives; a failing case is replayed by its seed.
POCKETMQ_SEEDS=n tries n seeds, from POCKETMQ_SEED on.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pocketmq.broker.pop.receives import PoppedMessage
from pocketmq.proto.errors import InvalidReceiptHandle, PocketMQError
from pocketmq.store.disk import Disk
from pocketmq.store.table_journal import JournalSizes

from ..broker.pop.popping import GROUP, INVISIBLE_MS, TOPIC, Popping, bodies
from ..fakes import Crash, RecordingDisk
from ..runs import records_of

pytestmark = pytest.mark.long

FIRST = int(os.environ.get("POCKETMQ_SEED", "1"))
COUNT = int(os.environ.get("POCKETMQ_SEEDS", "15"))


SIZES = JournalSizes(file=2_048, snapshot=4_096, journal=16_384)


def popping(path: Path, disk: Disk | None, flush: str) -> Popping:
    return Popping(path, sizes=SIZES, disk=disk, flush=flush)  # type: ignore[arg-type]


class Traffic:
    """Seeded sends, pops and ends of deliveries; remembers what was asked for, and what was answered as safe."""

    def __init__(self, seed: int, flush: str) -> None:
        self.random = random.Random(seed)
        self.flush = flush
        self.sent = 0
        self.out: dict[bytes, PoppedMessage] = {}
        #: Safely or not.
        self.acknowledged: set[bytes] = set()
        #: Acknowledged or dead, and answered.
        self.safe: set[bytes] = set()

    async def step(self, broker: Popping) -> None:
        choice = self.random.random()
        if choice < 0.25:
            count = self.random.choice([1, 4])
            broker.send(*(b"%d" % (self.sent + number) for number in range(count)))
            self.sent += count
        elif choice < 0.5:
            got = broker.pop(self.random.choice([1, 3, 8]), invisible_ms=10_000)
            self.out |= dict(zip(bodies(got), got, strict=True))
        elif choice < 0.8 and self.out:
            self.end(broker, self.random.choice(list(self.out)))
        elif choice < 0.9:
            await broker.clock.advance(self.random.choice([100, 600, 11_000]))
        elif choice < 0.95:
            broker.store.request_sync(broker.store.max_log_offset, lambda error: None)
        else:
            broker.offsets.save_after_sync(
                partial(broker.store.request_sync, broker.store.max_log_offset)
            )

    def end(self, broker: Popping, body: bytes) -> None:
        handle = self.out[body].handle
        try:
            if self.random.random() < 0.2:
                broker.pops.forward_to_dead_letters(GROUP, TOPIC, handle, "asked for")
            else:
                self.acknowledged.add(body)  # Before the call: a crash in it may leave that.
                broker.pops.acknowledge(GROUP, TOPIC, handle)
        except InvalidReceiptHandle:
            del self.out[body]
            return
        broker.pops.when_safe(partial(self.note_safe, body))

    def note_safe(self, body: bytes, error: PocketMQError | None) -> None:
        if error is None and self.flush == "sync":
            self.safe.add(body)

    async def check(self, broker: Popping) -> None:
        """Have BROKER deliver all that it has: everything in its log comes, unless it was ended."""
        stored = {record.body for record in records_of(broker.store, TOPIC, 0)}
        come: set[bytes] = set()
        for _ in range(40):
            await broker.clock.advance(20_000)
            got = broker.pop(32)
            broker.ack(*got)
            come |= set(bodies(got))
        dead = {body for body, _ in broker.dead()}
        assert stored - come - dead <= self.acknowledged
        assert self.safe.isdisjoint(come)
        assert broker.committed() == broker.store.queue_bounds(TOPIC, 0)[1]


async def power_cut(seed: int, flush: str, folder: Path) -> tuple[Traffic, Path, int]:
    """Run traffic until the power fails; return it with a folder that the crash could have left, and the time."""
    home = folder / "before"
    (home / "store").mkdir(parents=True)
    disk = RecordingDisk(str(home), seed)
    traffic = Traffic(seed, flush)
    disk.crash_after = traffic.random.randint(80, 700)
    broker = None
    # The power fails under a call of this test: what is left of the store is looked at next.
    with suppress(Crash):
        broker = popping(home, disk, flush)
        broker.group(retry_times_max=2)
        while not disk.crashed:
            await traffic.step(broker)
            if traffic.random.random() < 0.02:
                await broker.restart()
    if broker is not None:
        broker.kill()
        await broker.timers.stop()
        await broker.ticks.stop()
    disk.rebuild(str(folder / "after"))
    now_ms = broker.clock.now_ms() if broker is not None else 0
    return traffic, folder / "after", now_ms


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
async def test_nothing_is_lost(
    seed: int, flush: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    traffic, left, now_ms = await power_cut(seed, flush, tmp_path)

    broker = popping(left, None, flush)
    await broker.clock.advance(max(1, now_ms - broker.clock.now_ms()))
    await traffic.check(broker)
    await broker.stop()


async def lost_dead_letter(folder: Path) -> None:
    """Leave a store in FOLDER that lost power: the bytes of a dead letter are gone, and a record follows them."""
    broker = popping(folder, None, "sync")
    broker.send(b"a", b"b")
    (first,) = broker.pop(1)
    begin = broker.store.max_log_offset
    broker.pops.forward_to_dead_letters(GROUP, TOPIC, first.handle, "asked for")
    end = broker.store.max_log_offset
    assert await broker.safe() is None
    broker.send(b"c")
    await broker.stop(clean=False)
    with (folder / "store/commitlog/00000000000000000000").open("r+b") as log:
        log.seek(begin)
        log.write(bytes(end - begin))


async def start_and_end(folder: Path, crash_after: int) -> RecordingDisk:
    """Start a broker in FOLDER, which ends after so many operations of its disk."""
    disk = RecordingDisk(str(folder), crash_after)
    disk.crash_after = crash_after
    with suppress(Crash):
        broker = popping(folder, disk, "sync")
        broker.kill()
        await broker.timers.stop()
        await broker.ticks.stop()
    return disk


@pytest.mark.parametrize("way", ["killed", "power lost"])
async def test_a_start_that_ends_early_does_not_forget_what_the_log_lost(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    await lost_dead_letter(tmp_path / "damaged")
    for crash_after in range(1_000):
        home = tmp_path / f"{crash_after}"
        shutil.copytree(tmp_path / "damaged", home / "start")
        disk = await start_and_end(home / "start", crash_after)
        if way == "killed":
            shutil.copytree(home / "start", home / "left")
        else:
            disk.rebuild(str(home / "left"))
        broker = popping(home / "left", None, "sync")
        await broker.clock.advance(INVISIBLE_MS)
        assert sorted(bodies(broker.pop())) == [b"a", b"b", b"c"], crash_after
        await broker.stop()
        shutil.rmtree(home)
        if not disk.crashed:
            return
