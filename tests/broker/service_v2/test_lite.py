"""Lite topics: bad subscriptions have their codes, and ordinary consumers get all messages."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.format.state_tables import TopicConfig
from tests.recorded_v2 import recorded_group

from .consuming import Consuming, bodies, messages_of, resource

LIGHT = "Light"


@pytest.fixture
def light(consuming: Consuming) -> Consuming:
    """Return a broker with a topic of light topics."""
    consuming.topics._put(
        TopicConfig(name=LIGHT, read_queues=1, write_queues=1, attributes={"message.type": "LITE"})
    )
    return consuming


def synced(light: Consuming, **fields: Any) -> v2.Status:
    request = v2.SyncLiteSubscriptionRequest(
        **{"topic": resource(LIGHT), "group": resource("g"), "lite_topic_set": ["user-1"], **fields}
    )
    status: v2.Status = light.call("SyncLiteSubscription", request).status
    return status


@pytest.mark.parametrize("number", range(7, 10))
async def test_names_that_are_refused_everywhere_have_apaches_code(
    light: Consuming, number: int
) -> None:
    cases = {one["id"]: one for one in recorded_group("cluster-lite")["cases"]}
    recorded = cases[f"cluster-lite-{number:02}"]
    request = json_format.ParseDict(recorded["request"], v2.SyncLiteSubscriptionRequest())
    request.topic.name = LIGHT

    status = light.call("SyncLiteSubscription", request).status

    expected = recorded["responses"][0]["body"]["status"]["code"]
    assert v2.Code.Name(status.code) == expected == "ILLEGAL_LITE_TOPIC"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": resource("T")}, v2.ILLEGAL_TOPIC),
        ({"topic": resource("nowhere")}, v2.TOPIC_NOT_FOUND),
        ({"group": resource("")}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"group": resource("unknown")}, v2.ILLEGAL_TOPIC),
        ({"action": 9}, v2.BAD_REQUEST),
    ],
)
async def test_what_would_do_nowhere_has_its_code(
    light: Consuming, fields: dict[str, Any], code: v2.Code
) -> None:
    assert synced(light, **fields).code == code


async def test_ordinary_consumers_get_all_or_one_of_the_light_topics(light: Consuming) -> None:
    named = [{"__LITE_TOPIC": "user-1"}, {"__LITE_TOPIC": "user-2"}]
    light.send(b"1", b"2", topic=LIGHT, properties=named)
    one = v2.FilterExpression(type=v2.SQL, expression="__LITE_TOPIC = 'user-2'")

    everything = messages_of(light.receive(topic=LIGHT))
    second = light.receive(topic=LIGHT, group=resource("other"), filter_expression=one)

    assert [one.system_properties.lite_topic for one in everything] == ["user-1", "user-2"]
    assert {one.system_properties.message_type for one in everything} == {v2.LITE}
    assert bodies(second) == [b"2"]
