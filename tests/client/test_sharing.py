"""Sharing queues: plans, leases, moves, loss, on a virtual clock with brokers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from pocketmq.client.config import ReadingConfig
from pocketmq.client.consuming.coordinators import coordinators
from pocketmq.client.consuming.held_queue import HeldQueue
from pocketmq.client.consuming.parts import ConsumerParts
from pocketmq.client.consuming.sharing import Sharing
from pocketmq.client.queue import Queue
from pocketmq.client.session import Session
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ConfigError,
    MemberFenced,
    NotServed,
    Overloaded,
    PocketMQError,
    SubscriptionMismatch,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_cluster import FakeBroker, FakeCluster, FakeConnections, add_topic


class Reader:
    """Notes what it may read; ends as fast as it is told to."""

    def __init__(self) -> None:
        self.held: dict[Queue, HeldQueue] = {}
        self.ended: list[tuple[Queue, bool]] = []
        self.errors: list[PocketMQError] = []
        #: Ends wait for it.
        self.may_end = asyncio.Event()
        self.may_end.set()

    def begin(self, held: HeldQueue) -> None:
        assert held.queue not in self.held, "begin and end alternate"
        self.held[held.queue] = held

    async def end(self, queue: Queue, *, lost: bool) -> None:
        try:
            await self.may_end.wait()
        finally:
            del self.held[queue]
            self.ended.append((queue, lost))

    def fail(self, error: PocketMQError) -> None:
        self.errors.append(error)

    @property
    def numbers(self) -> list[int]:
        return sorted(queue.number for queue in self.held)


class Member:
    """A member of the group and what it reads."""

    def __init__(self, world: World, topics: Iterable[str], **settings: Any) -> None:
        self.reader = Reader()
        config = ReadingConfig(**settings)
        connections = FakeConnections(world.cluster)
        self.session = Session(config, connections, world.clock, world.random)
        self.parts = ConsumerParts("billing", config, self.session)
        wanted = {topic: pb.Filter() for topic in topics}
        self.sharing = Sharing(wanted, self.reader, self.parts, "pull")

    @property
    def numbers(self) -> list[int]:
        return self.reader.numbers

    async def close(self) -> None:
        await self.sharing.close()
        await self.session.close()

    async def die(self) -> None:
        """End without a word."""
        await self.session.tasks.close()


class World:
    """A cluster, a clock, members."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.cluster = FakeCluster(*brokers) if brokers else FakeCluster.of_one("orders")
        self.clock = VirtualClock()
        self.cluster.live_by(self.clock)
        self.random = Random(5)
        self.members: list[Member] = []

    @property
    def groups(self) -> Any:
        return self.cluster.broker.sharing

    async def join(self, *topics: str, **settings: Any) -> Member:
        member = Member(self, topics or ["orders"], **settings)
        self.members.append(member)
        member.sharing.start()
        await self.clock.advance(10)
        return member


@asynccontextmanager
async def world(*brokers: FakeBroker) -> AsyncIterator[World]:
    made = World(*brokers)
    try:
        yield made
    finally:
        for member in made.members:
            member.reader.may_end.set()
            await member.session.close()


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


# ------------------------------------------------------------ leases


async def test_leases_are_renewed_in_one_request_and_kept() -> None:
    async with world() as here:
        member = await here.join()
        tokens = {held.token for held in member.reader.held.values()}
        here.groups.requests.clear()

        await here.clock.advance(300_000)

        assert {held.token for held in member.reader.held.values()} == tokens
        assert len(here.groups.requests) == 300_000 // 22_500
        assert all(len(request.queues) == 4 for request in here.groups.requests)
        assert member.reader.ended == []


async def test_a_fetch_that_was_answered_renews_from_when_it_was_sent() -> None:
    async with world() as here:
        member = await here.join()
        held = list(member.reader.held.values())
        here.groups.requests.clear()

        for _ in range(10):
            sent_ms = here.clock.now_ms()
            await here.clock.advance(11_000)
            for one in held:
                member.sharing.fetched(one, sent_ms)
            # What was answered late says nothing of an earlier time.
            member.sharing.fetched(held[0], sent_ms - 9_000)
        assert here.groups.requests == []
        for lease in here.groups.leases.values():
            lease.ends_ms = here.clock.now_ms() + 19_000
        await here.clock.advance(11_600)

        (request,) = here.groups.requests
        assert len(request.queues) == 4
        assert member.reader.ended == []


async def test_only_the_present_lease_is_renewed_by_a_fetch() -> None:
    async with world() as here:
        member = await here.join()
        queue = Queue("orders", "broker-a", 1)
        here.groups.requests.clear()

        await here.clock.advance(11_000)
        member.sharing.fetched(HeldQueue(queue, 77, -1), here.clock.now_ms())
        await here.clock.advance(12_000)

        assert len(here.groups.requests) == 1


async def test_after_a_broken_connection_leases_are_renewed_at_once_and_once() -> None:
    async with world() as here:
        member = await here.join()
        here.groups.requests.clear()

        for held in member.reader.held.values():
            member.sharing.doubt(held)
        await here.clock.advance(1_000)

        (request,) = here.groups.requests
        assert len(request.queues) == 4
        assert member.reader.ended == []


async def test_what_cannot_be_renewed_is_lost_before_it_can_be_anybody_elses() -> None:
    async with world() as here:
        member = await here.join()
        last_ms = here.groups.leases["billing", "orders", 0].ends_ms
        here.cluster.lost.add(here.cluster.broker.address)

        await here.clock.advance(last_ms - here.clock.now_ms() - 3_100)
        assert member.reader.ended == []
        await here.clock.advance(200)

        assert sorted(q.number for q, lost in member.reader.ended if lost) == [0, 1, 2, 3]
        assert member.parts.counts.queues_lost == 4
        assert member.sharing.held(Queue("orders", "broker-a", 0)) is None
        here.cluster.lost.clear()
        await here.clock.advance(3_000)
        assert member.numbers == [0, 1, 2, 3]


async def test_a_lease_that_is_refused_is_lost_and_asked_for_anew() -> None:
    async with world() as here:
        member = await here.join()
        here.groups.leases["billing", "orders", 1].token = 99

        await here.clock.advance(23_000)

        queue = Queue("orders", "broker-a", 1)
        assert member.reader.ended == [(queue, True)]
        assert member.reader.held[queue].token > 4


async def test_what_a_broker_says_of_an_old_lease_is_not_heard() -> None:
    async with world() as here:
        member = await here.join()
        queue = Queue("orders", "broker-a", 1)

        member.sharing.lost(HeldQueue(queue, 77, -1))
        assert member.reader.ended == []
        member.sharing.lost(member.reader.held[queue])
        await here.clock.advance(10)

        assert member.reader.ended == [(queue, True)]
        assert member.numbers == [0, 1, 2, 3]


# ------------------------------------------------------------ the coordinator


def two_brokers() -> list[FakeBroker]:
    brokers = [FakeBroker("broker-a", "127.0.0.1:1"), FakeBroker("broker-b", "127.0.0.1:2")]
    for broker in brokers:
        add_topic(broker, "orders", 2)
    return brokers


async def test_without_a_coordinator_everybody_keeps_what_it_has() -> None:
    async with world() as here:
        first, second = await here.join(), await here.join()
        before = (first.numbers, second.numbers)
        for talk in list(here.cluster.conversations):
            talk.break_off()
        joined = len(here.groups.joins)

        await here.clock.advance(2_000)

        assert (first.numbers, second.numbers) == before
        assert first.reader.ended[2:] == second.reader.ended == []
        again = here.groups.joins[joined:]
        assert {join.member_id for join in again} == {
            first.sharing.member_id,
            second.sharing.member_id,
        }
        assert all(len(join.held) == 2 for join in again)


async def test_the_next_broker_of_the_ring_takes_over_and_gives_back() -> None:
    brokers = two_brokers()
    async with world(*brokers) as here:
        member = await here.join()
        (rightful,) = [broker for broker in brokers if broker.sharing.joins]
        (other,) = [broker for broker in brokers if broker is not rightful]
        here.cluster.lost.add(rightful.address)
        here.cluster.conversations[-1].break_off()

        await here.clock.advance(2_000)
        assert other.sharing.joins
        here.cluster.lost.clear()
        await here.clock.advance(32_000)

        assert len(rightful.sharing.joins) == 2
        assert not other.sharing.streams
        assert len(member.reader.held) == 4
        assert member.reader.ended == []


async def test_a_refusal_reaches_the_application_and_is_tried_again() -> None:
    async with world() as here:
        here.groups.refusals = [SubscriptionMismatch("b wants something else")]
        member = await here.join()

        assert [type(error) for error in member.reader.errors] == [SubscriptionMismatch]
        assert member.numbers == []
        await here.clock.advance(11_000)
        assert member.numbers == [0, 1, 2, 3]


async def test_who_is_replaced_ends_everything_and_stays_away() -> None:
    async with world() as here:
        member = await here.join(instance_id="one")
        (seat,) = here.groups.streams.values()
        seat.fail(MemberFenced("another has its place", because="instance"))

        await here.clock.advance(60_000)

        assert len(member.reader.ended) == 4
        assert all(lost for _, lost in member.reader.ended)
        assert [type(error) for error in member.reader.errors] == [MemberFenced]
        assert len(here.groups.joins) == 1


async def test_whose_session_is_over_joins_again_and_keeps_its_queues() -> None:
    async with world() as here:
        member = await here.join()
        (seat,) = here.groups.streams.values()
        seat.fail(MemberFenced("not heard of", because="session"))

        await here.clock.advance(1_000)

        assert len(here.groups.joins) == 2
        assert (member.numbers, member.reader.ended, member.reader.errors) == ([0, 1, 2, 3], [], [])


async def test_a_broker_without_groups_is_passed_over() -> None:
    brokers = two_brokers()
    async with world(*brokers) as here:
        rightful = coordinators("billing", {broker.name: broker.address for broker in brokers})[0]
        here.cluster.brokers[rightful].sharing.refusals = [NotServed("no groups here")]
        member = await here.join()

        assert len(member.reader.held) == 4
        assert member.reader.errors == []


@pytest.mark.parametrize("kind", [NotServed, Overloaded])
async def test_that_nobody_coordinates_reaches_the_application(kind: type[PocketMQError]) -> None:
    async with world() as here:
        here.groups.refusals = [kind("not here")]
        member = await here.join()
        await here.clock.advance(1_000)

        assert [type(error) for error in member.reader.errors] == [kind]
        assert len(here.groups.joins) == 1


def test_all_members_find_the_same_coordinator_in_a_ring_of_brokers() -> None:
    addresses = {"c": "3", "a": "1", "b": "2"}

    found = {group: coordinators(group, addresses) for group in ("billing", "g", "x" * 100)}

    assert found == {group: coordinators(group, dict(sorted(addresses.items()))) for group in found}
    assert all(
        ring in (["1", "2", "3"], ["2", "3", "1"], ["3", "1", "2"]) for ring in found.values()
    )
    assert coordinators("billing", {}) == []


async def test_heartbeats_go_out_three_times_a_session_and_say_what_changed() -> None:
    async with world() as here:
        await here.join(session_timeout_ms=9_000)
        await here.clock.advance(1)
        assert [len(beat.held) for beat in here.groups.heartbeats if beat.held_changed][-1] == 4
        here.groups.heartbeats.clear()

        await here.clock.advance(30_000)

        assert len(here.groups.heartbeats) == 10
        assert not any(beat.held_changed for beat in here.groups.heartbeats)


async def test_warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as here:
        await here.join()
        (seat,) = here.groups.streams.values()
        error = pb.Error(name="SubscriptionMismatch", message="b differs")
        seat.send(pb.MemberEvent(warning=error))
        await here.clock.advance(1)

    assert [r.reason for r in caplog.records if r.message == "the coordinator warns"] == [  # type: ignore[attr-defined]
        "b differs"
    ]


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
