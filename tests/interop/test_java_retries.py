"""Apache's broker opens a store with our retries and dead letters: it keeps what we keep, and delivers what waits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from pocketmq.broker.consumer_groups import subscription_check
from pocketmq.broker.retry_policies import retry_intervals_of
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import decode_record
from pocketmq.proto.topics import DEAD_LETTERS_GROUP
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.format.beans import Object
from pocketmq.store.format.state_tables import GroupTable, parse_groups, render_groups
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ..integration.whole_broker import TOPIC, Peer, broker, run_of
from .java_oracle import Document, dumps, require_java, verify_start

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(600)]

SMALL: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
_HOUR_MS: Final = 3_600_000
#: The first is the length of a delay level, the second is not.
OWN: Final = [10_000, 2_000_500, 7_200_000]
EXPONENTIAL: Final[Object] = {
    "exponentialRetryPolicy": {"initial": 3_000, "max": 60_000, "multiplier": 3},
    "type": "EXPONENTIAL",
}


async def ask(peer: Peer, method: str, request: Any, reply: Any) -> Any:
    return await peer.ask(method, request, reply)


async def left(path: Path) -> None:
    """Leave a store in which two messages wait to be tried again, and of four dead ones three are purged."""
    config = ApacheSettings.of(SMALL).store_config(str(path))
    clock = VirtualClock(SystemClock().now_ms() - 3 * _HOUR_MS)
    async with broker(config, clock=clock, wall=SystemClock()) as (server, peer):
        await peer.create_topic(queues=1)
        for name, intervals in (("own", OWN), ("level", []), ("exponential", [])):
            group = pb.GroupConfig(
                name=name,
                retry_max_times=16,
                consume_enable=True,
                retry_intervals_ms=intervals,
                subscription_check="warn" if name == "own" else "",
            )
            await ask(peer, "CreateGroup", pb.CreateGroupRequest(group=group), pb.GroupReply)
        await peer.produce(run_of([b"own", b"level"]))
        found = server.store.read_queue(TOPIC, 0, 0, 2, 1 << 20)
        at = [0, int(found.sizes[0])]
        for start, group_name, levels in (
            (at[0], "own", [0]),
            (at[1], "level", [5, -1, -1, -1, -1]),
        ):
            record = decode_record(found.records, start)
            for level in levels:
                request = pb.SendBackRequest(
                    group=group_name,
                    topic=TOPIC,
                    queue_offset=record.queue_offset,
                    log_offset=record.log_offset,
                    delay_level=level,
                )
                await ask(peer, "SendBack", request, pb.SendBackReply)
        await clock.advance(10_000)
        retried = decode_record(server.store.read_queue("%RETRY%own", 0, 0, 1, 1).records)
        request = pb.SendBackRequest(
            group="own", topic=retried.topic, log_offset=retried.log_offset
        )
        await ask(peer, "SendBack", request, pb.SendBackReply)
        purge = pb.PurgeDeadLettersRequest(group="level", below_offset=3)
        await ask(peer, "PurgeDeadLetters", purge, pb.PurgeDeadLettersReply)
    file = StateFile(OsDisk(), str(path), "subscriptionGroup.json")
    table = file.load(parse_groups).value
    assert table is not None
    policies = {"exponential": EXPONENTIAL}
    file.save(render_groups(with_policies(table, policies)))


def with_policies(table: GroupTable, policies: Mapping[str, Object]) -> GroupTable:
    for name, policy in policies.items():
        table.groups[name].retry_policy.clear()
        table.groups[name].retry_policy.update(policy)
    return table


def records(document: Document, topic: str) -> list[tuple[int, str]]:
    """Return the reconsume times and origin of what lies in TOPIC."""
    return [
        (record["reconsumeTimes"], record["properties"]["RETRY_TOPIC"])
        for record in document["records"]
        if record["topic"] == topic
    ]


async def test_java_keeps_and_delivers_what_ours_left(tmp_path: Path) -> None:
    require_java()
    await left(tmp_path / "ours")

    (ours,) = dumps([(tmp_path / "ours", SMALL)], tmp_path / "dump-ours")
    verdict = verify_start(tmp_path / "ours", SMALL, keep=tmp_path / "java")
    assert verdict["healthy"], verdict["log"]
    (after,) = dumps([(tmp_path / "java", SMALL)], tmp_path / "dump-java")

    # What waited by level and by timer came again, once, under Apache's broker.
    assert records(ours, "%RETRY%own") == [(1, TOPIC)]
    assert records(after, "%RETRY%own") == [(1, TOPIC), (2, TOPIC)]
    assert records(ours, "%RETRY%level") == []
    assert records(after, "%RETRY%level") == [(1, TOPIC)]
    for document in (ours, after):
        assert len(records(document, "%DLQ%level")) == 4
        groups = document["config"]["subscriptionGroups"]
        policy = groups["own"]["groupRetryPolicy"]
        assert policy["customizedRetryPolicy"] == {"next": [OWN[0]] * 2 + OWN}
        assert document["config"]["consumerOffsets"][f"%DLQ%level@{DEAD_LETTERS_GROUP}"] == {"0": 3}
    # Apache's broker wrote the file anew, and it means the same here.
    again = StateFile(OsDisk(), str(tmp_path / "java"), "subscriptionGroup.json").load(parse_groups)
    assert again.value is not None
    assert subscription_check(again.value.groups["own"]) == "warn"
    assert subscription_check(again.value.groups["level"]) == "grace"
    policies = {name: group.retry_policy for name, group in again.value.groups.items()}
    assert retry_intervals_of(policies["own"]) == tuple(OWN)
    assert retry_intervals_of(policies["level"]) == ()
    assert retry_intervals_of(policies["exponential"]) == (3_000, 9_000, 27_000, 60_000)
