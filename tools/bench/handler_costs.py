"""The CPU time of the handlers of `apache.rocketmq.v2`, called directly, without a carrier.

It is that of the event loop's thread, with replies serialized.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from ...broker.broker import Broker, Network
from ...broker.config import BrokerConfig
from ...proto.clock import SystemClock
from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as v1, rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, CallContext, Limits, MethodTable, RpcError, Stream
from ...store.config import StoreConfig
from ...store.os_disk import OsDisk

BODY_BYTES: Final = 128
BATCH: Final = 32
_TOPIC: Final = "bench"
_GROUP: Final = "readers"
_TOGETHER: Final = 64
#: The aims: µs a SendMessage, a message of a ReceiveMessage of 32, an AckMessage.
AIMS_US: Final = {"SendMessage": 60.0, "ReceiveMessage": 25.0, "AckMessage": 20.0}
#: What RocketMQ's Java client sends with every call.
_METADATA: Final = {
    "x-mq-client-id": "bench@1@1@1",
    "x-mq-language": "JAVA",
    "x-mq-client-version": "5.2.0",
    "x-mq-protocol": "v2",
}


class _Tables:
    """A carrier that carries nothing: it keeps the handlers that it should serve."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[..., Any]] = {}

    def __call__(self, tables: Iterable[MethodTable], *, limits: Limits) -> _Tables:
        self.handlers = {
            method.path.rpartition("/")[2] if method.path.startswith("/apache") else method.path: (
                method.handler
            )
            for table in tables
            for method in table
        }
        return self

    async def start(self, host: str, port: int) -> int:
        return port or 1

    async def stop(self, grace_s: float) -> None:
        return None


class _Context(CallContext):
    """A caller that is always there."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[bytes] = []
        self.over = asyncio.Event()

    @property
    def peer(self) -> str:
        return "127.0.0.1:1"

    @property
    def metadata(self) -> Mapping[str, str]:
        return _METADATA

    @property
    def deadline_ms(self) -> int | None:
        return 30_000

    def fail(self, error: RpcError) -> None:
        raise error

    def add_trailing(self, name: str, value: str) -> None:
        return None


class _Call(_Context, Call):
    def reply(self, message: Message) -> None:
        self.answered.append(message.SerializeToString())
        self.over.set()


class _Stream(_Context, Stream):
    @property
    def queued_bytes(self) -> int:
        return 0

    def send(self, message: Message) -> None:
        self.answered.append(message.SerializeToString())

    def finish(self) -> None:
        self.over.set()

    async def drained(self) -> None:
        return None


def handler_costs_us(folder: Path, messages: int) -> dict[str, float]:
    """Return µs of processor time by method, measured with MESSAGES; of ReceiveMessage a message."""
    return asyncio.run(_measured(folder, messages))


async def _measured(folder: Path, messages: int) -> dict[str, float]:
    tables = _Tables()
    broker = Broker.build(
        BrokerConfig(port=0, nameservers=()),
        StoreConfig(path=str(folder / "handlers")),
        disk=OsDisk(),
        clock=SystemClock(),
        network=Network(make_carrier=tables),
    )
    await broker.start()
    try:
        await _prepare(tables)
        await _phase(tables, "SendMessage", _sends(_TOGETHER))  # What runs first is slow.
        sends = await _phase(tables, "SendMessage", _sends(messages))
        found: list[v2.Message] = []
        seconds = 0.0
        while len(found) < messages:
            seconds += await _receive(tables, found)
        acks = await _phase(tables, "AckMessage", [_ack(message) for message in found])
    finally:
        await broker.stop()
    each = {"SendMessage": sends / messages, "ReceiveMessage": seconds / len(found)}
    return {name: cost * 1e6 for name, cost in {**each, "AckMessage": acks / len(found)}.items()}


async def _prepare(tables: _Tables) -> None:
    topic = v1.TopicConfig(name=_TOPIC, read_queues=8, write_queues=8, permission=6)
    create = tables.handlers["/pocketmq.v1.Broker/CreateTopic"]
    done = create(v1.CreateTopicRequest(topic=topic), _Call())
    if asyncio.iscoroutine(done):
        await done


def _sends(count: int) -> list[v2.SendMessageRequest]:
    body = b"x" * BODY_BYTES
    topic = v2.Resource(name=_TOPIC)
    found = []
    for number in range(count):
        properties = v2.SystemProperties(
            message_id=f"01{number:032X}",
            message_type=v2.NORMAL,
            body_encoding=v2.IDENTITY,
            born_host="bench",
        )
        properties.born_timestamp.GetCurrentTime()
        message = v2.Message(topic=topic, body=body, system_properties=properties)
        found.append(v2.SendMessageRequest(messages=[message]))
    return found


def _ack(message: v2.Message) -> v2.AckMessageRequest:
    entry = v2.AckMessageEntry(
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
    )
    group, topic = v2.Resource(name=_GROUP), v2.Resource(name=_TOPIC)
    return v2.AckMessageRequest(group=group, topic=topic, entries=[entry])


async def _phase(tables: _Tables, method: str, requests: Sequence[Any]) -> float:
    """Have METHOD answer REQUESTS; return the seconds that it took."""
    handler = tables.handlers[method]
    calls = [_Call() for _ in requests]
    begun = time.thread_time()
    for start in range(0, len(requests), _TOGETHER):
        some = calls[start : start + _TOGETHER]
        for call, request in zip(some, requests[start : start + _TOGETHER], strict=True):
            reply = handler(request, call)
            if reply is not LATER:
                call.reply(reply)
        for call in some:
            await call.over.wait()
    taken = time.thread_time() - begun
    for call in calls:
        status = _reply_types[method].FromString(call.answered[0]).status
        if status.code != v2.OK:
            raise PocketMQError(f"{method} was answered with {status.code}: {status.message}")
    return taken


_reply_types: Final[dict[str, Any]] = {
    "SendMessage": v2.SendMessageResponse,
    "AckMessage": v2.AckMessageResponse,
}


async def _receive(tables: _Tables, found: list[v2.Message]) -> float:
    """Receive once, add what came to FOUND; return the seconds that it took."""
    topic = v2.Resource(name=_TOPIC)
    request = v2.ReceiveMessageRequest(
        group=v2.Resource(name=_GROUP),
        message_queue=v2.MessageQueue(topic=topic),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=BATCH,
    )
    request.invisible_duration.FromSeconds(600)
    request.long_polling_timeout.FromSeconds(20)
    stream = _Stream()
    begun = time.thread_time()
    tables.handlers["ReceiveMessage"](request, stream)
    await stream.over.wait()
    taken = time.thread_time() - begun
    replies = [v2.ReceiveMessageResponse.FromString(data) for data in stream.answered]
    messages = [reply.message for reply in replies if reply.HasField("message")]
    if not messages:
        raise PocketMQError(f"nothing was received: {replies}")
    found += messages
    return taken
