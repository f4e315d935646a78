"""The messages of `apache.rocketmq.v2` are, to the byte, those that Apache RocketMQ 5.5.0 and its clients exchange."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pool, json_format

from pocketmq.proto import private_pool
from pocketmq.proto.gen import (
    grpc_health_pb2 as health,
    grpc_reflection_pb2 as reflection,
    opencensus_pb2 as census,
    otlp_metrics_pb2 as otlp,
    rocketmq_v2_pb2 as v2,
)
from tests.recorded_v2 import recorded_groups, recorded_wires


def messages() -> Iterator[tuple[str, dict[str, Any], bytes]]:
    for group in recorded_groups():
        yield from recorded_wires(group)


@pytest.mark.parametrize("group", recorded_groups())
def test_recorded_bytes_are_what_they_say_and_are_written_again(group: str) -> None:
    wires = list(recorded_wires(group))

    for name, body, wire in wires:
        kind = getattr(v2, name)
        message = kind.FromString(wire)
        expected = json_format.ParseDict(body, kind(), descriptor_pool=private_pool.POOL)
        assert message == expected
        assert len(message.SerializeToString()) == len(wire)
        assert not _unknown(message)


def _unknown(message: Any) -> bool:
    before = message.SerializeToString()
    message.DiscardUnknownFields()
    return bool(message.SerializeToString() != before)


def test_there_are_hundreds_of_recorded_messages() -> None:
    assert sum(1 for _ in messages()) > 500


@pytest.mark.parametrize(
    "message",
    [
        v2.Message,
        otlp.Metric,
        census.Metric,
        health.HealthCheckRequest,
        reflection.ServerReflectionRequest,
    ],
)
def test_classes_are_not_in_the_pool_that_everybody_shares(message: Any) -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(message.DESCRIPTOR.full_name)
