"""Every field of every request at its extremes, and left out: it is the caller's fault then, or none, never ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pocketmq.broker.service_v2.service import SERVICE
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import MethodKind

from ...fake_calls import FakeCall, FakeStream
from .serving import ME, Served

_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1
_TEXTS: Final = ("", " ", "\0", "ä" * 40_000, "p0-0-0", "||", "%RETRY%x")
_EXTREMES: Final[dict[int, tuple[Any, ...]]] = {
    FieldDescriptor.TYPE_STRING: _TEXTS,
    FieldDescriptor.TYPE_BYTES: (b"", bytes(5 << 20)),
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_INT32: (0, -1, _INT32, -_INT32 - 1),
    FieldDescriptor.TYPE_INT64: (0, -1, _INT64, -_INT64 - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_ENUM: (0, -1, 99, _INT32, -_INT32 - 1),
    FieldDescriptor.TYPE_FLOAT: (0.0, -1.0, float("nan"), float("inf")),
    FieldDescriptor.TYPE_DOUBLE: (0.0, -1.0, float("nan"), float("inf")),
}
_PLAIN: Final[dict[int, Any]] = {
    FieldDescriptor.TYPE_STRING: "x",
    FieldDescriptor.TYPE_BYTES: b"x",
    FieldDescriptor.TYPE_BOOL: False,
}
#: What makes a request one that would go well, by the name of the field.
_GOOD: Final[dict[str, Any]] = {"batch_size": 1, "client_type": v2.PUSH_CONSUMER, "expression": "*"}


def plain(kind: type[Message], depth: int = 0) -> Any:
    """Return a request of KIND in which every field is there, and most mean something."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name):
            continue
        if field.message_type is None:
            value = _GOOD.get(field.name, _PLAIN.get(field.type, 1))
            put(message, field, value)
        elif depth < 4 and not field.message_type.GetOptions().map_entry:
            inner = getattr(message, field.name)
            target = inner.add() if field.is_repeated else inner
            target.CopyFrom(plain(type(target), depth + 1))
            if field.name in ("topic", "topics", "group"):
                target.CopyFrom(v2.Resource(name="extreme"))
    return message


def put(message: Message, field: Any, value: Any) -> None:
    """Have FIELD of MESSAGE hold VALUE, alone."""
    if field.is_repeated:
        del getattr(message, field.name)[:]
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def extremes(message: Message, whole: Message, where: str = "") -> Iterator[tuple[str, Message]]:
    """Change MESSAGE, a part of WHOLE, in every way once; yield what was changed, and a copy of all."""
    for field in message.DESCRIPTOR.fields:
        name = f"{where}{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        before = deepcopy(message)
        values = () if field.message_type is not None else _EXTREMES[field.type]
        for value in values:
            put(message, field, value)
            yield f"{name} = {str(value)[:20]!r}", deepcopy(whole)
            message.CopyFrom(before)
        message.ClearField(field.name)
        yield f"{name} left out", deepcopy(whole)
        message.CopyFrom(before)
        if field.message_type is None or not (field.is_repeated or message.HasField(field.name)):
            continue
        inner = getattr(message, field.name)
        if not field.is_repeated:
            inner.Clear()
            inner.SetInParent()
            yield f"{name} empty", deepcopy(whole)
            message.CopyFrom(before)
            yield from extremes(getattr(message, field.name), whole, f"{name}.")
        elif len(inner):
            inner[0].Clear()
            yield f"{name} empty", deepcopy(whole)
            message.CopyFrom(before)
            yield from extremes(getattr(message, field.name)[0], whole, f"{name}.")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(tmp_path) as served:
        served.topic("extreme", "NORMAL")
        yield served


METHODS: Final = sorted(
    name.removesuffix("Request")
    for name in v2.DESCRIPTOR.message_types_by_name
    if name.endswith("Request")
)


@pytest.mark.parametrize("name", METHODS)
async def test_no_value_of_a_request_is_taken_for_a_fault_of_the_broker(
    served: Served, name: str
) -> None:
    method = served._methods[f"/{SERVICE}/{name}"]
    request = plain(method.request_type)
    asked = 0
    for changed, one in extremes(request, request):
        asked += 1
        for status in answers(method, one):
            assert status.code not in (v2.INTERNAL_SERVER_ERROR, v2.INTERNAL_ERROR), (
                changed,
                status,
            )
            assert "internal error" not in status.message, changed
    assert asked > 2


def answers(method: Any, request: Message) -> list[v2.Status]:
    """Return the statuses that REQUEST is answered with at once, those of its entries too."""
    if method.kind is MethodKind.UNARY:
        call = FakeCall(metadata=ME)
        reply = method.handler(request, call)
        found = [reply] if hasattr(reply, "status") else [call.answer] if call.answer else []
    else:
        stream = FakeStream(metadata=ME, deadline_ms=None)
        method.handler(request, stream)
        found = list(stream.sent)
        assert stream.error is None, stream.error
        stream.cancel()
    entries = [entry for reply in found for entry in getattr(reply, "entries", ())]
    return [one.status for one in (*found, *entries) if one.HasField("status")]


async def test_no_value_in_telemetry_is_taken_for_a_fault_of_the_broker(served: Served) -> None:
    method = served._methods[f"/{SERVICE}/Telemetry"]
    commands = v2.TelemetryCommand.DESCRIPTOR.oneofs_by_name["command"].fields
    for field in commands:
        for pub_sub in ("publishing", "subscription"):
            command = v2.TelemetryCommand()
            part = getattr(command, field.name)
            part.CopyFrom(plain(type(part)))
            if field.name == "settings":
                part.client_type = v2.PRODUCER if pub_sub == "publishing" else v2.PUSH_CONSUMER
                inner = getattr(part, pub_sub)
                inner.CopyFrom(plain(type(inner)))
            for changed, one in extremes(command, command):
                stream = FakeStream(metadata=ME)
                receiver = method.handler(stream)
                try:
                    receiver.on_message(one)
                except PocketMQError as error:
                    assert error.status == "INVALID_ARGUMENT", (changed, error)
                for told in stream.sent:
                    # A refused client also gets the reason as a status; codes from 50000 on are the broker's faults.
                    assert told.status.code < v2.INTERNAL_ERROR, (changed, told)
                receiver.on_close()
