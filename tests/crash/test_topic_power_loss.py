"""Power fails at any moment during sends that make topics, and resets that make groups: what was answered is there.

A seed decides the sends, when the disk has done what, and what of the unsynced survives; a failing case is replayed
by its seed.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consume_stats import ConsumeStats
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.service_v1 import BrokerService
from pocketmq.broker.topics import Topics
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ..broker.messages.sending import Rig
from ..fake_calls import FakeCall
from ..fakes import RecordingDisk
from ..runs import Device, Hand, make_run
from ..store.table_worlds import open_changes


class World:
    """Sends over a store whose two flushing threads are devices, on a disk that loses power."""

    def __init__(self, folder: Path, seed: int) -> None:
        home = folder / "before"
        home.mkdir()
        self.chance = random.Random(seed)
        self.disk = RecordingDisk(str(home), seed)
        self.flusher, self.saver = Device(), Device()
        store = home / "store"
        topics, _ = open_changes(store, disk=self.disk, flusher=self.flusher)
        while self.flusher.jobs:
            self.flusher.do_next()
        self.rig = Rig(home, threads=False, disk=self.disk, changes=topics)
        background = self.rig.store._background
        background.log_flusher = background.group._flusher = self.flusher
        self.rig.topics.table.start(self.saver, lambda function: function())
        self.rig.store.sync_before_log(self.rig.topics.table.when_safe)
        self.topics: list[str] = []

    async def step(self) -> None:
        match self.chance.randrange(20):
            case 0:
                self.rig.topics.table.tick()
            case 1:
                self.saver.do_next()
            case choice if choice < 10:
                self.flusher.do_next()
            case _:
                await self.rig.send(*map(self.run, range(self.chance.randint(1, 3))))

    def run(self, _: int) -> pb.ProduceRun:
        """Return a run for a topic, mostly one that is not there yet; its id is the topic's place in `topics`."""
        is_new = not self.topics or self.chance.random() < 0.7
        number = len(self.topics) if is_new else self.chance.randrange(len(self.topics))
        if is_new:
            self.topics.append(f"made-{number}")
        run = make_run(self.topics[number], 0, [b"body"])
        return pb.ProduceRun(
            run_id=number,
            topic=run.topic,
            queue=run.queue,
            records=bytes(run.records),
            sizes=run.columns.sizes,
            durability=pb.DISK,
        )

    def acknowledged(self) -> set[str]:
        """Return the topics of the sends that were acknowledged."""
        assert not any(reply.HasField("error") for reply in self.rig.replies)
        return {self.topics[reply.run_id] for reply in self.rig.replies}

    def left(self, target: Path) -> set[str]:
        """Return the topics that a broker has which starts, at TARGET, on what a power cut leaves now."""
        self.disk.rebuild(str(target))
        store = target / "store"
        file = StateFile(OsDisk(), str(store), "topics.json")
        return set(Topics(file, BrokerConfig(), lambda: 0, changes=open_changes(store)[0]).names())


@pytest.mark.parametrize("seed", range(1, 7))
async def test_what_was_acknowledged_as_disk_has_its_topic(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path, seed)
    seen: set[str] = set()
    for number in range(40):
        await world.step()
        if (acknowledged := world.acknowledged()) != seen:
            seen = acknowledged
            assert seen <= world.left(tmp_path / str(number))

    while world.flusher.jobs:
        world.flusher.do_next()
    assert world.acknowledged() == set(world.topics)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_reset_of_offsets_that_was_answered_has_its_group_and_its_offsets(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    home = tmp_path / "before"
    home.mkdir()
    disk = RecordingDisk(str(home), seed)
    flusher, saver = Device(), Device()
    _, changes = open_changes(home, disk=disk, flusher=flusher)
    file = StateFile(disk, str(home), "subscriptionGroup.json")
    groups = Groups(file, BrokerConfig(), Hand(), changes)
    offsets = Offsets(StateFile(disk, str(home), "consumerOffset.json"), Hand())
    groups.table.start(saver, lambda function: function())
    offsets.start(saver, lambda function: function())
    told = SimpleNamespace(consume_stats=ConsumeStats())
    service = BrokerService(BrokerConfig(), None, None, groups, offsets, told, None)  # type: ignore[arg-type]
    calls: dict[str, FakeCall] = {}
    answered: list[str] = []
    for number in range(30):
        name = f"g{number}"
        groups.ensure(name)
        offsets.commit("T", name, 0, number)
        calls[name] = FakeCall()
        service._reply_when_saved(calls[name])
        for _ in range(chance.randrange(4)):
            chance.choice([flusher, saver]).do_next()
        if (now := [name for name, call in calls.items() if call.answers]) != answered:
            answered = now
            left = tmp_path / name
            disk.rebuild(str(left))
            found = StateFile(OsDisk(), str(left), "subscriptionGroup.json")
            there = Groups(found, BrokerConfig(), Hand(), open_changes(left)[1])
            again = Offsets(StateFile(OsDisk(), str(left), "consumerOffset.json"), Hand())
            assert {group.name for group in there.all()} >= set(answered)
            assert all(again.committed("T", name, 0) == int(name[1:]) for name in answered)
    assert answered
