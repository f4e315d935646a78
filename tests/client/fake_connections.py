"""Connections that call a cluster in memory directly, so that a virtual clock drives everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from pocketmq.proto.errors import ClientClosed, ConnectFailed, PocketMQError
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_cluster import FakeCluster
from .fake_streams import MemoryConversation


class FakeConnection:
    """A connection that calls the cluster's handlers."""

    def __init__(self, cluster: FakeCluster, address: str) -> None:
        self.address = address
        self._cluster = cluster
        self._closed = False

    def _check(self) -> None:
        self._cluster.asked.append(self.address)
        if self._closed:
            raise ClientClosed(f"the connection to {self.address} was closed")
        if self.address in self._cluster.lost:
            raise ConnectFailed(f"cannot reach {self.address}")

    async def call(
        self, path: str, request: Message, reply_type: type[Any], timeout_ms: float
    ) -> Any:
        await asyncio.sleep(0)
        self._check()
        broker = self._cluster.brokers.get(self.address)
        table = self._cluster.methods() if broker is None else broker.methods()
        reply = table[path].handler(request, None)
        return await reply if isinstance(reply, Awaitable) else reply

    async def produce(self, run: pb.ProduceRun, timeout_ms: float) -> pb.ProduceReply:
        await asyncio.sleep(0)
        self._check()
        broker = self._cluster.brokers[self.address]
        reply = broker.produce(run)
        if broker.gate is not None:
            await broker.gate.wait()
        return reply

    async def post(
        self, run: pb.ProduceRun, timeout_ms: float, refused: Callable[[PocketMQError], None]
    ) -> None:
        await asyncio.sleep(0)
        self._check()
        assert run.no_reply
        try:
            self._cluster.brokers[self.address].produce(run)
        except PocketMQError as error:
            refused(error)

    async def fetch(self, request: pb.FetchRequest, timeout_ms: float) -> pb.FetchReply:
        await asyncio.sleep(0)
        self._check()
        broker = self._cluster.brokers[self.address]
        reply = broker.fetch(request)
        if reply.error.name:
            error = from_wire(reply.error)
            error.details |= {
                "min_offset": str(reply.min_offset),
                "max_offset": str(reply.max_offset),
            }
            raise error
        if reply.next_offset == request.offset and request.max_wait_ms:
            stored = asyncio.Event()
            broker.waiting.append(stored.set)
            await stored.wait()
            return await self.fetch(request, timeout_ms)
        return reply

    async def listen(self, listener: pb.TransactionListener) -> AsyncIterator[pb.TransactionCheck]:
        await asyncio.sleep(0)
        self._check()
        while True:
            yield await self._cluster.brokers[self.address].checks.get()

    def converse(self, path: str, request_type: type[Any], reply_type: type[Any]) -> Any:
        broker = self._cluster.brokers[self.address]
        conversation = MemoryConversation(broker.methods()[path], self._check)
        self._cluster.conversations.append(conversation)
        return conversation

    async def close(self) -> None:
        self._closed = True


class FakeConnections:
    """Connections to a cluster in memory; every address that is no broker is a name server."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._open: dict[str, FakeConnection] = {}
        self.closed = False

    def to(self, address: str) -> FakeConnection:
        if address not in self._open:
            self._open[address] = FakeConnection(self._cluster, address)
        return self._open[address]

    async def close(self) -> None:
        self.closed = True
        for connection in self._open.values():
            await connection.close()
