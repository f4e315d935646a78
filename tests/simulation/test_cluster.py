"""The harness itself: a cluster on virtual time sends, reads, loses and finds servers, the same from the same seed."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from pocketmq.client import AsyncProducer, AsyncPullConsumer, Message
from pocketmq.proto.errors import ConnectionLost, PocketMQError

from . import virtual_loop
from .cluster import Client, Cluster, cluster_of
from .virtual_loop import Stuck, run


def producer_of(client: Client) -> AsyncProducer:
    return AsyncProducer(
        client.cluster.addresses,
        clock=client.machine.clock,
        connections=client.connections(),
        random=client.random,
    )


def consumer_of(client: Client, group: str = "g", topic: str = "orders") -> AsyncPullConsumer:
    return AsyncPullConsumer(
        group,
        topic,
        client.cluster.addresses,
        clock=client.machine.clock,
        connections=client.connections(),
    )


async def sent(cluster: Cluster, first: int, count: int) -> None:
    async with producer_of(cluster.client("producer")) as producer:
        await producer.send_many(
            Message("orders", b"%d" % number) for number in range(first, first + count)
        )


async def read_all(cluster: Cluster, count: int) -> list[int]:
    bodies: list[int] = []
    async with consumer_of(cluster.client("consumer")) as consumer:
        while len(bodies) < count:
            messages = await consumer.poll(timeout_ms=60_000)
            assert messages, f"only {len(bodies)} of {count} messages are there"
            bodies += [int(message.body) for message in messages]
        assert not await consumer.poll(timeout_ms=5_000), "more is there"
    return bodies


def test_what_is_sent_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=1) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("orders", queues=4)
            await sent(cluster, 0, 1000)

            assert sorted(await read_all(cluster, 1000)) == list(range(1000))

    run(scenario())


def test_a_killed_broker_comes_back_with_what_it_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=2) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("orders", queues=4)
            await sent(cluster, 0, 500)
            await cluster.brokers[0].kill()
            await sent(cluster, 500, 500)
            await cluster.brokers[0].start()

            assert sorted(await read_all(cluster, 1000)) == list(range(1000))

    run(scenario())


def test_neither_a_lost_request_nor_a_lost_answer_makes_a_repeat(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=3, brokers=1) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("orders", queues=1)
            client = cluster.client("producer")
            link = cluster.network.link(client.machine, cluster.brokers[0].address)
            async with producer_of(client) as producer:
                await producer.send(Message("orders", b"0"))
                link.lose_next_request()
                await producer.send(Message("orders", b"1"))
                link.lose_next_answer()
                await producer.send(Message("orders", b"2"))

            assert link.cuts == 2
            assert await read_all(cluster, 3) == [0, 1, 2]

    run(scenario())


def test_a_name_server_that_is_lost_is_done_without(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=4) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("orders", queues=2)
            await cluster.name_servers[0].kill()
            await sent(cluster, 0, 10)
            await cluster.name_servers[0].start()
            await cluster.name_servers[1].kill()
            await cluster.sleep(10_000)

            assert sorted(await read_all(cluster, 10)) == list(range(10))

    run(scenario())


def test_a_client_that_stands_still_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=5) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("orders", queues=1)
            client = cluster.client("producer")
            async with producer_of(client) as producer:
                await producer.send(Message("orders", b"0"))
                client.machine.stall()
                future = producer.send_nowait(Message("orders", b"1"))
                await cluster.sleep(5_000)
                assert not future.done()
                client.machine.go_on()
                await future

            assert sorted(await read_all(cluster, 2)) == [0, 1]

    run(scenario())


def test_a_paused_link_is_late_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, seed=6, brokers=1) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("orders", queues=1)
            client = cluster.client("producer")
            link = cluster.network.link(client.machine, cluster.brokers[0].address)
            async with producer_of(client) as producer:
                await producer.send(Message("orders", b"0"))
                link.pause()
                futures = [producer.send_nowait(Message("orders", b"%d" % n)) for n in (1, 2)]
                await cluster.sleep(3_000)
                link.heal()
                receipts = [await future for future in futures]

            assert [receipt.queue_offset for receipt in receipts] == [1, 2]

    run(scenario())


def test_a_server_that_is_not_there_is_an_error_and_no_wait(tmp_path: Path) -> None:
    async def scenario() -> PocketMQError:
        async with cluster_of(tmp_path, seed=7) as cluster:
            client = cluster.client("producer")
            producer = AsyncProducer(
                "127.0.0.9:9876", clock=client.machine.clock, connections=client.connections()
            )
            async with producer:
                with pytest.raises(PocketMQError) as caught:
                    await producer.send(Message("orders", b"x"))
            return caught.value

    assert isinstance(run(scenario()).__cause__, ConnectionLost)


def test_the_same_seed_makes_the_same_history(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> str:
        history = hashlib.sha256()
        async with cluster_of(folder, seed=8) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("orders", queues=4)
            async with producer_of(cluster.client("producer")) as producer:
                for number in range(200):
                    receipt = await producer.send(Message("orders", b"%d" % number))
                    history.update(f"{receipt.queue} {cluster.clock.now_ms()};".encode())
        return history.hexdigest()

    assert run(scenario(tmp_path / "one")) == run(scenario(tmp_path / "two"))


def test_a_wait_for_what_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(virtual_loop, "_STUCK_S", 0.01)
    with pytest.raises(Stuck):
        run(scenario())


def test_a_wait_for_what_never_comes_is_told_though_others_wait_for_instants() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_later(86_400, tick)

        tick()
        await loop.create_future()

    with pytest.raises(Stuck, match="still waited for"):
        run(scenario())
