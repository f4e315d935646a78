"""Groups that share queues, whole: members come, go, die and stall at random, brokers and name servers are lost.

Nothing is lost, whoever dies; what comes twice was handed out and not committed when somebody died, stalled or lost its
broker, and is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pocketmq.broker.groups.leases import LeaseService
from pocketmq.client import AsyncProducer, AsyncPullConsumer, Message
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Call, Later

from .cluster import Client, Cluster, cluster_of
from .virtual_loop import run

TOPIC = "orders"


class Reader:
    """One member of the group, which notes what it handled."""

    def __init__(self, world: World, name: str, **settings: Any) -> None:
        self.client: Client = world.cluster.client(name)
        self.world = world
        self.consumer = AsyncPullConsumer(
            "g",
            TOPIC,
            world.cluster.addresses,
            clock=self.client.machine.clock,
            connections=self.client.connections(),
            random=self.client.random,
            **settings,
        )
        self.stopping = False
        self.task: asyncio.Task[None] | None = None

    async def read(self) -> None:
        await self.consumer.start()
        while not self.stopping:
            try:
                batch = await self.consumer.poll(timeout_ms=500)
            except PocketMQError:
                continue
            await self.client.machine.awake()
            self.world.handled.update(int(body) for body in batch.bodies)
            for message in batch:
                self.world.note(message)
            await self.client.machine.clock.sleep_until(
                self.client.machine.clock.now_ms() + self.world.random.randrange(40)
            )

    async def leave(self) -> None:
        self.stopping = True
        assert self.task is not None
        await self.task
        await self.consumer.close()

    async def die(self) -> int:
        """Die as by kill -9; return how many messages may come again because of it."""
        assert self.task is not None
        counts = self.consumer.metrics()
        self.task.cancel()
        self.client.kill()
        return counts.handed_out


class World:
    """A cluster, a group, and what it has handled."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.handled: Counter[int] = Counter()
        self.readers: list[Reader] = []
        self.number = 0
        #: By queue: the offset behind the highest that anybody has handled.
        self.behind: dict[tuple[str, int], int] = {}
        self.gaps: list[str] = []

    def note(self, message: Any) -> None:
        place = message.broker, message.queue
        behind = self.behind.get(place, 0)
        if message.queue_offset > behind:
            self.gaps.append(f"{place} jumps from {behind} to {message.queue_offset}")
        self.behind[place] = max(behind, message.queue_offset + 1)

    async def join(self, **settings: Any) -> Reader:
        self.number += 1
        reader = Reader(self, f"reader-{self.number}", **settings)
        reader.task = asyncio.ensure_future(reader.read())
        self.readers.append(reader)
        await self.cluster.sleep(10)
        return reader

    async def leave(self, reader: Reader) -> None:
        self.readers.remove(reader)
        await reader.leave()

    async def die(self, reader: Reader) -> None:
        self.readers.remove(reader)
        await reader.die()

    async def end(self) -> None:
        for reader in list(self.readers):
            await self.leave(reader)

    @property
    def repeated(self) -> int:
        return sum(count - 1 for count in self.handled.values())


async def produced(cluster: Cluster, count: int, pace: int = 50) -> None:
    """Send COUNT messages, PACE every 100 ms."""
    client = cluster.client("producer")
    producer = AsyncProducer(
        cluster.addresses,
        clock=client.machine.clock,
        connections=client.connections(),
        random=client.random,
        delivery_timeout_ms=300_000,
    )
    async with producer:
        for first in range(0, count, pace):
            await producer.send_many(
                Message(TOPIC, b"%d" % number) for number in range(first, first + pace)
            )
            await cluster.sleep(100)


async def until_handled(world: World, count: int, limit_ms: int = 300_000) -> None:
    for _ in range(limit_ms // 500):
        if len(world.handled) >= count:
            return
        await world.cluster.sleep(500)
    missing = sorted(set(range(count)) - set(world.handled))
    raise AssertionError(f"{len(missing)} messages are lost: {missing[:10]}…; {world.gaps[:5]}")


async def made(cluster: Cluster, seed: int, queues: int = 4) -> World:
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, queues=queues)
    return World(cluster, seed)


def test_members_that_come_and_go_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=11) as cluster:
            world = await made(cluster, 11)
            sending = asyncio.ensure_future(produced(cluster, 5_000))
            for _ in range(3):
                await world.join()
                await cluster.sleep(1_500)
            await world.leave(world.readers[1])
            await cluster.sleep(1_500)
            await world.join()
            await sending
            await until_handled(world, 5_000)
            await world.end()

            assert world.repeated == 0
            assert world.gaps == []

    run(scenario())


def test_a_member_that_dies_leaves_its_queues_and_only_what_it_had_not_committed_repeats(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=12) as cluster:
            world = await made(cluster, 12)
            sending = asyncio.ensure_future(produced(cluster, 5_000))
            first = await world.join(auto_commit_interval_ms=2_500)
            await world.join(auto_commit_interval_ms=2_500)
            await cluster.sleep(4_300)
            before = first.consumer.metrics().handed_out
            await world.die(first)
            await sending
            await until_handled(world, 5_000)
            await world.end()

            assert 0 < world.repeated < before
            assert world.gaps == []

    run(scenario())


def test_a_static_member_that_restarts_moves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=13) as cluster:
            world = await made(cluster, 13)
            first = await world.join(instance_id="one")
            second = await world.join(instance_id="two")
            await cluster.sleep(5_000)
            mine, others = await first.consumer.assignment(), await second.consumer.assignment()
            moved = second.consumer.metrics().queues_gained
            await world.leave(first)
            await cluster.sleep(5_000)
            again = await world.join(instance_id="one")
            await cluster.sleep(5_000)

            assert len(mine) == len(others) == 4
            assert await again.consumer.assignment() == mine
            assert await second.consumer.assignment() == others
            counts = second.consumer.metrics()
            assert (counts.queues_gained, counts.queues_released) == (moved, 0)
            await world.end()

    run(scenario())


def test_who_polls_renews_its_leases_by_fetching_and_who_pauses_by_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[pb.LeaseRequest] = []
    lease = LeaseService.lease

    def noted(leases: LeaseService, request: pb.LeaseRequest, call: Call) -> pb.LeaseReply | Later:
        requests.append(request)
        return lease(leases, request, call)

    monkeypatch.setattr(LeaseService, "lease", noted)

    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=16) as cluster:
            world = await made(cluster, 16)
            reader = await world.join()
            await cluster.sleep(5_000)
            requests.clear()
            queues = await reader.consumer.assignment()

            await cluster.sleep(300_000)
            assert requests == []
            await reader.consumer.pause(queues)
            await cluster.sleep(300_000)

            assert all(request.wait_ms == 0 for request in requests)
            assert 12 <= len(requests) <= 14, "each of two brokers, every 45 s"
            assert reader.consumer.metrics().queues_lost == 0
            await world.end()

    run(scenario())


@pytest.mark.parametrize("lost", ["broker", "name server"])
def test_a_server_that_is_lost_and_comes_back_costs_nothing(tmp_path: Path, lost: str) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=14) as cluster:
            world = await made(cluster, 14)
            sending = asyncio.ensure_future(produced(cluster, 3_000))
            for _ in range(3):
                await world.join()
            await cluster.sleep(3_000)
            servers: Any = cluster.brokers if lost == "broker" else cluster.name_servers
            for server in servers:
                await server.kill()
                await cluster.sleep(6_000)
                await server.start()
                await cluster.sleep(15_000)
            await sending
            await until_handled(world, 3_000)
            await world.end()

            assert world.repeated == 0
            assert world.gaps == []

    run(scenario())


@pytest.mark.long
@pytest.mark.parametrize("seed", [21, 22])
def test_chaos_loses_nothing(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=seed) as cluster:
            world = await made(cluster, seed)
            random = world.random
            sending = asyncio.ensure_future(produced(cluster, 20_000))
            await world.join()
            for _ in range(25):
                await cluster.sleep(random.randrange(200, 4_000))
                deed = random.choice(["join", "join", "leave", "die", "stall", "broker"])
                if deed == "join" and len(world.readers) < 5:
                    await world.join()
                elif deed == "leave" and len(world.readers) > 1:
                    await world.leave(random.choice(world.readers))
                elif deed == "die" and len(world.readers) > 1:
                    await world.die(random.choice(world.readers))
                elif deed == "stall":
                    machine = random.choice(world.readers).client.machine
                    machine.stall()
                    await cluster.sleep(random.choice([2_000, 40_000]))
                    machine.go_on()
                elif deed == "broker":
                    broker = random.choice(cluster.brokers)
                    await broker.kill()
                    await cluster.sleep(random.choice([500, 5_000]))
                    await broker.start()
            await sending
            await until_handled(world, 20_000)
            await world.end()

    run(scenario())
