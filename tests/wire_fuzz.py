"""Bad input for a gRPC service, from a seed: random bytes, messages of edge values, mutated good messages.

A server under this fire answers every call: well, or with a status that is the caller's business and, for
INVALID_ARGUMENT, names the field. `Fuzzer.assault` sends one request to one method and returns what is wrong
with the answer; nothing, if all is well.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from pocketmq.proto.errors import ConnectionLost
from pocketmq.proto.errors_wire import from_rpc_error, from_wire

#: Statuses that are never an answer to bad input: they say that the server itself went wrong.
SERVERS_FAULT = {"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE"}
DEADLINE_S = 10.0

EDGES_32 = (0, 1, -1, 2, 7, 16, 255, 65_536, 2**31 - 1, -(2**31))
EDGES_64 = (*EDGES_32, 2**32, 2**62, 2**63 - 1, -(2**63))
EDGE_TEXTS = (
    "",
    "T",
    "a/b",
    "%RETRY%",
    "%DLQ%g",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "ü",
    "\x00",
    "\x01\x02",
    "..",
    "x" * 127,
    "x" * 128,
    "x" * 5000,
    "0" * 32,
    "7F000001" + "0" * 24,
    "h:1",
    "127.0.0.1:99999",
)


class Fuzzer:
    """Random requests from SEED over CHANNEL; GOOD are well-formed messages to mutate, by type name."""

    def __init__(self, seed: int, channel: grpc.aio.Channel, good: Sequence[Message] = ()) -> None:
        self.random = random.Random(seed)
        self._channel: Any = channel
        self._good: dict[str, list[Message]] = {}
        for message in good:
            self._good.setdefault(message.DESCRIPTOR.full_name, []).append(message)

    def request(self, kind: Any) -> bytes:
        """Return the bytes of a bad, odd or nearly good request of the message type KIND."""
        good = self._good.get(kind.full_name, [])
        shape = self.random.random()
        if shape < 0.2:
            return self.random.randbytes(self.random.choice((0, 1, 2, 7, 50, 1000)))
        if good and shape < 0.7:
            chosen = self.random.choice(good)
            if shape < 0.45:
                chosen = self._with_an_edge(chosen)
                return chosen.SerializeToString()
            return self._damaged(chosen.SerializeToString())
        return self._message(kind, 0).SerializeToString()

    def _with_an_edge(self, good: Message) -> Message:
        """Return GOOD with one field of it, or of a message within, set to an edge value or left out."""
        changed = type(good)()
        changed.CopyFrom(good)
        target = changed
        while True:
            field: Any = self.random.choice(target.DESCRIPTOR.fields)
            inner = _inner(target, field)
            if not inner or self.random.random() < 0.2:
                break
            target = self.random.choice(inner)
        target.ClearField(field.name)
        if self.random.random() < 0.8:
            self._fill(target, field, 0)
        return changed

    def _message(self, kind: Any, depth: int) -> Message:
        message: Message = message_factory.GetMessageClass(kind)()
        for field in kind.fields:
            if self.random.random() < 0.7:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Any, field: Any, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                entries = getattr(message, field.name)
                key, value = (field.message_type.fields_by_name[n] for n in ("key", "value"))
                entries[self._value(key, depth)] = self._value(value, depth)
            return
        if field.is_repeated:
            values = getattr(message, field.name)
            count = self.random.choice((0, 1, 1, 2, 3, 2000)) if depth == 0 else 1
            value = self._value(field, depth)
            values.extend([value] * count)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(self._value(field, depth))
        else:
            setattr(message, field.name, self._value(field, depth))

    def _value(self, field: Any, depth: int) -> Any:
        kinds = FieldDescriptor
        match field.cpp_type:
            case kinds.CPPTYPE_INT32 | kinds.CPPTYPE_ENUM:
                return self.random.choice(EDGES_32)
            case kinds.CPPTYPE_INT64:
                return self.random.choice(EDGES_64)
            case kinds.CPPTYPE_UINT32 | kinds.CPPTYPE_UINT64:
                return abs(self.random.choice(EDGES_32))
            case kinds.CPPTYPE_BOOL:
                return self.random.random() < 0.5
            case kinds.CPPTYPE_DOUBLE | kinds.CPPTYPE_FLOAT:
                return self.random.choice((0.0, -1.0, float("nan"), float("inf"), 1e300))
            case kinds.CPPTYPE_MESSAGE:
                return self._message(field.message_type, depth + 1)
        if field.type == kinds.TYPE_BYTES:
            return self.random.randbytes(self.random.choice((0, 1, 90, 5000)))
        return self.random.choice(EDGE_TEXTS)

    def _damaged(self, data: bytes) -> bytes:
        """Return DATA with a few bits flipped, bytes cut out, doubled or inserted."""
        damaged = bytearray(data or b"\x00")
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(len(damaged) + 1)
            match self.random.randrange(4):
                case 0 if at < len(damaged):
                    damaged[at] ^= 1 << self.random.randrange(8)
                case 1:
                    del damaged[at : at + self.random.randint(1, 16)]
                case 2:
                    damaged[at:at] = damaged[at : at + 16]
                case _:
                    damaged[at:at] = self.random.randbytes(self.random.randint(1, 8))
        return bytes(damaged)

    async def assault(self, method: MethodDescriptor) -> str | None:
        """Send one request to METHOD; return what is wrong with the answer, or None."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        messages = [self.request(method.input_type)]
        if method.client_streaming:
            messages += [self.request(method.input_type) for _ in range(self.random.randrange(4))]
        try:
            async with asyncio.timeout(DEADLINE_S):
                replies = await self._call(path, method, messages)
        except grpc.aio.AioRpcError as error:
            return _complaint(path, error)
        except TimeoutError:
            return f"{path}: no answer within {DEADLINE_S} s to {messages!r:.500}"
        return _complaint_in_replies(path, method, replies)

    async def lives(self, path: str) -> bool:
        """Does the server answer an empty, good request to PATH?"""
        async with asyncio.timeout(DEADLINE_S):
            await self._channel.unary_unary(path)(b"")
        return True

    async def _call(
        self, path: str, method: MethodDescriptor, messages: list[bytes]
    ) -> list[bytes]:
        """Return the replies, as bytes."""
        if not method.client_streaming:
            return [await self._channel.unary_unary(path)(messages[0])]
        stream = self._channel.stream_stream(path)()
        try:
            for message in messages:
                await stream.write(message)
            await stream.done_writing()
        except asyncio.InvalidStateError:
            pass  # The server has ended the stream already; its status comes from reading.
        replies = [reply async for reply in stream]
        code = await stream.code()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code,
                await stream.initial_metadata(),
                await stream.trailing_metadata(),
                await stream.details(),
                None,
            )
        return replies


def _inner(message: Any, field: Any) -> list[Message]:
    """Return the messages that MESSAGE has in FIELD."""
    if field.message_type is None or field.message_type.GetOptions().map_entry:
        return []
    if field.is_repeated:
        return list(getattr(message, field.name))
    return [getattr(message, field.name)] if message.HasField(field.name) else []


def _complaint_in_replies(path: str, method: MethodDescriptor, replies: list[bytes]) -> str | None:
    """Judge the errors that stand in REPLIES of a stream as those that end a call."""
    kind: Any = message_factory.GetMessageClass(method.output_type)
    if "error" not in kind.DESCRIPTOR.fields_by_name:
        return None
    for reply in map(kind.FromString, replies):
        if not reply.HasField("error"):
            continue
        error = from_wire(reply.error)
        if error.status in SERVERS_FAULT:
            return f"{path}: {error.status} {error.message}"
        if error.status == "INVALID_ARGUMENT" and not error.details.get("field"):
            return f"{path}: no field is named by {reply.error.name} {error.message}"
    return None


def _complaint(path: str, error: grpc.aio.AioRpcError) -> str | None:
    code = error.code().name
    if type(from_rpc_error(error)) is ConnectionLost and code == "INTERNAL":
        return None  # Our second message met a stream that the first one had ended, and grpc kept its status.
    if code in SERVERS_FAULT:
        return f"{path}: {code} {error.details()}"
    if code == "INVALID_ARGUMENT" and not from_rpc_error(error).details.get("field"):
        return f"{path}: no field is named by {code} {error.details()}"
    return None
