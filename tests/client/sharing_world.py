"""Members of a group that share the queues of brokers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from pocketmq.client.config import ReadingConfig
from pocketmq.client.consuming.held_queue import HeldQueue
from pocketmq.client.consuming.parts import ConsumerParts
from pocketmq.client.consuming.sharing import GroupAssignment
from pocketmq.client.queue import Queue
from pocketmq.client.session import Session
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_broker import FakeBroker, add_topic
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections


class Reader:
    """Notes what it may read; ends as fast as it is told to."""

    def __init__(self) -> None:
        self.held: dict[Queue, HeldQueue] = {}
        self.ended: list[tuple[Queue, bool]] = []
        self.errors: list[PocketMQError] = []
        #: Ends wait for it.
        self.may_end = asyncio.Event()
        self.may_end.set()

    def begin(self, held: HeldQueue) -> None:
        assert held.queue not in self.held, "begin and end alternate"
        self.held[held.queue] = held

    async def end(self, queue: Queue, *, lost: bool) -> None:
        try:
            await self.may_end.wait()
        finally:
            del self.held[queue]
            self.ended.append((queue, lost))

    def fail(self, error: PocketMQError) -> None:
        self.errors.append(error)

    @property
    def numbers(self) -> list[int]:
        return sorted(queue.number for queue in self.held)


class Member:
    """A member of the group and what it reads."""

    def __init__(self, world: World, topics: Iterable[str], **settings: Any) -> None:
        self.reader = Reader()
        config = ReadingConfig(**settings)
        connections = FakeConnections(world.cluster)
        self.session = Session(config, connections, world.clock, world.random)
        self.parts = ConsumerParts("billing", config, self.session)
        wanted = {topic: pb.Filter() for topic in topics}
        self.sharing = GroupAssignment(wanted, self.reader, self.parts, "pull")

    @property
    def numbers(self) -> list[int]:
        return self.reader.numbers

    async def close(self) -> None:
        await self.sharing.close()
        await self.session.close()

    async def die(self) -> None:
        """End without a word."""
        await self.session.tasks.close()


class World:
    """A cluster, a clock, members."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.cluster = FakeCluster(*brokers) if brokers else FakeCluster.of_one("orders")
        self.clock = VirtualClock()
        self.cluster.live_by(self.clock)
        self.random = Random(5)
        self.members: list[Member] = []

    @property
    def groups(self) -> Any:
        return self.cluster.broker.sharing

    async def join(self, *topics: str, **settings: Any) -> Member:
        member = Member(self, topics or ["orders"], **settings)
        self.members.append(member)
        member.sharing.start()
        await self.clock.advance(10)
        return member


@asynccontextmanager
async def world(*brokers: FakeBroker) -> AsyncIterator[World]:
    made = World(*brokers)
    try:
        yield made
    finally:
        for member in made.members:
            member.reader.may_end.set()
            await member.session.close()


# ------------------------------------------------------------ the coordinator


def two_brokers() -> list[FakeBroker]:
    brokers = [FakeBroker("broker-a", "127.0.0.1:1"), FakeBroker("broker-b", "127.0.0.1:2")]
    for broker in brokers:
        add_topic(broker, "orders", 2)
    return brokers
