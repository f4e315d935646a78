"""The control of the campaign: real trouble, and replicas that acknowledge by a set that has shrunk for them alone.

The master is cut off from the registry, and from one follower. It cannot say any more to the registry that this one has
left; who acknowledges all the same, as Apache RocketMQ 5.5.0 does, loses it when that follower is elected. The check
has to find that; and nothing, where replicas keep to the rule.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer, Message
from pocketmq.proto.errors import PocketMQError

from ..crash.kill_campaign import body_of
from ..zookeeper.servers import running
from .history import Acknowledged, History, Sent, check
from .links import REGISTRY
from .replica_set import ReplicaSet
from .workload import QUEUES, TOPIC

pytestmark = [
    pytest.mark.java,
    pytest.mark.processes,
    pytest.mark.campaign,
    pytest.mark.long,
]

#: Long enough that the master's lease lasts while it misses the follower for LAG_MS.
SESSION_MS = 9_000
LAG_MS = 1_000
REST_S = 60.0


async def send(producer: AsyncProducer, history: History, seconds: float) -> int:
    """Send one message after the other for SECONDS; return how many were acknowledged."""
    count = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                number = len(history.sent)
                history.sent[number] = Sent(number, "control", "replicas", number % QUEUES)
                message = Message(TOPIC, body_of(number), queue=number % QUEUES)
                try:
                    receipt = await producer.send(message)
                except PocketMQError:
                    continue
                history.acknowledged.append(
                    Acknowledged(number, receipt.queue, receipt.queue_offset)
                )
                count += 1
    except TimeoutError:
        return count


async def lose_a_follower(folder: Path, rule: str) -> tuple[History, int]:
    """Do it with replicas that break RULE, "": none; return the history, and what was acknowledged while cut off."""
    history = History()
    with running(folder / "zookeeper") as zookeeper:
        replicas = ReplicaSet(
            folder, zookeeper, history, rule=rule, session_ms=SESSION_MS, replica_lag_ms=LAG_MS
        )
        try:
            await replicas.start()
            async with AsyncAdmin(replicas.nameserver) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            async with AsyncProducer(
                replicas.nameserver, acks="replicas", compression=None, delivery_timeout_ms=60_000
            ) as producer:
                assert await send(producer, history, 1.0) > 0
                master = replicas.master
                assert master is not None
                lost, staying = replicas.others(master)
                replicas.links.cut(master.name, [REGISTRY])
                replicas.links.snap(master.name, [lost.name])
                shrunk = await send(producer, history, 4.0)
                await asyncio.gather(replicas.kill(master), replicas.kill(staying))
                replicas.links.mend()
                await elected(replicas, lost.number)
                replicas.mend()
                await replicas.all_begun()
                confirm = await replicas.at_rest(REST_S)
                assert await send(producer, history, 1.0) > 0
            confirm = await replicas.at_rest(REST_S)
            for replica in replicas.replicas:
                await replicas.stop(replica)
            replicas.read_queues(TOPIC, QUEUES)
            replicas.collect(confirm)
        finally:
            await replicas.close()
    return history, shrunk


async def elected(replicas: ReplicaSet, replica: int) -> None:
    """Wait until REPLICA is master."""
    async with asyncio.timeout(REST_S):
        while replicas.cell is None or replicas.cell.master != replica:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.timeout(600)
async def test_who_acknowledges_by_a_set_that_shrank_for_him_alone_is_found_out(
    tmp_path: Path,
) -> None:
    history, shrunk = await lose_a_follower(tmp_path, "3 acknowledges by the smaller set")

    assert shrunk > 0
    violations = check(history)
    rules = [violation.rule for violation in violations]
    assert rules.count("acknowledged") > 1
    # What was confirmed may be dropped by nobody: where it had to be, the store was kept.
    assert set(rules) <= {"acknowledged", "set aside"}


@pytest.mark.timeout(600)
async def test_who_keeps_to_the_rule_acknowledges_nothing_meanwhile_and_loses_nothing(
    tmp_path: Path,
) -> None:
    history, shrunk = await lose_a_follower(tmp_path, "")

    assert shrunk <= 1  # What was under way when the links were cut.
    assert check(history) == []
