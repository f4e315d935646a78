"""A replica set of servers in one process: scripted masters, and a follower before them, on the real carrier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pocketmq.broker.ports.follower_port import follower_methods
from pocketmq.broker.ports.relays import KnownMaster, Relays
from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import (
    Call,
    Limits,
    MethodTable,
    Stream,
    bidi,
    server_stream,
    service,
    unary,
)
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import StreamCall

V2 = "apache.rocketmq.v2.MessagingService"


class ScriptedMaster:
    """Serves some methods of v2 as its fields say, and remembers what came."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Metadata of each call, in their order.
        self.metadata: list[dict[str, str]] = []
        self.deadlines_ms: list[int | None] = []
        self.heartbeats: list[v2.HeartbeatRequest] = []
        #: Answers wait for it.
        self.gate: Callable[[], Awaitable[object]] | None = None
        self.error: Exception | None = None
        self.cancelled = 0
        #: Bodies that a receive brings.
        self.bodies: list[bytes] = []
        self.sent = 0
        self.telemetry: list[ScriptedTelemetry] = []
        self.carrier = Http2Carrier([self.methods()])
        self.address = ""

    def methods(self) -> MethodTable:
        return service(
            V2,
            {
                "Heartbeat": unary(v2.HeartbeatRequest, v2.HeartbeatResponse, self.heartbeat),
                "ReceiveMessage": server_stream(
                    v2.ReceiveMessageRequest, v2.ReceiveMessageResponse, self.receive
                ),
                "Telemetry": bidi(
                    v2.TelemetryCommand, v2.TelemetryCommand, lambda s: ScriptedTelemetry(self, s)
                ),
            },
        )

    async def heartbeat(self, request: v2.HeartbeatRequest, call: Call) -> v2.HeartbeatResponse:
        self.note(call)
        self.heartbeats.append(request)
        try:
            if self.gate is not None:
                await self.gate()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        call.add_trailing("pocketmq-said-by", self.name)
        return v2.HeartbeatResponse(status=v2.Status(code=v2.OK, message=self.name))

    async def receive(self, request: v2.ReceiveMessageRequest, stream: Stream) -> None:
        self.note(stream)
        try:
            for body in self.bodies:
                stream.send(v2.ReceiveMessageResponse(message=v2.Message(body=body)))
                self.sent += 1
                await stream.drained()
            if self.gate is not None:
                await self.gate()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        stream.add_trailing("pocketmq-said-by", self.name)

    def note(self, context: Any) -> None:
        self.metadata.append(dict(context.metadata))
        self.deadlines_ms.append(context.deadline_ms)

    async def start(self) -> None:
        self.address = f"127.0.0.1:{await self.carrier.start()}"

    async def kill(self) -> None:
        await self.carrier.stop(0)


class ScriptedTelemetry:
    """Answers settings with the master's name."""

    def __init__(self, master: ScriptedMaster, stream: Stream) -> None:
        master.telemetry.append(self)
        self.master = master
        self.stream = stream
        self.taken: list[v2.TelemetryCommand] = []
        self.is_over = False

    def on_message(self, message: v2.TelemetryCommand) -> None:
        self.taken.append(message)
        if self.master.error is not None:
            raise self.master.error
        if message.HasField("settings"):
            self.say(self.master.name)

    def say(self, text: str) -> None:
        self.stream.send(v2.TelemetryCommand(status=v2.Status(code=v2.OK, message=text)))

    def on_end(self) -> None:
        self.stream.finish()

    def on_close(self) -> None:
        self.is_over = True


class Follower:
    """A follower's port, and a client of it."""

    def __init__(self, **bounds: Any) -> None:
        self.master: KnownMaster | None = None
        self.relays = Relays("orders", lambda: self.master, Http2Channel, **bounds)
        self.carrier = Http2Carrier([follower_methods(self.relays)], limits=Limits())
        self.address = ""
        self.channel = Http2Channel("")

    def follow(self, master: ScriptedMaster | Follower, epoch: int = 1) -> None:
        self.master = KnownMaster(master.address, epoch)

    async def heartbeat(self, **how: Any) -> v2.HeartbeatResponse:
        ask = self.channel.unary_unary(
            f"/{V2}/Heartbeat",
            v2.HeartbeatRequest.SerializeToString,
            v2.HeartbeatResponse.FromString,
        )
        reply = await ask(v2.HeartbeatRequest(group=v2.Resource(name="g")), **how)
        assert isinstance(reply, v2.HeartbeatResponse)
        return reply

    async def receive(self) -> StreamCall:
        """Begin to receive; return the stream of messages."""
        call = self.channel.stream_stream(
            f"/{V2}/ReceiveMessage",
            v2.ReceiveMessageRequest.SerializeToString,
            v2.ReceiveMessageResponse.FromString,
        )()
        await call.write(v2.ReceiveMessageRequest())
        await call.done_writing()
        return call

    async def telemetry(self, client: str = "c") -> StreamCall:
        """Open a stream, and send settings."""
        call = self.channel.stream_stream(
            f"/{V2}/Telemetry",
            v2.TelemetryCommand.SerializeToString,
            v2.TelemetryCommand.FromString,
        )(metadata=(("x-mq-client-id", client),))
        await call.write(settings(1))
        return call


def settings(number: int) -> v2.TelemetryCommand:
    """Return settings that can be told from others."""
    return v2.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing(max_body_size=number)))


@asynccontextmanager
async def followed(count: int = 1, **bounds: Any) -> AsyncIterator[tuple[Any, ...]]:
    """Serve a follower and COUNT masters, of which it follows the first; yield all."""
    masters = [ScriptedMaster(f"m{number}") for number in range(1, count + 1)]
    follower = Follower(**bounds)
    for master in masters:
        await master.start()
    follower.address = f"127.0.0.1:{await follower.carrier.start()}"
    follower.channel = Http2Channel(follower.address)
    follower.follow(masters[0])
    try:
        yield (follower, *masters)
    finally:
        await follower.channel.close()
        await follower.relays.close()
        await follower.carrier.stop(0)
        for master in masters:
            await master.kill()
