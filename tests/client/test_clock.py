"""Asking several brokers for their time, and moving it."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.client.administration.clocks import AsyncClockAdmin, BrokerClock
from pocketmq.proto.clock import Clock, SystemClock, VirtualClock
from pocketmq.proto.errors import InvalidArgument, RouteNotFound, Unsupported
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_broker import FakeBroker
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnection, FakeConnections

NOW_MS = 1_700_000_000_000


class Connection(FakeConnection):
    """A broker that has a clock, and calls as pocketmq.v1 says."""

    clock: Clock

    async def call(self, path: str, request: Any, reply_type: type[Any], timeout_ms: float) -> Any:
        method = path.rpartition("/")[2]
        if method not in ("Now", "AdvanceClock"):
            return await super().call(path, request, reply_type, timeout_ms)
        virtual = isinstance(self.clock, VirtualClock)
        if isinstance(request, pb.AdvanceClockRequest):
            assert isinstance(self.clock, VirtualClock), "the client asks first"
            await self.clock.advance(request.by_ms)
        return pb.ClockReply(now_ms=self.clock.now_ms(), virtual=virtual)


class ClockedConnections(FakeConnections):
    """Brokers "a", "b", … with CLOCKS."""

    def __init__(self, *clocks: Clock) -> None:
        self.clocks = {f"{chr(97 + at)}:1": clock for at, clock in enumerate(clocks)}
        self.cluster = FakeCluster(*(FakeBroker(address[0], address) for address in self.clocks))
        super().__init__(self.cluster)

    def to(self, address: str) -> FakeConnection:
        if address not in self.clocks:
            return super().to(address)
        connection = Connection(self.cluster, address)
        connection.clock = self.clocks[address]
        return connection


async def test_all_brokers_are_asked_and_moved() -> None:
    connections = ClockedConnections(VirtualClock(NOW_MS), VirtualClock(NOW_MS + 7))
    async with AsyncClockAdmin("n1:1", connections=connections) as clocks:
        assert await clocks.now() == [
            BrokerClock("a", "a:1", NOW_MS, True),
            BrokerClock("b", "b:1", NOW_MS + 7, True),
        ]
        assert [clock.now_ms for clock in await clocks.advance(50)] == [NOW_MS + 50, NOW_MS + 57]


@pytest.mark.parametrize("broker", ["b", "b:1"])
async def test_one_broker_is_chosen_by_name_or_address(broker: str) -> None:
    connections = ClockedConnections(VirtualClock(NOW_MS), VirtualClock(NOW_MS))
    async with AsyncClockAdmin("n1:1", broker, connections=connections) as clocks:
        assert await clocks.advance(50) == [BrokerClock("b", "b:1", NOW_MS + 50, True)]
    assert connections.clocks["a:1"].now_ms() == NOW_MS


async def test_none_is_moved_if_one_cannot_be() -> None:
    connections = ClockedConnections(VirtualClock(NOW_MS), SystemClock())
    async with AsyncClockAdmin("n1:1", connections=connections) as clocks:
        with pytest.raises(Unsupported, match="cannot advance the clock of broker b"):
            await clocks.advance(50)
    assert connections.clocks["a:1"].now_ms() == NOW_MS


async def test_what_brokers_refuse_and_who_is_not_there() -> None:
    connections = ClockedConnections(VirtualClock(NOW_MS))
    async with AsyncClockAdmin("n1:1", connections=connections) as clocks:
        with pytest.raises(InvalidArgument, match="by_ms is -5"):
            await clocks.advance(-5)
    connections = ClockedConnections(VirtualClock(NOW_MS))
    async with AsyncClockAdmin("n1:1", "z", connections=connections) as clocks:
        with pytest.raises(RouteNotFound, match="known: a"):
            await clocks.now()
