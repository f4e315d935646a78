"""Consumers that reach no name server: what they say at once, and when they give up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.client import AsyncPullConsumer, AsyncPushConsumer
from pocketmq.client.routes import Routes
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConnectionLost, PocketMQError

from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections


async def test_a_consumer_warns_at_once_of_a_wrong_name_server_and_fails_in_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong, cluster, clock = "127.0.0.1:1", FakeCluster.of_one("orders"), VirtualClock()
    cluster.lost.add(wrong)
    connections: Any = FakeConnections(cluster)
    reading = AsyncPullConsumer(
        "g", "orders", wrong, clock=clock, connections=connections, nameserver_timeout_ms=5_000
    )

    async with reading:
        assert await reading.poll(timeout_ms=0) == []
        await clock.advance(1)
        (line,) = [r.message for r in caplog.records if r.levelname == "WARNING"]
        assert line.startswith("name servers not reached, retrying group=g fails_after_ms=5000")
        assert wrong in line
        await clock.advance(4_000)
        assert await reading.poll(timeout_ms=0) == []
        await clock.advance(1_500)
        with pytest.raises(PocketMQError, match=rf"after 5 s, .*{wrong}"):
            await reading.poll(timeout_ms=0)


async def test_a_push_consumer_ends_with_a_wrong_name_server() -> None:
    cluster, clock = FakeCluster.of_one("orders"), VirtualClock()
    cluster.lost.add("127.0.0.1:1")
    connections: Any = FakeConnections(cluster)
    pushing = AsyncPushConsumer(
        "g", "orders", print, "127.0.0.1:1", clock=clock, connections=connections
    )

    running = asyncio.ensure_future(pushing.run())
    await clock.advance(31_000)

    with pytest.raises(ConnectionLost, match="after 30 s, no name server answers"):
        await running


async def test_a_name_server_that_was_there_once_may_go(caplog: pytest.LogCaptureFixture) -> None:
    cluster, clock = FakeCluster.of_one("orders"), VirtualClock()
    connections: Any = FakeConnections(cluster)

    async with AsyncPullConsumer(
        "g", "orders", clock=clock, connections=connections, nameserver_timeout_ms=1_000
    ) as reading:
        await clock.advance(100)
        cluster.lost.add("127.0.0.1:9876")
        await clock.advance(60_000)
        assert await reading.poll(timeout_ms=0) == []


async def test_a_consumer_that_waits_on_says_so_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong, cluster, clock = "127.0.0.1:1", FakeCluster.of_one("orders"), VirtualClock()
    cluster.lost.add(wrong)
    connections: Any = FakeConnections(cluster)

    async with AsyncPullConsumer(
        "g", "orders", wrong, clock=clock, connections=connections, nameserver_timeout_ms=0
    ) as reading:
        await clock.advance(35_000)
        assert await reading.poll(timeout_ms=0) == []

    lines = [r.message for r in caplog.records if "name servers not reached" in r.message]
    assert len(lines) == 4  # At 0, 10, 20 and 30 s.
    assert all(wrong in line and "$POCKETMQ_NAMESERVER" in line for line in lines)


async def test_a_consumer_whose_name_server_knows_no_broker_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, clock = FakeCluster.of_one("orders"), VirtualClock()
    connections: Any = FakeConnections(cluster)
    reading = AsyncPullConsumer("g", "orders", clock=clock, connections=connections)

    async def none(self: Routes) -> dict[str, str]:
        return {}

    monkeypatch.setattr(Routes, "brokers", none)
    async with reading:
        await clock.advance(15_000)
        assert await reading.poll(timeout_ms=0) == []

    lines = [r.message for r in caplog.records if "no broker is registered" in r.message]
    assert len(lines) == 2  # At 0 and 10 s.
    assert all("127.0.0.1:9876" in line for line in lines)
