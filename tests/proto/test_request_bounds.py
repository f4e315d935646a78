"""Every repeated field of every request that is served has a bound, and a request beyond one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from pocketmq.proto.gen import (
    grpc_health_pb2,
    grpc_reflection_pb2,
    grpc_reflection_v1alpha_pb2,
    opencensus_pb2,
    otlp_metrics_pb2,
    pocketmq_v1_pb2 as pb,
    rocketmq_v2_pb2 as v2,
)
from pocketmq.proto.request_bounds import BOUNDS, bounded, is_repeated
from pocketmq.proto.rpc import MethodTable, service, unary
from pocketmq.proto.rpc.errors import BadRequest

MODULES = (
    grpc_health_pb2,
    grpc_reflection_pb2,
    grpc_reflection_v1alpha_pb2,
    opencensus_pb2,
    otlp_metrics_pb2,
    pb,
    v2,
)


def requests_of(module: ModuleType) -> Iterator[Descriptor]:
    for found in module.DESCRIPTOR.services_by_name.values():
        for method in found.methods:
            yield method.input_type


def repeated_in(kind: Descriptor, seen: set[str]) -> Iterator[str]:
    """Yield each repeated field in KIND and in all messages in it, as BOUNDS names it."""
    if kind.full_name in seen:
        return
    seen.add(kind.full_name)
    for field in kind.fields:
        if is_repeated(field):
            yield f"{kind.full_name}.{field.name}"
        if field.message_type is not None:
            yield from repeated_in(field.message_type, seen)


def test_every_repeated_field_of_every_request_has_a_bound_and_each_bound_a_field() -> None:
    seen: set[str] = set()
    fields = {
        field
        for module in MODULES
        for kind in requests_of(module)
        for field in repeated_in(kind, seen)
    }
    assert len(fields) > 50
    assert fields ^ BOUNDS.keys() == set()


def table(request_type: type[Message]) -> MethodTable:
    entry: Any = unary(
        request_type, v2.AckMessageResponse, lambda request, call: v2.AckMessageResponse()
    )
    return bounded(service("s.S", {"Do": entry}))


def decoded(request: Message) -> Message:
    return table(type(request))["/s.S/Do"].decode(request.SerializeToString())


def acknowledging(count: int) -> v2.AckMessageRequest:
    return v2.AckMessageRequest(entries=[v2.AckMessageEntry(receipt_handle="p0-0-1")] * count)


def sending(keys: int = 0, properties: int = 0) -> v2.SendMessageRequest:
    message = v2.Message(user_properties={f"k{number}": "v" for number in range(properties)})
    message.system_properties.keys.extend(["k"] * keys)
    return v2.SendMessageRequest(messages=[v2.Message(), message])


def settings(topics: int) -> v2.TelemetryCommand:
    publishing = v2.Publishing(topics=[v2.Resource(name="t")] * topics)
    return v2.TelemetryCommand(settings=v2.Settings(publishing=publishing))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (acknowledging(1_025), "AckMessageRequest.entries: 1025"),
        (sending(keys=1_025), "SystemProperties.keys: 1025"),
        (sending(properties=1_025), "Message.user_properties: 1025"),
        (settings(10_001), "Publishing.topics: 10001"),
        (pb.MemberRequest(heartbeat=pb.Heartbeat(held=[pb.HeldQueue()] * 10_001)), "held: 10001"),
    ],
)
def test_a_request_with_more_items_than_a_bound_is_refused(request_: Message, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decoded(request_)
    assert f"{field} in one request, the limit is" in caught.value.message


@pytest.mark.parametrize(
    "request_",
    [acknowledging(1_024), sending(1_024, 1_024), settings(10_000), pb.MemberRequest(), pb.Leave()],
)
def test_a_request_within_the_bounds_is_taken(request_: Message) -> None:
    assert decoded(request_) == request_
