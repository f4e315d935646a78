"""Producers over a cluster in memory, and what they send."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from pocketmq.client import AsyncProducer, Message
from pocketmq.proto.clock import VirtualClock

from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections


def producer(
    cluster: FakeCluster,
    clock: VirtualClock | None = None,
    nameservers: str = "127.0.0.1:9876",
    **settings: Any,
) -> AsyncProducer:
    return AsyncProducer(
        nameservers,
        clock=clock or VirtualClock(),
        connections=FakeConnections(cluster),
        random=Random(7),
        **settings,
    )


def messages(count: int, topic: str = "orders") -> list[Message]:
    return [Message(topic, b"%d" % number) for number in range(count)]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never came true")
