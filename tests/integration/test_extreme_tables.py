"""A store whose tables hold numbers that no reply can carry: they are told as the nearest, and hide nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.service_v2.request_checks import INVISIBLE_MAX_MS
from pocketmq.client import AsyncAdmin
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2

from .whole_broker import TOPIC, Peer, broker, run_of, serving, store_config

NUMBERS = [(1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, 10**30, -1, -(1 << 31) - 1, -(10**30)]
FIELDS = ("retryMaxTimes", "retryQueueNums", "consumeTimeoutMinute", "brokerId", "groupSysFlag")


def policies(number: int) -> list[dict[str, Any]]:
    listed = {"next": [1_000, number, number]}
    growing = {"initial": number, "max": number, "multiplier": number}
    return [
        {"type": "CUSTOMIZED", "customizedRetryPolicy": listed},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": growing},
    ]


def write_tables(folder: Path, number: int) -> None:
    version = {"counter": number, "stateVersion": number, "timestamp": number}
    groups: dict[str, Any] = {
        f"g-{field}": {"groupName": f"g-{field}", field: number} for field in FIELDS
    }
    for at, policy in enumerate(policies(number)):
        groups[f"g-policy-{at}"] = {"groupName": f"g-policy-{at}", "groupRetryPolicy": policy}
    groups["sound"] = {"groupName": "sound", "retryMaxTimes": 3}
    topic = {"topicName": TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    tables = {
        "topics.json": {"dataVersion": version, "topicConfigTable": {TOPIC: topic}},
        "subscriptionGroup.json": {"dataVersion": version, "subscriptionGroupTable": groups},
        "consumerOffset.json": {
            "dataVersion": version,
            "offsetTable": {f"{TOPIC}@sound": {"0": 1, "1": number}},
        },
    }
    (folder / "config").mkdir(parents=True)
    for name, document in tables.items():
        (folder / "config" / name).write_text(json.dumps(document))


async def settings_of(peer: Peer, group: str) -> v2.Settings:
    stream = peer.channel.stream_stream(
        "/apache.rocketmq.v2.MessagingService/Telemetry",
        v2.TelemetryCommand.SerializeToString,
        v2.TelemetryCommand.FromString,
    )(metadata=(("x-mq-client-id", group),))
    settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add().topic.name = TOPIC
    await stream.write(v2.TelemetryCommand(settings=settings))
    answer = await stream.read()
    stream.cancel()
    assert answer.status.code == v2.OK, answer
    found: v2.Settings = answer.settings
    return found


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_number_beyond_its_field_is_told_as_the_nearest_and_hides_nothing(
    tmp_path: Path, number: int
) -> None:
    config = store_config(tmp_path)
    write_tables(Path(config.path), number)
    async with broker(config) as (_, peer):
        listed = await peer.ask("ListGroups", pb.GroupListRequest(), pb.GroupListReply)
        groups = {group.name: group for group in listed.groups}
        assert groups["sound"].retry_max_times == 3
        nearest = min(max(number, -(1 << 31)), (1 << 31) - 1)
        assert groups["g-retryMaxTimes"].retry_max_times == nearest
        for name in groups:
            settings = await settings_of(peer, name)
            policy = settings.backoff_policy
            assert 1 <= policy.max_attempts < 1 << 31
            told = [*policy.customized_backoff.next, policy.exponential_backoff.max]
            assert all(0 <= one.ToMilliseconds() <= INVISIBLE_MAX_MS for one in told)
        await peer.produce(run_of([b"one"]))
        for queues in ([], [pb.QueueId(topic=TOPIC, queue=queue) for queue in range(4)]):
            request = pb.GroupOffsetsRequest(group="sound", queues=queues, with_times=True)
            offsets = await peer.ask("GroupOffsets", request, pb.GroupOffsetsReply)
            assert (offsets.offsets[0].queue, offsets.offsets[0].offset) == (0, 1)
        described = await peer.ask(
            "DescribeTopic", pb.DescribeTopicRequest(topic=TOPIC), pb.DescribeTopicReply
        )
        assert len(described.queues) == 4
        state = await peer.ask(
            "GroupState", pb.GroupStateRequest(group="sound"), pb.GroupStateReply
        )
        assert state.generation == 0


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_table_of_an_impossible_version_is_registered(tmp_path: Path, number: int) -> None:
    config = store_config(tmp_path)
    write_tables(Path(config.path), number)
    async with serving(config) as (address, _), AsyncAdmin(address) as admin:
        await admin.create_topic("later", queues=1)  # Counts the version on.
        assert {one.name for one in await admin.topics()} == {TOPIC, "later"}
