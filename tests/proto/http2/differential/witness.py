"""A service of every kind of method that tells what its handlers saw of each case, by the number that the case says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import Message

from pocketmq.proto.errors import QueueNotFound
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import (
    LATER,
    Call,
    CallContext,
    Later,
    MethodTable,
    Stream,
    bidi,
    server_stream,
    service,
    unary,
)

RUN, REPLY = pb.ProduceRun, pb.ProduceReply
#: The metadata that numbers a case.
CASE = "x-case"
#: What carriers add or leave out as they please.
_OF_CLIENTS = ("user-agent", "host")


@dataclass
class Sight:
    """What the handler of one case saw. METADATA is what the caller said, without the number of the case."""

    requests: list[bytes] = field(default_factory=list)
    metadata: tuple[tuple[str, str], ...] = ()
    has_deadline: bool = False
    cancelled: bool = False
    #: A request has come.
    arrived: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)

    def take(self, request: Message) -> None:
        self.requests.append(request.SerializeToString())
        self.arrived.set()

    def enter(self, context: CallContext) -> None:
        self.metadata = _said(context.metadata)
        self.has_deadline = context.deadline_ms is not None
        context.on_cancel(self._cancel)

    def _cancel(self) -> None:
        self.cancelled = True


def _said(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    items = metadata.items()
    return tuple(sorted(item for item in items if item[0] not in (CASE, *_OF_CLIENTS)))


class WireObserver:
    """The handlers, and what they saw."""

    def __init__(self) -> None:
        self.sights: defaultdict[str, Sight] = defaultdict(Sight)
        self.arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.gone: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def methods(self) -> MethodTable:
        return service(
            "test.Witness",
            {
                "Plain": unary(RUN, REPLY, self.plain),
                "Slow": unary(RUN, REPLY, self.slow),
                "Later": unary(RUN, REPLY, self.later),
                "Fail": unary(RUN, REPLY, self.fail),
                "Count": server_stream(RUN, REPLY, self.count),
                "Talk": bidi(RUN, REPLY, self.talk),
            },
        )

    def enter(self, context: CallContext) -> Sight:
        number = context.metadata.get(CASE, "")
        sight = self.sights[number]
        sight.enter(context)
        context.on_cancel(self.gone[number].set)
        sight.arrived = self.arrived[number]
        return sight

    def plain(self, request: pb.ProduceRun, call: Call) -> pb.ProduceReply:
        self.enter(call).take(request)
        call.add_trailing("x-trailing", "said")
        return REPLY(run_id=request.run_id)

    async def slow(self, request: pb.ProduceRun, call: Call) -> pb.ProduceReply:
        self.enter(call).take(request)
        await asyncio.sleep(0)
        return REPLY(run_id=request.run_id)

    def later(self, request: pb.ProduceRun, call: Call) -> Later:
        self.enter(call).take(request)
        return LATER

    def fail(self, request: pb.ProduceRun, call: Call) -> pb.ProduceReply:
        self.enter(call).take(request)
        raise QueueNotFound("no queue 9 % ü\n", queue=9)

    def count(self, request: pb.ProduceRun, stream: Stream) -> None:
        self.enter(stream).take(request)
        for number in range(3):
            stream.send(REPLY(run_id=number))
        stream.finish()

    def talk(self, stream: Stream) -> Echo:
        return Echo(stream, self.enter(stream))


class Echo:
    """Answers each message of a talk."""

    def __init__(self, stream: Stream, sight: Sight) -> None:
        self._stream = stream
        self._sight = sight

    def on_message(self, message: pb.ProduceRun) -> None:
        self._sight.take(message)
        self._stream.send(REPLY(run_id=message.run_id))

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        pass
