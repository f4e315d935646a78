"""Whatever consumers ask, they are answered with a status, and never with a fault of ours."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import LATER
from tests.fake_calls import FakeCall, FakeStream

from ..pop.popping import GROUP, TOPIC
from .consuming import CLIENT, Consuming, handles_of

_COUNT = 150
_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1
_TEXTS = ("", GROUP, TOPIC, "*", "a || b", "x > ", " ", "a.b", "ä\u0001", "p0-0-1", "p-1-2-3", "r")
_NUMBERS = (0, 1, 2, 32, -1)

#: What a field of a type may hold, besides messages.
_VALUES: dict[int, Callable[[Random], Any]] = {
    FieldDescriptor.TYPE_STRING: lambda random: random.choice((*_TEXTS, "n" * 70_000)),
    FieldDescriptor.TYPE_BYTES: lambda random: random.randbytes(3),
    FieldDescriptor.TYPE_BOOL: lambda random: random.random() < 0.5,
    FieldDescriptor.TYPE_INT32: lambda random: random.choice((*_NUMBERS, _INT32, -_INT32)),
    FieldDescriptor.TYPE_INT64: lambda random: random.choice((*_NUMBERS, _INT64, -_INT64)),
    FieldDescriptor.TYPE_ENUM: lambda random: random.choice((*_NUMBERS, 3, 4, 99)),
}

UNARY = (
    *("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"),
    *("UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription"),
)
STREAMS = ("ReceiveMessage", "PullMessage")


def fill(message: Message, random: Random) -> None:
    """Set some fields of MESSAGE to something, names mostly to what there is."""
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.2:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = getattr(message, field.name)
            for one in (inner.add() for _ in range(2)) if field.is_repeated else (inner,):
                fill(one, random)
                if field.name in ("group", "topic") and random.random() < 0.8:
                    one.name = GROUP if field.name == "group" else TOPIC
            continue
        value = _VALUES[field.type](random)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


@pytest.mark.parametrize("name", [*UNARY, *STREAMS])
async def test_any_request_gets_a_status(consuming: Consuming, name: str) -> None:
    random = Random(name)
    consuming.send(b"1", b"2", b"3")
    handles = handles_of(consuming.receive(auto_renew=True))
    handler = consuming.method(name)
    codes = set()
    for _ in range(_COUNT):
        request = getattr(v2, f"{name}Request")()
        fill(request, random)
        if hasattr(request, "receipt_handle") and random.random() < 0.5:
            request.receipt_handle = random.choice(handles)
        status = asked(handler, request, random, is_stream=name in STREAMS)
        if status is not None:
            codes.add(status.code)
            assert status.code
            assert "internal error" not in status.message, request
            assert len(status.message) < 1_000
    assert len(codes) > 2


def asked(handler: Any, request: Message, random: Random, *, is_stream: bool) -> v2.Status | None:
    """Return the status that REQUEST gets at once; None: it waits."""
    if not is_stream:
        call = FakeCall(metadata=CLIENT)
        reply = handler(request, call)
        assert reply is not LATER
        found: v2.Status = reply.status
        return found
    stream = FakeStream(metadata=CLIENT, deadline_ms=random.choice((None, 0, 6_000, 30_000)))
    handler(request, stream)
    if not stream.sent:
        stream.cancel()
        return None
    assert stream.is_over
    assert stream.error is None
    status: v2.Status = stream.sent[0].status
    return status
