"""Sharing queues: plans, leases, moves, loss, on a virtual clock with brokers in memory."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.client.queue import Queue
from pocketmq.proto.errors import ConfigError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_broker import add_topic
from .sharing_world import world

# ------------------------------------------------------------ coming and going


async def test_who_is_alone_gets_everything_where_it_was_committed() -> None:
    async with world() as here:
        here.cluster.broker.committed["billing", "orders", 2] = 7
        member = await here.join()

        assert member.numbers == [0, 1, 2, 3]
        held = member.reader.held[Queue("orders", "broker-a", 2)]
        assert (held.committed, held.from_start) == (7, True)
        assert member.sharing.held(held.queue) == held


async def test_only_moved_queues_pause_when_somebody_joins() -> None:
    async with world() as here:
        first = await here.join()
        second = await here.join()

        assert first.numbers == [0, 1] or first.numbers == [2, 3]
        assert sorted(first.numbers + second.numbers) == [0, 1, 2, 3]
        assert len(first.reader.ended) == 2
        assert not any(held.from_start for held in second.reader.held.values())
        assert first.parts.counts.queues_released == 2
        assert second.parts.counts.queues_gained == 2


async def test_the_gainer_waits_until_the_loser_has_finished_and_starts_at_its_commit() -> None:
    async with world() as here:
        first = await here.join()
        first.reader.may_end.clear()
        second = await here.join()
        await here.clock.advance(25_000)

        assert (first.numbers, second.numbers) == ([0, 1, 2, 3], [])
        for number in range(4):
            here.cluster.broker.committed["billing", "orders", number] = 40 + number
        first.reader.may_end.set()
        await here.clock.advance(1_000)

        assert sorted(first.numbers + second.numbers) == [0, 1, 2, 3]
        assert {q.number: h.committed for q, h in second.reader.held.items()} == {
            number: 40 + number for number in second.numbers
        }
        assert second.parts.counts.gaining_ms >= 2 * 25_000
        assert first.parts.counts.releasing_ms >= 2 * 25_000


async def test_who_does_not_finish_in_time_gives_up_all_the_same() -> None:
    async with world() as here:
        first = await here.join(rebalance_timeout_ms=5_000)
        first.reader.may_end.clear()
        second = await here.join()

        await here.clock.advance(6_000)

        assert len(first.numbers) == len(second.numbers) == 2


async def test_who_leaves_gives_back_at_once() -> None:
    async with world() as here:
        first, second = await here.join(), await here.join()
        await first.close()
        await here.clock.advance(100)

        assert second.numbers == [0, 1, 2, 3]
        assert here.groups.left == [first.sharing.member_id]
        assert first.numbers == []


async def test_who_left_may_come_back() -> None:
    async with world() as here:
        member = await here.join()
        await member.sharing.close()
        assert member.numbers == []

        member.sharing.start()
        await here.clock.advance(10)

        assert member.numbers == [0, 1, 2, 3]


async def test_the_queues_of_a_dead_member_come_over_when_its_leases_are_over() -> None:
    async with world() as here:
        first, second = await here.join(), await here.join()
        kept = second.numbers
        await first.die()
        here.groups.drop(first.sharing.member_id)

        await here.clock.advance(20_000)
        assert second.numbers == kept
        await here.clock.advance(12_000)

        assert second.numbers == [0, 1, 2, 3]
        assert second.reader.ended == []


async def test_a_queue_that_comes_and_goes_before_it_is_ours_is_not_begun() -> None:
    async with world() as here:
        first = await here.join()
        first.reader.may_end.clear()
        second = await here.join()
        await second.close()
        first.reader.may_end.set()
        await here.clock.advance(40_000)

        assert first.numbers == [0, 1, 2, 3]
        assert second.reader.ended == []
        holders = {lease.member_id for lease in here.groups.leases.values()}
        assert holders == {first.sharing.member_id}


# ------------------------------------------------------------ plans


@pytest.mark.parametrize("rebalance", ["group", "client"])
async def test_new_queues_are_divided(rebalance: str) -> None:
    async with world() as here:
        first = await here.join(rebalance=rebalance)
        second = await here.join(rebalance=rebalance)
        add_topic(here.cluster.broker, "orders", 8)

        await here.clock.advance(25_000)

        assert sorted(first.numbers + second.numbers) == list(range(8))
        assert len(first.numbers) == len(second.numbers) == 4


async def test_queues_that_vanish_for_a_moment_stay_and_go_later() -> None:
    async with world() as here:
        member = await here.join()
        del here.cluster.broker.topics["orders"]
        await here.clock.advance(15_000)
        assert member.reader.ended == []
        add_topic(here.cluster.broker, "orders")
        await here.clock.advance(60_000)
        assert member.reader.ended == []

        add_topic(here.cluster.broker, "orders", 1)
        await here.clock.advance(60_000)

        assert member.numbers == [0]


async def test_other_subscriptions_make_another_plan() -> None:
    async with world() as here:
        add_topic(here.cluster.broker, "bills", 2)
        member = await here.join()
        member.sharing.replace_subscriptions({"bills": pb.Filter()})
        await here.clock.advance(100)

        assert {queue.topic for queue in member.reader.held} == {"bills"}
        assert len(member.reader.ended) == 4


async def test_members_that_want_different_topics_get_only_theirs() -> None:
    async with world() as here:
        add_topic(here.cluster.broker, "bills", 2)
        first = await here.join("orders", "bills")
        second = await here.join("orders")
        await here.clock.advance(100)

        assert {queue.topic for queue in second.reader.held} == {"orders"}
        assert len(first.reader.held) == 4


async def test_a_faulty_strategy_reaches_the_application() -> None:
    class Broken:
        name = "broken"

        def allocate(self, members: Any, queues: Any) -> dict[str, list[Queue]]:
            raise ZeroDivisionError

    async with world() as here:
        member = await here.join(strategy=Broken())

        assert [type(error) for error in member.reader.errors] == [ConfigError]
