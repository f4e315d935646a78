"""Reads from replicas that follow, by real replicas, brokers and sockets: lag of groups, and Spark's ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from pocketmq.client.consuming import queue_reader
from pocketmq.client.queue import Queue
from pocketmq.tools.spark.live.cluster import LiveCluster
from pocketmq.tools.spark.live.losses import Losses
from pocketmq.tools.spark.live.place import Place
from pocketmq.tools.spark.live.range_reading import fetched
from pocketmq.tools.spark.live.ranges import QueueRange
from pocketmq.tools.spark.live.read_options import Choice, Pulling

from ..waiting import until
from .served_set import ServedMember, ServedSet, served_set
from .test_failover import until_registered
from .v2_caller import Caller

pytestmark = pytest.mark.long

#: A replica that is kept from its work for two thirds of a session sends readers to the master.
SESSION_MS = 60_000
COUNT = 1_000


def followers(world: ServedSet) -> list[ServedMember]:
    return [world.served(one.id) for one in world.up if not one.is_master]


def was_asked(member: ServedMember, method: str) -> bool:
    """Was METHOD what some connection asked MEMBER last?"""
    figures = member.port_of_clients._carrier.connection_figures(1, 99)
    return any(method in one.last_path for one in figures)


def metrics(address: str) -> dict[str, float]:
    """Return the figures on the page of the port at ADDRESS."""
    with build_opener(ProxyHandler({})).open(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def pop(address: str) -> None:
    """Send four messages to the broker at ADDRESS, receive them, and finish the first."""
    caller = Caller(address)
    for number in range(4):
        caller.send(b"%d" % number)
    received = caller.receive()
    caller.acknowledge(received[0])
    caller.channel.close()
    assert len(received) == 4


async def test_followers_tell_of_lag_what_the_master_tells(tmp_path: Path) -> None:
    async with served_set(tmp_path, session_ms=SESSION_MS) as world:
        await until_registered(world)
        (master,) = world.masters
        servers = world.name_server.address
        async with AsyncAdmin(servers) as admin, AsyncProducer(servers) as producer:
            await admin.create_topic("T", queues=1)
            await asyncio.to_thread(pop, world.served(master.id).address)
            await producer.send(Message("T", b"unread", queue=0))
            await world.whole()

            def have_all() -> bool:
                views = [one.node.follower_view for one in followers(world)]
                return all(
                    view is not None
                    and view.is_current
                    and view.store.queue_bounds("T", 0) == (0, 5)
                    and view.tables.committed("T", "g", 0)[0] == 1
                    and view.tables.offsets_epoch == view.epoch
                    for view in views
                )

            await until(have_all)
            told = await admin.describe_group("g", read_from="any")
            assert any(was_asked(follower, "GroupOffsets") for follower in followers(world))
            expected = await admin.describe_group("g")

        (one,), (wanted,) = told.queues, expected.queues
        assert (one.offset, one.max_offset, one.in_flight_count, one.popped_to) == (1, 5, 3, 4)
        assert one.unread_bytes == wanted.unread_bytes
        assert one.oldest_unread_ms > 0


async def test_what_followers_filter_and_find_is_what_the_master_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "_REPORT_MS", 60_000)
    async with served_set(tmp_path, session_ms=SESSION_MS) as world:
        await until_registered(world)
        servers = world.name_server.address
        async with AsyncAdmin(servers) as admin, AsyncProducer(servers) as producer:
            await admin.create_topic("T", queues=1)
            for number in range(20):
                tag = "red" if number % 4 == 0 else "blue"
                body = b"%d" % number
                await producer.send(Message("T", body, tag=tag, keys=[f"k{number}"], queue=0))
            await world.whole()

            def have_all() -> bool:
                views = [one.node.follower_view for one in followers(world)]
                return all(
                    view is not None
                    and view.is_current
                    and view.store.queue_bounds("T", 0)[1] == 20
                    for view in views
                )

            await until(have_all)
            async with AsyncPullConsumer("g", {"T": "red"}, servers, read_from="any") as reading:
                found: list[int] = []
                while len(found) < 5:
                    found += [int(one.body) for one in await reading.poll()]
                assert any(was_asked(one, "Broker/Fetch") for one in followers(world))
            assert found == [0, 4, 8, 12, 16]
            (skipped,) = (await admin.describe_group("g")).queues[0].skipped
            assert (skipped.count, skipped.first, skipped.last) == (15, 1, 19)

            async with asyncio.timeout(60):
                while not any(was_asked(one, "Broker/Lookup") for one in followers(world)):
                    await until(have_all)
                    await admin.lookup("T", "k7", read_from="any")
            (one,) = await admin.lookup("T", "k7", read_from="any")
            assert one.body == b"7"
            assert (await admin.lookup_id(one.message_id, "T", read_from="any")).body == b"7"
            assert await admin.lookup("T", "k20", read_from="any") == []
            more = await admin.lookup_offset("T", 0, 18, max_messages=9, read_from="any")
            assert [one.body for one in more] == [b"18", b"19"]


async def test_each_replica_shows_its_metrics_in_either_role(tmp_path: Path) -> None:
    async with served_set(tmp_path, session_ms=SESSION_MS) as world:
        names = {f'pocketmq_replica_behind_bytes{{replica="{one.id}"}}': one.id for one in world.up}

        async def shown() -> dict[int, tuple[bool, float, float, set[int], bool]]:
            """Return of each: is it master, its epoch, who is in sync, whom it tells of, does its broker, too?"""
            found = {}
            for member in world.up:
                page = await asyncio.to_thread(metrics, world.served(member.id).address)
                mine = f'{{cluster="c",set="orders",replica="{member.id}"}}'
                assert page[f"pocketmq_replica_info{mine}"] == 1
                found[member.id] = (
                    page["pocketmq_replica_master"] == 1,
                    page["pocketmq_replica_epoch"],
                    page["pocketmq_replica_in_sync_replicas"],
                    {id for name, id in names.items() if name in page},
                    "pocketmq_broker_topics" in page,
                )
            return found

        def expected() -> object:
            cell = world.cell
            return {
                one.id: (True, cell.epoch, 3, set(names.values()) - {one.id}, True)
                if one.id == cell.master
                else (False, cell.epoch, 3, set(), False)
                for one in world.up
            }

        async with asyncio.timeout(60):
            while await shown() != expected():  # noqa: ASYNC110 (questions to servers, not an event)
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("killed", ["follower", "master"])
async def test_a_range_is_read_whole_though_a_replica_dies_amid_it(
    tmp_path: Path, killed: str
) -> None:
    settings: dict[str, Any] = {"session_ms": SESSION_MS} if killed == "follower" else {}
    async with served_set(tmp_path, min_in_sync=2, **settings) as world:
        await until_registered(world)
        servers = world.name_server.address
        async with AsyncAdmin(servers) as admin, AsyncProducer(servers) as producer:
            await admin.create_topic("T", queues=1)
            for number in range(COUNT // 100):
                await producer.send_many(
                    [
                        Message("T", b"%d" % at, queue=0)
                        for at in range(100 * number, 100 * number + 100)
                    ]
                )
        await world.whole()
        loop = asyncio.get_running_loop()

        async def kill() -> None:
            if killed == "master":
                await world.fail_over()
            else:
                assert any(was_asked(one, "Broker/Fetch") for one in followers(world))
                for one in followers(world):
                    await one.kill()

        def kill_and_wait() -> None:
            asyncio.run_coroutine_threadsafe(kill(), loop).result()

        found = await asyncio.to_thread(read, servers, kill_and_wait)

        assert found == list(range(COUNT))


def read(servers: str, amid: Callable[[], None]) -> list[int]:
    """Return the offsets of all messages as a task of Spark reads them; AMID is called behind the first ones."""
    pulling = Pulling(batch_size=100, retries=60, retry_interval_ms=500, read_from="any")
    cluster = LiveCluster(Place((servers,)), pulling)
    try:
        ((queue, bounds),) = cluster.bounds(Choice(topics=("T",)), strict=True).items()
        assert queue == Queue("T", "orders", 0)
        assert bounds == (0, COUNT)
        offsets: list[int] = []
        for part in fetched(cluster, QueueRange(queue, 0, COUNT), None, Losses(True)):
            if not offsets:
                amid()
            offsets += part.run.columns.queue_offset[part.begin : part.end].tolist()
        return offsets
    finally:
        cluster.close()
