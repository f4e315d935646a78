"""Replica sets of whole brokers in which the folder of one replica goes back, and which it starts first and alone.

The others have all that was acknowledged on disk. No master may be elected before one of them comes.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ..numbered import numbered_run
from .broker_campaign import TOPIC, Client
from .replica_brokers import Member, World, simulated_threads
from .virtual_loop import loop_clock, run

BODY = b"m" * 1_000
LOST_BYTES = 30_000
ALONE_MS = 20_000
#: What was acknowledged in the last second before an unclean end may not be on record in the registry.
QUIET_MS = 2_000


class Sender:
    """A producer with acks="replicas", which counts what is acknowledged."""

    def __init__(self, world: World) -> None:
        self._client = Client(world, "producer")
        self.acknowledged = 0

    async def make_topic(self) -> None:
        topic = pb.TopicConfig(name=TOPIC, read_queues=1, write_queues=1, permission=6)
        request = pb.CreateTopicRequest(topic=topic)
        await self._insist(lambda: self._client.ask("CreateTopic", request, pb.TopicReply))

    async def send(self, count: int) -> None:
        for _ in range(count):
            sent = numbered_run([BODY], self.acknowledged, topic=TOPIC, durability=pb.REPLICAS)
            await self._insist(
                lambda sent=sent: self._client.exchange("Produce", sent, pb.ProduceReply)  # type: ignore[misc]
            )
            self.acknowledged += 1

    async def _insist(self, ask: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await ask()
                return
            except (PocketMQError, TimeoutError):
                await self._client.turn()


async def _older_copy(world: World, member: Member, sender: Sender) -> None:
    """Have the folder of MEMBER become a copy that was made before the last messages."""
    assert member.process is not None
    await member.process.stop()
    member.process = None
    copy = world.folder / "copy"
    shutil.copytree(member.root, copy)
    await world.come_to_rest()
    await sender.send(60)
    await world.come_to_rest()
    await _kill_all(world)
    _replace_folder(member, copy)


async def _lost_tail(world: World, member: Member, sender: Sender) -> None:
    """Have the log of MEMBER lose its end, which was synced since its state was noted."""
    await sender.send(60)
    await world.come_to_rest()
    end = member.store.max_log_offset
    await _kill_all(world)
    copy = world.folder / "copy"
    shutil.copytree(member.root, copy)
    _zero_log(copy / "store" / "commitlog", end - LOST_BYTES, end)
    _replace_folder(member, copy)


def _zero_log(folder: Path, start: int, end: int) -> None:
    for file in sorted(folder.iterdir()):
        base, size = int(file.name), file.stat().st_size
        first, last = max(start - base, 0), min(end - base, size)
        if first < last:
            with file.open("r+b") as log:
                log.seek(first)
                log.write(bytes(last - first))


def _replace_folder(member: Member, folder: Path) -> None:
    shutil.rmtree(member.root)
    folder.rename(member.root)
    member.disk = member._recorded()


async def _kill_all(world: World) -> None:
    """End all processes at once, well after the last message; the record of the set has all of them in sync."""
    await world.clock.sleep(QUIET_MS)
    for member in world.members:
        await member.kill()
    assert len(world.ensemble.history[-1].in_sync) == len(world.members)


async def _story(folder: Path, go_back: Callable[[World, Member, Sender], Awaitable[None]]) -> None:
    with simulated_threads(Random(1)):
        world = World(1, folder, loop_clock(), min_in_sync=2)
        sender = Sender(world)
        await world.start()
        await sender.make_topic()
        await sender.send(10)
        master = await world.come_to_rest()
        outdated = next(one for one in world.members if one is not master)
        other = next(one for one in world.members if one not in (master, outdated))

        await go_back(world, outdated, sender)
        await outdated.start()
        await world.clock.sleep(ALONE_MS)

        assert world.master is None, "a replica that lacks acknowledged messages is master"
        running = outdated.process and outdated.process.node._running
        assert running
        assert running.core.unclean

        await other.start()
        while world.master is None:
            await world.clock.sleep(20)
        assert world.master is other
        elected = await world.come_to_rest()
        for member in world.members:
            assert member.store.queue_bounds(TOPIC, 0) == (0, sender.acknowledged)
            assert not list(member.root.glob("store.set-aside-*"))
        assert elected.process is not None
        await world.stop()


@pytest.mark.parametrize("go_back", [_older_copy, _lost_tail])
def test_a_replica_whose_folder_went_back_waits_for_one_that_has_all(
    tmp_path: Path, go_back: Callable[[World, Member, Sender], Awaitable[None]]
) -> None:
    run(_story(tmp_path, go_back))
