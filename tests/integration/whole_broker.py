"""A whole broker in this process, on a real loopback connection and a small store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from pocketmq.broker.broker import Broker
from pocketmq.nameserver import NameServer
from pocketmq.proto.clock import Clock, SystemClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.errors_wire import from_rpc_error, from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Host, encode_run
from pocketmq.store.config import StoreConfig
from pocketmq.store.disk import Disk
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config, nameserver_config

PATH = "/pocketmq.v1.Broker/"
TOPIC = "T"
EOF = getattr(grpc.aio, "EOF")  # noqa: B009 (the stubs lack it)


def store_config(folder: Path, **settings: Any) -> StoreConfig:
    """Return the settings of a store with small files."""
    small: dict[str, Any] = {
        "log_file_size_bytes": 1 << 20,
        "queue_file_size_bytes": 6_000,
        "index_slots": 100,
        "index_entries": 400,
    }
    return StoreConfig(path=str(folder / "store"), **{**small, **settings})


@asynccontextmanager
async def serving(store: StoreConfig) -> AsyncIterator[tuple[str, Broker]]:
    """Serve STORE; yield the address of its name server, and its broker."""
    server = NameServer.build(nameserver_config(port=0), clock=SystemClock())
    await server.start()
    config = broker_config(port=0, nameservers=(server.address,))
    broker = Broker.build(config, store, disk=OsDisk(), clock=SystemClock())
    await broker.start()
    assert await broker.registered(60)
    try:
        yield server.address, broker
    finally:
        await broker.stop()
        await server.stop()


def run_of(
    bodies: Sequence[bytes], *, queue: int = 0, run_id: int = 1, **fields: Any
) -> pb.ProduceRun:
    """Return a good run of messages."""
    records, sizes = encode_run(
        TOPIC,
        queue,
        [(body, b"KEYS\x01key\x02TAGS\x01red\x02") for body in bodies],
        born_timestamp_ms=1_700_000_000_000,
        born_host=Host.parse("127.0.0.1", 1),
    )
    return pb.ProduceRun(
        run_id=run_id, topic=TOPIC, queue=queue, records=records, sizes=sizes, **fields
    )


class Peer:
    """A client of the broker, by bare calls."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel: Any = channel

    async def ask(self, method: str, request: Any, reply: Any) -> Any:
        """Call a unary method; raise what the broker raised."""
        call = self.channel.unary_unary(
            PATH + method, type(request).SerializeToString, reply.FromString
        )
        try:
            return await call(request)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def create_topic(self, queues: int = 4) -> None:
        config = pb.TopicConfig(name=TOPIC, read_queues=queues, write_queues=queues, permission=6)
        await self.ask("CreateTopic", pb.CreateTopicRequest(topic=config), pb.TopicReply)

    async def produce(self, run: pb.ProduceRun) -> pb.ProduceReply:
        """Send RUN on a stream of its own; raise what the broker answers to it."""
        stream = self.channel.stream_stream(
            PATH + "Produce", pb.ProduceRun.SerializeToString, pb.ProduceReply.FromString
        )()
        try:
            await stream.write(run)
            reply: Any = await stream.read()
            await stream.done_writing()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        if reply.HasField("error"):
            raise from_wire(reply.error)
        return reply  # type: ignore[no-any-return]

    async def fetch(self, offset: int = 0, queue: int = 0) -> pb.FetchReply:
        """Fetch what is there."""
        return await self.fetch_of(
            pb.FetchRequest(fetch_id=1, topic=TOPIC, queue=queue, offset=offset)
        )

    async def fetch_of(self, request: pb.FetchRequest) -> pb.FetchReply:
        """Return what REQUEST is answered with."""
        stream = self.channel.stream_stream(
            PATH + "Fetch", pb.FetchRequest.SerializeToString, pb.FetchReply.FromString
        )()
        await stream.write(request)
        reply: pb.FetchReply = await stream.read()
        await stream.done_writing()
        return reply

    async def refusal(self, run: pb.ProduceRun) -> PocketMQError:
        """Return the error that RUN is answered with."""
        try:
            await self.produce(run)
        except PocketMQError as error:
            return error
        raise AssertionError("the run was acknowledged")


@asynccontextmanager
async def broker(
    store: StoreConfig,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    wall: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Broker, Peer]]:
    """Run a broker that registers nowhere, and connect to it as our own clients do."""
    config = broker_config(port=0, nameservers=(), **settings)
    server = Broker.build(
        config, store, disk=disk or OsDisk(), clock=clock or SystemClock(), wall=wall
    )
    await server.start()
    try:
        async with grpc.aio.insecure_channel(
            server.address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            yield server, Peer(channel)
    finally:
        await server.stop()
