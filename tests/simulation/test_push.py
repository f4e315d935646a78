"""Push consumers over real brokers on virtual time: members come, go and die, messages fail, nothing is lost."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, AsyncPushConsumer, Message

from .cluster import Client, Cluster, cluster_of
from .virtual_loop import run

TOPIC = "orders"
COUNT = 6_000


class Shop:
    """What all members together have handled, and members to do it."""

    def __init__(self, cluster: Cluster, seed: int, *, ordered: bool) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.ordered = ordered
        self.handled: Counter[int] = Counter()
        #: What each member has been given.
        self.by_member: dict[str, set[int]] = {}
        #: By queue, the offsets in the order in which they were handled.
        self.by_queue: dict[tuple[str, int], list[int]] = {}
        self.retried = 0

    async def handle(self, member: str, message: Any) -> bool:
        self.by_member.setdefault(member, set()).add(int(message.body))
        if self.random.random() < 0.1:
            await self.cluster.sleep(self.random.uniform(1, 40))
        if self.random.random() < 0.005:
            return False
        self.handled[int(message.body)] += 1
        self.retried += message.stored_topic != TOPIC
        if message.stored_topic == TOPIC:
            key = (message.broker, message.queue)
            self.by_queue.setdefault(key, []).append(message.queue_offset)
        return True

    def member(self, name: str) -> tuple[Client, AsyncPushConsumer]:
        client = self.cluster.client(name)
        return client, AsyncPushConsumer(
            "billing",
            TOPIC,
            partial(self.handle, name),
            self.cluster.addresses,
            clock=client.machine.clock,
            connections=client.connections(),
            random=client.random,
            ordered=self.ordered,
            suspend_current_queue_ms=50,
            start="earliest",
        )

    async def send(self, first: int, count: int) -> None:
        client = self.cluster.client("producer")
        async with AsyncProducer(
            self.cluster.addresses,
            clock=client.machine.clock,
            connections=client.connections(),
            random=client.random,
        ) as producer:
            for number in range(first, first + count, 500):
                await producer.send_many(
                    Message(TOPIC, b"%d" % one) for one in range(number, number + 500)
                )
                await self.cluster.sleep(100)

    async def until_all_is_handled(self) -> None:
        for _ in range(600):
            if len(self.handled) == COUNT:
                return
            await self.cluster.sleep(1_000)
        raise AssertionError(f"{COUNT - len(self.handled)} of {COUNT} messages were not handled")


async def _live(shop: Shop) -> None:
    """Have members come, go and die while messages come; "one" dies."""
    members = {name: shop.member(name) for name in ("one", "two", "three")}
    for _, member in members.values():
        await member.start()
    await shop.send(0, COUNT // 2)
    members["one"][0].kill()
    late = shop.member("four")[1]
    await late.start()
    await shop.send(COUNT // 2, COUNT // 2)
    await members["two"][1].close()
    await shop.until_all_is_handled()
    for consumer in (members["three"][1], late):
        await consumer.close()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
def test_nothing_is_lost_and_repeats_come_from_the_dead_only(
    tmp_path: Path, seed: int, ordered: bool
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=seed) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic(TOPIC, queues=4)
            shop = Shop(cluster, seed, ordered=ordered)

            await _live(shop)

            assert sorted(shop.handled) == list(range(COUNT))
            repeats = {one for one, times in shop.handled.items() if times > 1}
            assert repeats <= shop.by_member["one"]
            assert max(shop.handled.values()) <= 2
            if ordered:
                assert shop.retried == 0
                for offsets in shop.by_queue.values():
                    firsts = list(dict.fromkeys(offsets))
                    assert firsts == sorted(firsts)
            else:
                assert shop.retried

    run(scenario())


def test_members_that_come_and_go_cause_no_repeats(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=5) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic(TOPIC, queues=4)
            shop = Shop(cluster, 5, ordered=False)
            first = shop.member("one")[1]
            await first.start()
            await shop.send(0, COUNT // 3)
            second = shop.member("two")[1]
            await second.start()
            await shop.send(COUNT // 3, COUNT // 3)
            await first.close()
            await shop.send(2 * COUNT // 3, COUNT // 3)
            await shop.until_all_is_handled()
            await second.close()

            assert set(shop.handled.values()) == {1}

    run(scenario())
