"""Power fails at any moment, and producers send again what they have no acknowledgement of: everything is stored once.

A message is acknowledged once it is on disk, and some acknowledgements are lost. The disk knows which bytes are surely
there (tests/fakes.py); a seed decides traffic, moment and what survives. A power cut may take a record between others
that were not on disk yet: if it took the one that carries a run's number, what is left of that run is stored again; and
what it took comes back after what is left. Nothing else is stored twice or out of order. A failing case is replayed by
its seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.messages.send import Sends, Waits
from pocketmq.broker.producers.producers import Producers
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.broker.transactions.records import prepare
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import SCHEDULE_TOPIC
from pocketmq.store.disk import Disk
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ..fakes import Crash, RecordingDisk
from ..numbered import numbered_run
from ..runs import records_of, small_config

TOPIC: Final = "T"
QUEUES: Final = 2
#: Runs of a producer that wait for their acknowledgement.
IN_FLIGHT: Final = 3


class Broker:
    """Sends over the store in FOLDER, on DISK."""

    def __init__(self, folder: Path, disk: Disk, clock: VirtualClock) -> None:
        config = BrokerConfig()
        self.store = MessageStore.open(
            small_config(folder, log_file_size_bytes=16_384), disk=disk, now_ms=clock.now_ms
        )
        topics = Topics(StateFile(disk, str(folder), "topics.json"), config, clock.now_ms)
        self.producers = Producers(self.store, clock, producers_max=100, expiry_ms=86_400_000)
        self.producers.start()
        waits = Waits(
            now_ms=clock.now_ms,
            slot_count=lambda slot_ms: 0,
            prepare=prepare,
            check_room=lambda count: None,
        )
        appends = Appender(self.store, lambda key: None)
        self.sends = Sends(
            config, topics, self.store, Timers(clock), appends, waits, self.producers
        )

    def turn(self, runs: list[pb.ProduceRun]) -> list[pb.ProduceReply]:
        """Send RUNS in one turn, and end it; return the answers."""
        replies: list[pb.ProduceReply] = []
        for run in runs:
            self.sends.send(run, replies.append)
        self.sends._append_arrived()
        assert len(replies) == len(runs)
        return replies


class Producing:
    """One producer of one queue: it keeps what is not acknowledged, and sends it again in its order."""

    def __init__(self, producer_id: int, queue: int, rng: random.Random) -> None:
        self.producer_id = producer_id
        self.queue = queue
        self.rng = rng
        self.name = b"%x of %d: " % (producer_id, queue)
        self.next = 0
        self.waiting: list[pb.ProduceRun] = []
        #: Every body that was sent, in order.
        self.sent: list[bytes] = []

    def runs(self) -> list[pb.ProduceRun]:
        """Return what waits, and perhaps a new run after it."""
        if len(self.waiting) < IN_FLIGHT:
            count = self.rng.choice([1, 1, 3, 8])
            names = [self.name + b"%d" % (self.next + row) for row in range(count)]
            sizes = [self.rng.choice([0, 10, 300]) for _ in names]
            waits = self.rng.random() < 0.3
            self.waiting.append(
                numbered_run(
                    [name + b"." * size for name, size in zip(names, sizes, strict=True)],
                    self.next,
                    queue=self.queue,
                    producer_id=self.producer_id,
                    properties=[
                        {"DELAY": "1"} if waits and self.rng.random() < 0.5 else {} for _ in names
                    ],
                    each=waits,
                    durability=pb.DISK,
                )
            )
            self.next += count
            self.sent += names
        return list(self.waiting)

    def heard(self, replies: list[pb.ProduceReply]) -> None:
        """Take the acknowledgements up to the first that is lost."""
        for reply in replies:
            assert not reply.HasField("error"), reply
            if self.rng.random() < 0.4:
                return
            self.waiting.pop(0)


def stored(store: MessageStore, topic: str, queue: int) -> list[tuple[bytes, str]]:
    """Return name and number of everything in a queue."""
    if (topic, queue) not in store.queue_names():
        return []
    return [
        (record.body.rstrip(b"."), record.properties.get("PRODUCER_SEQUENCE", ""))
        for record in records_of(store, topic, queue)
    ]


def everything(store: MessageStore) -> list[tuple[bytes, str]]:
    """Return name and number of all that is stored, also what is scheduled."""
    queues = [(TOPIC, queue) for queue in range(QUEUES)] + [(SCHEDULE_TOPIC, 0)]
    return [one for name in queues for one in stored(store, *name)]


@dataclass
class Damage:
    """What a power cut does to the promise: names that MAY_REPEAT, and names that come LATE."""

    may_repeat: set[bytes] = field(default_factory=set)
    late: set[bytes] = field(default_factory=set)

    def look(self, store: MessageStore, producing: list[Producing]) -> None:
        """See which numbers of runs that wait were lost, and what was lost before others."""
        numbers = dict(everything(store))
        for one in producing:
            last = max((n for n, name in enumerate(one.sent) if name in numbers), default=-1)
            self.late.update(name for name in one.sent[: last + 1] if name not in numbers)
            for run in one.waiting:
                first, count = run.first_sequence, len(run.sizes)
                head = f"{one.producer_id:x}:0:{first}:{count}"
                rows = one.sent[first : first + count]
                if numbers.get(rows[0]) == head:
                    continue
                self.may_repeat.update(
                    name
                    for row, name in enumerate(rows, first)
                    if name in numbers and numbers[name] != f"{one.producer_id:x}:0:{row}:1"
                )


def check(store: MessageStore, producing: list[Producing], damage: Damage) -> None:
    """Everything acknowledged is there, nothing twice, and what is prompt in its order."""
    counts = Counter(name for name, _ in everything(store))
    assert {name for name, count in counts.items() if count > 1} <= damage.may_repeat
    for one in producing:
        acknowledged = one.waiting[0].first_sequence if one.waiting else one.next
        assert counts.keys() >= set(one.sent[:acknowledged])
        order = [
            name
            for name, _ in stored(store, TOPIC, one.queue)
            if name.startswith(one.name) and name not in damage.may_repeat | damage.late
        ]
        assert order == sorted(order, key=one.sent.index)


async def traffic(
    broker: Broker, producing: list[Producing], rng: random.Random, clock: VirtualClock, turns: int
) -> None:
    """Send for TURNS; a crash ends it."""
    for _ in range(turns):
        await clock.advance(rng.randint(0, 300))
        one = rng.choice(producing)
        one.heard(broker.turn(one.runs()))
        if rng.random() < 0.1:
            broker.store.tick()
        if rng.random() < 0.05:
            broker.producers.save()
    await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(25))
async def test_what_is_sent_again_after_a_power_cut_is_stored_once(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    clock = VirtualClock()
    producing = [
        Producing(producer_id, queue, rng) for producer_id in (10, 11) for queue in range(QUEUES)
    ]
    damage = Damage()
    folder = tmp_path / "0"
    folder.mkdir()
    for life in range(3):
        disk = RecordingDisk(str(folder), seed + life)
        disk.crash_after = rng.randint(50, 400)
        try:
            await traffic(Broker(folder, disk, clock), producing, rng, clock, 10_000)
        except Crash:
            folder = tmp_path / str(life + 1)
            disk.rebuild(str(folder))
        # A look at what recovery makes of it, on a copy in memory.
        look = MessageStore.open(
            small_config(folder, log_file_size_bytes=16_384),
            disk=OsDisk(),
            now_ms=clock.now_ms,
            read_only=True,
        )
        damage.look(look, producing)
        look.close()

    broker = Broker(folder, OsDisk(), clock)
    await traffic(broker, producing, rng, clock, 60)

    check(broker.store, producing, damage)
    broker.store.close()
