"""A service with one method of each kind that answers what it is asked, and remembers who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pocketmq.proto.errors import QueueNotFound
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import LATER, Call, MethodTable, Stream, bidi, server_stream, service, unary

RUN, REPLY = pb.ProduceRun, pb.ProduceReply


class Echo:
    """A receiver that answers each run with its number, and notes what it hears."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.heard: list[str] = []
        self.closed = asyncio.Event()
        self.hold: Callable[[pb.ProduceRun], Awaitable[None]] | None = None

    def on_message(self, message: pb.ProduceRun) -> Awaitable[None] | None:
        self.heard.append(f"run {message.run_id}")
        if message.topic == "bug":
            raise ZeroDivisionError("a secret")
        if message.topic == "refuse":
            raise QueueNotFound("no queue 9", queue=9)
        self.stream.send(REPLY(run_id=message.run_id, store_host="x" * message.queue))
        return self.hold(message) if self.hold else None

    def on_end(self) -> None:
        self.heard.append("end")
        self.stream.finish()

    def on_close(self) -> None:
        self.heard.append("close")
        self.closed.set()


class EchoService:
    """One method of each kind. What it was called with stays readable."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        #: Those of the last plain call.
        self.certificate_names: Sequence[str] = ()
        self.streams: list[Stream] = []
        self.receivers: list[Echo] = []
        self.arrived = asyncio.Event()
        self.cancelled = asyncio.Event()

    def methods(self) -> MethodTable:
        return service(
            "test.Echo",
            {
                "Plain": unary(RUN, REPLY, self.plain),
                "Slow": unary(RUN, REPLY, self.slow),
                "Count": server_stream(RUN, REPLY, self.count),
                "CountSlowly": server_stream(RUN, REPLY, self.count_slowly),
                "Endless": server_stream(RUN, REPLY, self.endless),
                "Echo": bidi(RUN, REPLY, self.echo),
            },
        )

    def plain(self, request: pb.ProduceRun, call: Call) -> Any:
        self.calls.append(call)
        self.certificate_names = call.certificate_names
        call.on_cancel(self.cancelled.set)
        self.arrived.set()
        match request.topic:
            case "bug":
                raise ZeroDivisionError("a secret")
            case "refuse":
                raise QueueNotFound("no queue 9", queue=9)
            case "later":
                return LATER
            case "at once":
                call.reply(REPLY(run_id=-1))
                return LATER
            case "context":
                text = f"{call.peer} {call.metadata.get('colour')} {call.deadline_ms}"
                return REPLY(store_host=text)
            case "mirror":
                return REPLY(store_host=request.records.decode())
            case "nothing":
                return None
        return REPLY(run_id=request.run_id)

    async def slow(self, request: pb.ProduceRun, call: Call) -> pb.ProduceReply:
        await asyncio.sleep(0)
        if request.topic == "refuse":
            raise QueueNotFound("no queue 9", queue=9)
        if request.topic == "cancelled":
            raise asyncio.CancelledError
        return REPLY(run_id=request.run_id)

    def count(self, request: pb.ProduceRun, stream: Stream) -> None:
        if request.topic == "refuse":
            raise QueueNotFound("no queue 9", queue=9)
        for number in range(request.queue):
            stream.send(REPLY(run_id=number))
        if request.topic == "fail":
            stream.fail(QueueNotFound("no queue 9", queue=9))
        stream.finish()

    async def count_slowly(self, request: pb.ProduceRun, stream: Stream) -> None:
        for number in range(request.queue):
            stream.send(REPLY(run_id=number, store_host="x" * 100_000))
            await stream.drained()
        if request.topic == "bug":
            raise ZeroDivisionError("a secret")
        if request.topic == "cancelled":
            raise asyncio.CancelledError

    def endless(self, request: pb.ProduceRun, stream: Stream) -> None:
        self.streams.append(stream)
        stream.on_cancel(self.cancelled.set)
        self.arrived.set()

    def echo(self, stream: Stream) -> Echo:
        if stream.metadata.get("colour") == "refuse":
            raise QueueNotFound("no queue 9", queue=9)
        self.receivers.append(Echo(stream))
        self.arrived.set()
        return self.receivers[-1]
