"""Texts that consumers commit with their offsets, over brokers that are stopped and killed, and moves of a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from pocketmq.broker.commit_texts import commit_text_table
from pocketmq.client import (
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    OffsetAndMetadata,
    OffsetTarget,
    Queue,
)
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.table_files import read_tables
from pocketmq.tools.group_description import document

from .cluster import Cluster, cluster_of
from .virtual_loop import run

TOPIC, GROUP = "orders", "billing"
QUEUE = Queue(TOPIC, "broker-a", 0)
#: Longer than offsets and texts wait for their save.
SAVED_MS = 6_000


class Scene:
    """A topic of one queue with ten messages, and an admin."""

    def __init__(self, cluster: Cluster, admin: AsyncAdmin) -> None:
        self.cluster = cluster
        self.admin = admin

    async def send(self) -> None:
        client = self.cluster.client("producer")
        async with AsyncProducer(
            self.cluster.addresses, clock=client.machine.clock, connections=client.connections()
        ) as producer:
            for number in range(10):
                await producer.send(Message(TOPIC, b"%d" % number))

    def consumer(self) -> AsyncPullConsumer:
        client = self.cluster.client("consumer")
        return AsyncPullConsumer(
            GROUP,
            TOPIC,
            self.cluster.addresses,
            clock=client.machine.clock,
            connections=client.connections(),
            auto_commit=False,
        )

    async def commit(self, offset: int, text: str) -> None:
        """Commit OFFSET with TEXT, as a member that then goes."""
        async with self.consumer() as consumer:
            assert await consumer.poll(1, timeout_ms=20_000)
            await consumer.commit_sync({QUEUE: (offset, text)})
            assert await consumer.committed(QUEUE) == OffsetAndMetadata(offset, text)

    async def told(self) -> tuple[int, str]:
        """Return what an administrator is told."""
        report = await self.admin.describe_group(GROUP, topic=TOPIC)
        (queue,) = report.queues
        (shown,) = document(report)["queues"]
        assert shown["metadata"] == (queue.metadata or None)
        return queue.offset, queue.metadata

    async def restart(self, *, kill: bool = False) -> None:
        (broker,) = self.cluster.brokers
        await (broker.kill() if kill else broker.stop())
        await broker.start()
        await broker.broker.registered(10)


def play(folder: Path, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with cluster_of(folder, seed=1, brokers=1) as cluster, cluster.admin() as admin:
            await admin.create_topic(TOPIC, queues=1)
            scene = Scene(cluster, admin)
            await scene.send()
            await scenario(scene)

    run(whole())


def test_a_text_is_told_to_the_next_member_and_the_administrator(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.commit(4, "invoice 17")
        assert await scene.told() == (4, "invoice 17")
        async with scene.consumer() as consumer:
            assert (await consumer.poll(1, timeout_ms=20_000))[0].queue_offset == 4
            assert await consumer.committed(QUEUE) == OffsetAndMetadata(4, "invoice 17")
            await consumer.commit()
        assert await scene.told() == (5, "")

    play(tmp_path, scenario)


def test_a_text_outlives_a_stop_and_once_it_is_saved_a_kill(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.commit(4, "invoice 17")
        await scene.restart()
        assert await scene.told() == (4, "invoice 17")

        await scene.commit(6, "invoice 18")
        await scene.cluster.sleep(SAVED_MS)
        await scene.restart(kill=True)
        assert await scene.told() == (6, "invoice 18")

        await scene.commit(7, "invoice 19")
        await scene.restart(kill=True)
        # Both are lost with the seconds before the kill, as offsets are; what was saved goes together.
        assert await scene.told() == (6, "invoice 18")

        file = tmp_path / "broker-a" / "config" / "consumerOffset.json"
        assert "invoice" not in file.read_text()
        table = commit_text_table()
        read_tables(OsDisk(), str(tmp_path / "broker-a/pocketmq/tables"), [table])
        assert [text for _, _, text in table.items()] == [(6, "invoice 18")]

    play(tmp_path, scenario)


def test_a_move_leaves_the_text_behind_also_over_a_kill(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.commit(4, "invoice 17")
        await scene.cluster.sleep(SAVED_MS)

        await scene.admin.reset_offsets(GROUP, TOPIC, OffsetTarget(offset=8))
        await scene.admin.reset_offsets(GROUP, TOPIC, OffsetTarget(offset=4))
        await scene.restart(kill=True)

        assert await scene.told() == (4, "")

    play(tmp_path, scenario)
