"""Every method has a rule."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from pocketmq.broker.service_v2.permissions import RULES
from pocketmq.proto.access.method_rules import NAME_SERVER, broker_rules
from pocketmq.proto.access.policies import (
    PUB,
    UPDATE,
    of_cluster,
    of_group,
    of_topic,
    to_see_group,
    to_see_topic,
)
from pocketmq.proto.gen import (
    grpc_health_pb2,
    grpc_reflection_pb2,
    grpc_reflection_v1alpha_pb2,
    opencensus_pb2,
    otlp_metrics_pb2,
    pocketmq_v1_pb2,
    rocketmq_v2_pb2,
)

BROKER = broker_rules("c")
#: Replicas know each other by certificates, or are on one machine: they have a port of their own, and no users.
NOT_GUARDED = {
    f"/pocketmq.v1.Replication/{name}"
    for name in ("Follow", "Status", "ReadLog", "MoveMaster", "AcceptLoss")
}


@pytest.mark.parametrize(
    "module",
    [
        grpc_health_pb2,
        grpc_reflection_pb2,
        grpc_reflection_v1alpha_pb2,
        opencensus_pb2,
        otlp_metrics_pb2,
        pocketmq_v1_pb2,
        rocketmq_v2_pb2,
    ],
)
def test_every_method_that_is_written_down_has_a_rule(module: ModuleType) -> None:
    known = broker_rules("c").keys() | NAME_SERVER.keys() | RULES.keys() | NOT_GUARDED
    services = module.DESCRIPTOR.services_by_name.values()
    paths = {f"/{service.full_name}/{one.name}" for service in services for one in service.methods}
    assert paths - known == set()


@pytest.mark.parametrize(("topic", "asked"), [("", "*"), ("other", "other")])
def test_dead_letters_that_go_to_where_they_came_from_need_every_topic(
    topic: str, asked: str
) -> None:
    request = pocketmq_v1_pb2.ResendDeadLettersRequest(group="g", topic=topic)
    needs = BROKER["/pocketmq.v1.Broker/ResendDeadLetters"](request)
    assert list(needs) == [of_group("g", UPDATE), of_topic(asked, PUB)]


def test_offsets_in_queues_that_are_named_need_the_topics_of_these() -> None:
    queues = [pocketmq_v1_pb2.QueueId(topic=topic, queue=at) for at, topic in enumerate("aab")]
    request = pocketmq_v1_pb2.GroupOffsetsRequest(group="g", queues=queues)
    needs = list(BROKER["/pocketmq.v1.Broker/GroupOffsets"](request))
    assert set(needs) == {to_see_group("g"), to_see_topic("a"), to_see_topic("b")}
    assert len(needs) == 3


@pytest.mark.parametrize("how", [{"force": True}, {"moved_by": "root"}])
def test_who_moves_a_group_has_to_see_the_topics(how: dict[str, Any]) -> None:
    offsets = [pocketmq_v1_pb2.GroupOffset(topic=topic) for topic in ("a", "b", "b")]
    request = pocketmq_v1_pb2.CommitOffsetsRequest(group="g", offsets=offsets, **how)
    needs = list(BROKER["/pocketmq.v1.Broker/CommitOffsets"](request))
    assert needs[0] == of_group("g", UPDATE)
    assert set(needs[1:]) == {to_see_topic("a"), to_see_topic("b")}


def test_who_has_a_message_tried_has_to_see_its_topic() -> None:
    rule = BROKER["/pocketmq.v1.Broker/AskClient"]
    tried = pocketmq_v1_pb2.TryMessage(topic="a")
    every = of_cluster("c", UPDATE)
    stacks = pocketmq_v1_pb2.AskClientRequest(thread_stacks=pocketmq_v1_pb2.ThreadStacks())
    assert list(rule(stacks)) == [every]
    request = pocketmq_v1_pb2.AskClientRequest(try_message=tried)
    assert list(rule(request)) == [every, to_see_topic("a")]
