"""A member and its coordinator: found, lost, refusing."""

from __future__ import annotations

import pytest

from pocketmq.client.consuming.membership import coordinators
from pocketmq.proto.errors import (
    MemberFenced,
    Overloaded,
    PocketMQError,
    SubscriptionMismatch,
    Unsupported,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .sharing_world import two_brokers, world


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
        rightful = coordinators("billing", [broker.name for broker in brokers])[0]
        of_name = {broker.name: broker for broker in here.cluster.brokers.values()}
        of_name[rightful].sharing.refusals = [Unsupported("no groups here")]
        member = await here.join()

        assert len(member.reader.held) == 4
        assert member.reader.errors == []


@pytest.mark.parametrize("kind", [Unsupported, Overloaded])
async def test_that_nobody_coordinates_reaches_the_application(kind: type[PocketMQError]) -> None:
    async with world() as here:
        here.groups.refusals = [kind("not here")]
        member = await here.join()
        await here.clock.advance(1_000)

        assert [type(error) for error in member.reader.errors] == [kind]
        assert len(here.groups.joins) == 1


def test_all_members_find_the_same_coordinator_in_a_ring_of_brokers() -> None:
    found = {group: coordinators(group, "cab") for group in ("billing", "g", "x" * 100)}

    assert found == {group: coordinators(group, "abc") for group in found}
    assert all(
        ring in (["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]) for ring in found.values()
    )
    assert coordinators("billing", []) == []


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

    told = [r.message for r in caplog.records if r.message.startswith("warning from coordinator")]
    assert told == ['warning from coordinator group=billing reason="b differs"']
