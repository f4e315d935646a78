"""What clients are told to keep to: as Apache's, but for where their measurements go."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from pocketmq.broker.service_v2.client_addresses import endpoints_at
from pocketmq.broker.service_v2.statuses import code_of
from pocketmq.proto.errors import InvalidArgument, PocketMQError
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.format.beans import Object
from pocketmq.store.format.state_tables import GroupConfig

from .connected import OWN, PRODUCER, Connected, cases, consumer

#: Where Apache's proxy in local mode refuses, and ours does not: groups are made when they first receive, pull
#: consumers are served.
BETTER = {"telemetry-09", "telemetry-13", "telemetry-19"}
#: Apache's proxy in local mode, which has no lite consumers, accepts one whose group is bound.
LITE = {"telemetry-11"}


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    return Connected(tmp_path)


def settings_cases() -> list[Any]:
    found = [
        param
        for param in cases("telemetry", "Telemetry") + cases("server-command", "Telemetry")
        if param.values[0]["metadata"].get("x-mq-client-id") and param.values[0]["events"]
    ]
    return [param for param in found if "settings" in param.values[0]["events"][0]["body"]]


@pytest.mark.parametrize("case", settings_cases())
def test_settings_are_answered_as_apache_answers_them(
    connected: Connected, case: dict[str, Any]
) -> None:
    asked, *rest = [event["body"] for event in case["events"]]
    settings = json_format.ParseDict(asked["settings"], v2.Settings())
    peer = connected.open()

    if case["id"] in BETTER | LITE:
        attempts = 3 if case["id"] == "telemetry-19" else 17  # A producer's.
        assert peer.say(settings).backoff_policy.max_attempts == attempts
        return
    if case["grpc_status"] not in ("OK", "DEADLINE_EXCEEDED"):
        with pytest.raises(PocketMQError) as caught:
            peer.say(settings)
        assert caught.value.status == "INVALID_ARGUMENT", "also where Apache says INTERNAL"
        return
    recorded = json_format.ParseDict(rest[0]["settings"], v2.Settings())
    answer = peer.say(settings)
    assert answer.metric.on
    answer.metric.CopyFrom(recorded.metric)
    assert answer == recorded


def test_a_client_sends_its_measurements_where_it_has_dialled(connected: Connected) -> None:
    dialled = endpoints_at(["forwarded:18081"])

    there = connected.open().say(consumer(access_point=dialled)).metric
    unsaid = connected.open().say(consumer()).metric

    assert there == v2.Metric(on=True, endpoints=dialled)
    assert unsaid == v2.Metric(on=True, endpoints=endpoints_at([OWN]))


def test_measurements_may_be_left_to_others(tmp_path: Path) -> None:
    metric = Connected(tmp_path, client_metrics=False).open().say(consumer()).metric

    assert metric == v2.Metric()


def test_a_clients_own_words_come_back_unchanged(connected: Connected) -> None:
    settings = consumer(client_properties={"a": "b"})
    settings.subscription.group.resource_namespace = "ns"
    settings.access_point.addresses.add(host="h", port=1)

    answer = connected.open().say(settings)

    assert answer.client_properties == {"a": "b"}
    assert answer.subscription.group.resource_namespace == "ns"
    assert answer.access_point == settings.access_point


def test_clients_of_node_get_the_back_off_that_they_understand(connected: Connected) -> None:
    settings = consumer()
    settings.user_agent.language = v2.NODE_JS

    policy = connected.open().say(settings).backoff_policy

    assert policy.WhichOneof("strategy") == "exponential_backoff"
    assert policy.max_attempts == 17


def test_a_groups_own_back_off_is_handed_out(connected: Connected) -> None:
    connected.groups.create(GroupConfig(name="mine"), update=False, retry_intervals_ms=[2_000])
    growing: Object = {"initial": 1_000, "max": 9_000, "multiplier": 3}
    connected.groups.create(
        GroupConfig(
            name="grows",
            retry_policy={"type": "EXPONENTIAL", "exponentialRetryPolicy": growing},
        ),
        update=False,
    )

    listed = connected.open().say(consumer("mine")).backoff_policy.customized_backoff
    grows = connected.open().say(consumer("grows")).backoff_policy.exponential_backoff

    assert {one.ToMilliseconds() for one in listed.next} == {2_000}
    assert grows == v2.ExponentialBackoff(
        initial=timedelta(seconds=1), max=timedelta(seconds=9), multiplier=3
    )


def test_a_change_of_the_group_is_told_at_the_next_settings(connected: Connected) -> None:
    peer = connected.open()
    assert not peer.say(consumer()).subscription.fifo

    connected.groups.create(
        GroupConfig(name="R-g", consume_message_orderly=True, retry_times_max=2), update=True
    )
    answer = peer.say(consumer())

    assert answer.subscription.fifo
    assert answer.backoff_policy.max_attempts == 3


@pytest.mark.parametrize(("quota", "told"), [("7", 7), ("many", 2_000), ("9" * 12, 2_000)])
def test_a_lite_consumer_is_told_the_quota_of_its_group(
    connected: Connected, quota: str, told: int
) -> None:
    group = connected.groups.get("R-liteg")
    group.attributes["lite.sub.client.quota"] = quota

    settings = consumer("R-liteg")
    settings.client_type = v2.LITE_PUSH_CONSUMER
    settings.subscription.subscriptions[0].topic.name = "R-lite"
    assert connected.open().say(settings).subscription.lite_subscription_quota == told


def test_settings_have_a_bound(connected: Connected) -> None:
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.extend([v2.Resource(name="t" * 100)] * 11_000)

    with pytest.raises(InvalidArgument, match="the limit is 1048576: use fewer topics"):
        connected.open().say(settings)


def test_a_type_from_the_future_is_named_by_its_number(connected: Connected) -> None:
    settings = v2.Settings()
    settings.CopyFrom(PRODUCER)
    settings.client_type = 77  # type: ignore[assignment]

    with pytest.raises(PocketMQError, match="client_type is 77") as caught:
        connected.open().say(settings)
    assert code_of(caught.value) == v2.BAD_REQUEST


def test_a_producer_is_told_the_largest_body_that_the_store_accepts(tmp_path: Path) -> None:
    connected = Connected(tmp_path, body_max=1_000)

    answer = connected.open().say(PRODUCER)

    assert answer.publishing.max_body_size == 1_000
