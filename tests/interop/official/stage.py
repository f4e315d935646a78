"""What a scenario has at hand: the program of one language, names of its own, a broker, and bare v2 calls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import grpc.aio

from pocketmq.client import AsyncAdmin
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from ...served import ServerProcess
from .driver import Driver, Message
from .programs import Program

#: Short times for what users wait minutes for.
CONFIG: Final = """\
broker:
  transaction_timeout_ms: 2000
  transaction_check_interval_ms: 1000
"""
#: How long a receive waits for messages. Rust gives its call no more time than that.
AWAIT_S: Final = 7
_METHOD: Final = "/apache.rocketmq.v2.MessagingService/"
_MESSAGE_BYTES_MAX: Final = 16 << 20


class Server:
    """`pocketmq serve` on one store and one port, which may be stopped, or killed, and started again."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        (folder / "pocketmq.yaml").write_text(config, encoding="utf-8")
        self._ports: tuple[str, ...] = ()
        self._process = self._start()
        self.address = str(self._process.ready["broker"])
        self.nameserver = self._process.nameserver
        ports = [address.rpartition(":")[2] for address in (self.address, self.nameserver)]
        self._ports = ("--port", ports[0], "--nameserver-port", ports[1])

    def _start(self) -> ServerProcess:
        config = ("--config", str(self._folder / "pocketmq.yaml"))
        return ServerProcess(self._folder / "store", *config, *self._ports)

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def kill_and_start(self) -> None:
        """End it as `kill -9` does, and start it again at the same address."""
        self._process.kill()
        self._process = self._start()

    def stop_and_start(self) -> None:
        """End it cleanly, and start it again at the same address."""
        assert self._process.stop() == 0
        self._process = self._start()

    def stop(self) -> int:
        """End it cleanly; return its exit code."""
        return self._process.stop()


class Peer:
    """Calls of apache.rocketmq.v2 by hand, for what no official client does."""

    def __init__(self, address: str) -> None:
        limits = [
            (f"grpc.max_{way}_message_length", _MESSAGE_BYTES_MAX) for way in ("send", "receive")
        ]
        self._channel: Any = grpc.aio.insecure_channel(address, options=limits)
        self._metadata = (("x-mq-client-id", "peer@1@1@1"), ("x-mq-client-version", "5.1.2"))

    async def send(self, topic: str, body: bytes, *, encoding: int = v2.IDENTITY) -> str:
        """Send BODY; return the id of the message."""
        properties = v2.SystemProperties(
            message_id="01" + body[:8].hex().upper().rjust(32, "0"),
            message_type=v2.NORMAL,
            body_encoding=encoding,  # type: ignore[arg-type]
        )
        message = v2.Message(topic=v2.Resource(name=topic), body=body, system_properties=properties)
        call = self._channel.unary_unary(
            _METHOD + "SendMessage",
            v2.SendMessageRequest.SerializeToString,
            v2.SendMessageResponse.FromString,
        )
        reply = await call(v2.SendMessageRequest(messages=[message]), metadata=self._metadata)
        assert reply.status.code == v2.OK, reply
        return str(reply.entries[0].message_id)

    async def receive(self, topic: str, group: str) -> list[bytes]:
        """Return the bodies of what a receive brings."""
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=group),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=topic)),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
            batch_size=32,
        )
        request.invisible_duration.FromSeconds(60)
        request.long_polling_timeout.FromSeconds(AWAIT_S)
        call = self._channel.unary_stream(
            _METHOD + "ReceiveMessage",
            v2.ReceiveMessageRequest.SerializeToString,
            v2.ReceiveMessageResponse.FromString,
        )
        stream = call(request, metadata=self._metadata, timeout=AWAIT_S + 5)
        replies = [reply async for reply in stream]
        found = [reply.message.body for reply in replies if reply.HasField("message")]
        assert found, f"nothing came: {replies}"
        return found

    async def close(self) -> None:
        await self._channel.close()


class Stage:
    """One scenario of one language: DRIVER runs the clients, TITLE is in all names."""

    def __init__(self, driver: Driver, admin: AsyncAdmin, peer: Peer, title: str) -> None:
        self.driver = driver
        self.program: Program = driver.program
        self.peer = peer
        self._admin = admin
        self._title = f"{driver.program.name}-{title}"
        self._numbers = itertools.count(1)
        self._clients: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Shut down what is still there, but for push consumers: these wait until their receives end."""
        closed = [client for client in self._clients if "-push" not in client]
        await asyncio.gather(*map(self.close, closed), return_exceptions=True)

    def name(self, what: str) -> str:
        """Return a name for a WHAT that nobody else has."""
        return f"{self._title}-{what}{next(self._numbers)}"

    async def topic(self, type: str = "NORMAL", queues: int = 4) -> str:
        """Return a new topic."""
        topic = self.name(type.lower())
        await self._admin.create_topic(topic, type=type, queues=queues)
        return topic

    async def group(self, **settings: Any) -> str:
        """Return a new group."""
        group = self.name("group")
        await self._admin.create_group(group, **settings)
        return group

    async def producer(self, topic: str, **settings: Any) -> str:
        """Return a new producer."""
        return await self._client("producer", topics=[topic], **settings)

    async def simple(self, topic: str, group: str | None = None, **settings: Any) -> str:
        """Return a new simple consumer."""
        group = group or await self.group()
        return await self._client("simple", topic=topic, group=group, await_s=AWAIT_S, **settings)

    async def push(self, topic: str, group: str | None = None, **settings: Any) -> str:
        """Return a new push consumer."""
        group = group or await self.group()
        return await self._client("push", topic=topic, group=group, **settings)

    async def _client(self, kind: str, **settings: Any) -> str:
        name = self.name(kind)
        await self.driver(kind, name=name, **settings)
        self._clients.append(name)
        return name

    async def close(self, client: str) -> None:
        """Shut CLIENT down."""
        self._clients.remove(client)
        await self.driver("close", client=client)

    async def send(self, producer: str, topic: str, body: str, **settings: Any) -> str:
        """Send BODY; return the id of the message."""
        reply = await self.driver("send", client=producer, topic=topic, body=body, **settings)
        return str(reply["message_id"])

    async def receive(
        self, consumer: str, *, batch: int = 32, invisible_s: float = 60
    ) -> list[Message]:
        """Return what one receive brings, nothing perhaps."""
        reply = await self.driver("receive", client=consumer, count=batch, invisible_s=invisible_s)
        found: list[Message] = reply["messages"]
        return found

    async def collect(
        self, consumer: str, count: int, *, timeout_s: float = 40, **settings: Any
    ) -> list[Message]:
        """Receive until COUNT messages are there, in their order, none acknowledged."""
        found: list[Message] = []
        try:
            async with asyncio.timeout(timeout_s):
                while len(found) < count:
                    found += await self.receive(consumer, **settings)
        except TimeoutError:
            bodies = [message["body"] for message in found]
            raise AssertionError(f"{len(found)} of {count} messages came: {bodies}") from None
        return found

    async def ack(self, consumer: str, messages: Iterable[Message]) -> None:
        """Acknowledge MESSAGES."""
        calls = [
            self.driver("ack", client=consumer, number=message["number"]) for message in messages
        ]
        await asyncio.gather(*calls)

    async def consume(self, consumer: str, count: int, **settings: Any) -> list[Message]:
        """Receive COUNT messages and acknowledge them."""
        found = await self.collect(consumer, count, **settings)
        await self.ack(consumer, found)
        return found

    async def pushed(self, consumer: str, count: int) -> list[Message]:
        """Return the next COUNT messages that a push consumer's listener was called with."""
        return [await self.driver.event(consumer) for _ in range(count)]


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[tuple[AsyncAdmin, Peer]]:
    """Connect to SERVER."""
    peer = Peer(server.address)
    try:
        async with AsyncAdmin(server.nameserver) as admin:
            yield admin, peer
    finally:
        await peer.close()
