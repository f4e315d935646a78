"""Items of large requests are counted before they are decoded, and nothing that may be sent is refused for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, strategies as st

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.request_bounds import BOUNDS, bounded
from pocketmq.proto.request_wire import STEPS_MAX, WALKED_FROM_BYTES, check_data_of
from pocketmq.proto.rpc import service, unary
from pocketmq.proto.rpc.errors import BadRequest
from pocketmq.proto.rpc.methods import Method


def method(kind: type[Message]) -> Method:
    entry: Any = unary(kind, v2.AckMessageResponse, lambda request, call: v2.AckMessageResponse())
    return bounded(service("s.S", {"Do": entry}))["/s.S/Do"]


def undecoded() -> Any:
    pytest.fail("the request was decoded")


def sized(number: int, content: bytes = b"") -> bytes:
    """Return a field with a length, as it is encoded."""
    assert number < 16
    assert len(content) < 1 << 14
    low, high = len(content) & 0x7F, len(content) >> 7
    return bytes([number << 3 | 2, *([low | 0x80, high] if high else [low])]) + content


def number_of(kind: type[Message], field: str) -> int:
    return kind.DESCRIPTOR.fields_by_name[field].number


ENTRY = sized(number_of(v2.AckMessageRequest, "entries"))
GROUP = sized(number_of(v2.AckMessageRequest, "group"))
KEYS = sized(number_of(v2.SystemProperties, "keys"))
SYSTEM = number_of(v2.Message, "system_properties")
MESSAGES = number_of(v2.SendMessageRequest, "messages")
MILLIONS = 4_000_000


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        (v2.AckMessageRequest, ENTRY * MILLIONS, "AckMessageRequest.entries: 1025"),
        (v2.AckMessageRequest, GROUP * MILLIONS, "AckMessageRequest.group: 1025"),
        (v2.AckMessageRequest, sized(15) * MILLIONS, "unknown fields: 1025"),
        (v2.AckMessageRequest, b"\x78\x01" * MILLIONS, "unknown fields: 1025"),
        (v2.AckMessageRequest, b"\x7d1234\x7912345678" * MILLIONS, "unknown fields: 1025"),
        (v2.AckMessageRequest, b"\x7b\x7c" * MILLIONS, "contains a group"),
        (
            v2.SendMessageRequest,
            sized(MESSAGES, sized(SYSTEM, KEYS * 1_025)) * 20,
            "SystemProperties.keys: 1025",
        ),
        (
            v2.SendMessageRequest,
            sized(MESSAGES, sized(SYSTEM, KEYS * 1_000)) * 1_000,
            f"more than {STEPS_MAX} fields",
        ),
        (pb.RouteRequest, b"\x0a\x00" * MILLIONS, "RouteRequest.topics: 100001"),
        (v2.AckMessageRequest, ENTRY * MILLIONS + b"\x0a\xff", "AckMessageRequest.entries: 1025"),
    ],
)
def test_what_exceeds_a_bound_is_refused_and_never_decoded(
    kind: type[Message], data: bytes, says: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        replace(method(kind), request_type=undecoded).decode(data)  # type: ignore[arg-type]

    assert says in caught.value.message


@pytest.mark.parametrize("end", [b"\x0a", b"\x0a\x05", b"\xff" * 11, b"\x79\x01", b"\x00\x01"])
def test_what_is_cut_off_or_malformed_is_left_to_the_decoder(end: bytes) -> None:
    data = sized(number_of(v2.AckMessageRequest, "group"), bytes(8)) * 2
    large = data + sized(15, b"x" * 16_000) * 2

    check = check_data_of(v2.AckMessageRequest, BOUNDS)

    assert check is not None
    check(large + end)
    with pytest.raises(BadRequest, match="cannot be decoded"):
        method(v2.AckMessageRequest).decode(large + end)


def test_the_largest_requests_that_may_be_sent_are_taken() -> None:
    entry = v2.AckMessageEntry(message_id="0" * 34, receipt_handle="p0-0-1" * 20)
    system = v2.SystemProperties(message_id="0" * 34, keys=["k"] * 8, message_type=v2.NORMAL)
    message = v2.Message(
        topic=v2.Resource(name="T"), system_properties=system, user_properties={"a": "b", "c": "d"}
    )
    body = v2.Message(topic=v2.Resource(name="T"), body=bytes(4 << 20), system_properties=system)
    held = pb.HeldQueue()
    commits = pb.CommitOffsetsRequest()
    for number in range(10_000):
        commits.offsets.add().queue = number
    requests: tuple[Message, ...] = (
        v2.AckMessageRequest(entries=[entry] * 1_024),
        v2.SendMessageRequest(messages=[message] * 1_024),
        v2.SendMessageRequest(messages=[body]),
        pb.MemberRequest(heartbeat=pb.Heartbeat(held=[held] * 10_000)),
        pb.ProduceRun(topic="T", records=bytes(1 << 20), sizes=[100] * 1_000_000),
        pb.RouteRequest(topics=["topic"] * 100_000),
        commits,
    )
    for request in requests:
        assert method(type(request)).decode(request.SerializeToString()) == request


@given(st.binary(max_size=60), st.integers(1, 400))
def test_bytes_that_are_anything_end_as_they_would_without_the_count(
    data: bytes, times: int
) -> None:
    large = sized(15, bytes(16_000)) * 2 + data * times
    assert len(large) >= WALKED_FROM_BYTES
    try:
        found = v2.SendMessageRequest.FromString(large)
    except Exception:
        found = None
    try:
        decoded = method(v2.SendMessageRequest).decode(large)
    except BadRequest as error:
        assert found is None or "in one request" in error.message or "a group" in error.message
    else:
        assert decoded == found
