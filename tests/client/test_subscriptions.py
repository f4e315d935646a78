"""What a pull consumer reads: its topics and filters, queues that it was assigned, all queues by broadcasting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pocketmq.client import Queue, Sql
from pocketmq.proto.errors import InvalidArgument, InvalidFilter, QueueNotFound
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_broker import add_topic
from .pull_world import World, numbers, q, store


async def test_subscribing_anew_reads_other_topics() -> None:
    here = World()
    add_topic(here.broker, "bills", 1)
    store(here.broker, 5, "orders")
    store(here.broker, 5, "bills")

    async with here.consumer() as reading:
        assert (await reading.poll())[0].topic == "orders"
        await reading.subscribe(["bills"])
        assert (await reading.poll())[0].topic == "bills"
        assert {queue.topic for queue in await reading.assignment()} == {"bills"}


async def test_filters_travel_with_every_fetch_and_join() -> None:
    here = World()
    fetched: list[pb.Filter] = []
    real = here.broker.fetch

    def fetch(request: pb.FetchRequest) -> pb.FetchReply:
        fetched.append(request.filter)
        return real(request)

    here.broker.fetch = fetch  # type: ignore[method-assign]
    async with here.consumer({"orders": "b || a"}) as reading:
        await reading.poll(timeout_ms=0)
        await here.clock.advance(1)
        await reading.subscribe({"orders": Sql("amount > 5")})
        await here.clock.advance(1)

    assert (fetched[0].kind, fetched[0].expression) == (pb.Filter.TAG, "a || b")
    assert fetched[-1].kind == pb.Filter.SQL
    (wanted,) = [s for s in here.broker.sharing.joins[0].subscriptions if s.topic == "orders"]
    assert wanted.filter == fetched[0]
    with pytest.raises(InvalidFilter):
        here.consumer({"orders": Sql("amount >")})


async def test_what_a_filter_steps_over_is_committed_and_counted() -> None:
    here = World()
    store(here.broker, 10)
    real = here.broker.fetch

    def fetch(request: pb.FetchRequest) -> pb.FetchReply:
        reply = real(request)
        if request.offset >= 4:
            reply.records, reply.filtered_count = b"", reply.next_offset - request.offset
        return reply

    here.broker.fetch = fetch  # type: ignore[method-assign]
    async with here.consumer({"orders": "x"}, fetch_messages_max=2) as reading:
        for _ in range(2):
            await reading.poll()
        waiting = asyncio.ensure_future(reading.poll(timeout_ms=6_000))
        await here.clock.advance(6_000)
        assert await waiting == []
        assert here.committed() == 10
        assert reading.metrics().filtered == 6


async def test_assigned_queues_are_read_beside_the_group() -> None:
    here = World(queues=3)
    for number in range(3):
        store(here.broker, 5, queue=number)
    here.broker.committed["billing", "orders", 1] = 2

    async with here.consumer(()) as reading:
        await reading.assign([q(1)])
        assert numbers(await reading.poll()) == [2, 3, 4]
        await reading.assign([q(2)])
        assert (await reading.poll())[0].queue == 2
        with pytest.raises(InvalidArgument, match="after assign"):
            await reading.subscribe("orders")

    assert (here.committed(1), here.committed(2)) == (5, 5)
    assert here.broker.sharing.joins == []
    assert here.broker.sharing.leases == {}


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("delivered", [0, 1])
async def test_what_a_filter_skipped_is_committed_at_the_end(
    delivered: int, *, auto_commit: bool
) -> None:
    """Though the application did not ask for more."""
    here = World()
    store(here.broker, 10)
    here.broker.unwanted = set(range(delivered, 10))
    settings = {"fetch_messages_max": 1, "auto_commit": auto_commit}

    async with here.consumer({"orders": "x"}, **settings) as reading:
        for _ in range(delivered):
            assert numbers(await reading.poll()) == [0]
        await here.clock.advance(100)
        if not auto_commit:
            await reading.commit()

    assert here.committed() == 10


async def test_what_was_skipped_behind_undelivered_messages_is_not_committed() -> None:
    here = World()
    store(here.broker, 10)
    here.broker.unwanted = set(range(5, 10))

    async with here.consumer({"orders": "x"}, fetch_messages_max=5) as reading:
        assert numbers(await reading.poll(2)) == [0, 1]
        await here.clock.advance(100)

    assert here.committed() == 2


async def test_what_was_skipped_behind_a_failure_is_not_committed() -> None:
    here = World()
    store(here.broker, 10)
    here.broker.unwanted = set(range(5, 10))

    async def fail() -> None:
        async with here.consumer({"orders": "x"}, fetch_messages_max=5) as reading:
            assert len(await reading.poll()) == 5
            await here.clock.advance(100)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()

    assert here.committed() in (None, 0)


async def test_what_a_filter_skipped_is_committed_when_the_queue_goes() -> None:
    here = World(queues=2)
    for number in range(2):
        store(here.broker, 10, queue=number)
    here.broker.unwanted = set(range(10))

    async with here.consumer({"orders": "x"}) as reading:
        await here.clock.advance(100)
        async with here.consumer({"orders": "x"}) as other:
            await here.clock.advance(100)
            (gone,) = await other.assignment()
            assert gone not in await reading.assignment()
            assert here.committed(gone.number) == 10


@pytest.mark.parametrize("gone", [q(9), q(0, "nowhere")], ids=str)
async def test_an_assigned_queue_that_is_not_there_keeps_no_other_from_being_read(
    gone: Queue,
) -> None:
    here = World(queues=3)
    store(here.broker, 5, queue=1)
    real = here.broker.group_offsets

    def group_offsets(request: pb.GroupOffsetsRequest, _: Any) -> pb.GroupOffsetsReply:
        if any(one.queue == 9 for one in request.queues):
            raise QueueNotFound("there is no queue 9")
        return real(request, _)

    here.broker.group_offsets = group_offsets  # type: ignore[method-assign]
    async with here.consumer(()) as reading:
        await reading.assign([gone, q(0), q(1), q(2)])
        assert await reading.assignment() == [q(0), q(1), q(2)]
        assert numbers(await reading.poll()) == [0, 1, 2, 3, 4]


async def test_name_servers_are_asked_for_no_route_while_nothing_fails() -> None:
    here = World()
    store(here.broker, 5)

    async with here.consumer(()) as reading:
        await reading.assign([q(0)])
        await reading.poll()
        here.cluster.asked.clear()
        for _ in range(3):
            await here.clock.advance(60_000)
            store(here.broker, 1)
            assert len(await reading.poll()) == 1

        assert set(here.cluster.asked) == {here.broker.address}


async def test_who_subscribes_cannot_be_assigned() -> None:
    async with World().consumer() as reading:
        with pytest.raises(InvalidArgument, match="after subscribe"):
            await reading.assign([q(0)])


async def test_broadcasting_reads_everything_and_keeps_its_own_offsets(tmp_path: Path) -> None:
    here = World(queues=2)
    for number in range(2):
        store(here.broker, 5, queue=number)
    settings = {"broadcasting": True, "offsets_folder": str(tmp_path)}

    for expected in (5, 5):
        async with (
            here.consumer(**settings, instance_id="one") as one,
            here.consumer(**settings, instance_id="two") as two,
        ):
            for reading in (one, two):
                assert len(await reading.poll()) == len(await reading.poll()) == expected
            with pytest.raises(InvalidArgument, match="enable_retries=False"):
                await one.send_back((await one.pull("orders", 0, 0)).messages[0])
        for number in range(2):
            store(here.broker, 5, queue=number)

    assert here.broker.committed == {}
    assert here.broker.sharing.joins == []
