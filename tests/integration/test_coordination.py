"""Groups of a whole broker over the wire: joining, plans, sessions, leases, the fence."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    InvalidArgument,
    LeaseLost,
    MemberFenced,
    PocketMQError,
    SubscriptionMismatch,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.format.state_tables import parse_consumer_offsets

from .members import GROUP, Member, commit, join_of, lease, member, plan_of, release, state
from .whole_broker import PATH, TOPIC, Peer, broker, run_of, store_config

DELAY_MS = 100


async def settled(clock: VirtualClock) -> None:
    """Let what is on the wire arrive, then the changes be collected."""
    for _ in range(20):
        await asyncio.sleep(0.002)
    await clock.advance(DELAY_MS)


async def test_members_agree_on_who_reads_what(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        async with member(peer, join_of("a")) as a, member(peer, join_of("b")) as b:
            await settled(clock)
            told = await a.members()
            assert (told.generation, told.leader, told.strategy) == (1, "a", "average")
            assert [one.member_id for one in told.members] == ["a", "b"]
            assert told.members[0].subscriptions[0].topic == TOPIC
            # Who has nothing to plan is not told of everybody.
            assert list((await b.members()).members) == []

            await a.send(plan_of(1, a=[0, 1], b=[2, 3]))
            assert await a.assigned() == (1, [0, 1])
            assert await b.assigned() == (1, [2, 3])

            await b.say(leave=pb.Leave())
            assert await b.fate() is None
            await settled(clock)
            told = await a.members()
            assert (told.generation, [one.member_id for one in told.members]) == (2, ["a"])
            known = await state(peer)
            assert (known.generation, known.leader, known.rebalance_count) == (2, "a", 2)


async def test_a_lost_stream_keeps_its_place_until_the_session_is_over(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        async with member(peer, join_of("a", session_timeout_ms=6_000)) as a:
            async with member(peer, join_of("b")) as b:
                await settled(clock)
                await a.members()
                await a.send(plan_of(1, a=[0], b=[1]))
                assert await a.assigned() == (1, [0])
                await b.members()
                b.cut()
            async with member(peer, join_of("b", session_timeout_ms=7_000)) as b:
                # Nothing changed: the same generation, and the same share.
                assert (await b.members()).generation == 1
                assert await b.assigned() == (1, [1])
                await clock.advance(5_000)
                await a.say(heartbeat=pb.Heartbeat())
                await settled(clock)
                await clock.advance(2_500)
                fate = await b.fate()
                assert isinstance(fate, MemberFenced)
                assert fate.details["because"] == "session"
                assert (await a.members()).generation == 2


async def test_the_first_message_of_a_stream_joins(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        call = peer.channel.stream_stream(
            PATH + "JoinGroup", pb.MemberRequest.SerializeToString, pb.MemberEvent.FromString
        )()
        await call.write(pb.MemberRequest(heartbeat=pb.Heartbeat()))
        fate = await Member(call).fate()

    assert isinstance(fate, InvalidArgument)
    assert fate.details["field"] == "what"


async def test_who_wants_something_else_is_refused_with_the_difference(tmp_path: Path) -> None:
    clock = VirtualClock()
    red = pb.Subscription(topic=TOPIC, filter=pb.Filter(kind=pb.Filter.TAG, expression="red||blue"))
    same = pb.Subscription(
        topic=TOPIC, filter=pb.Filter(kind=pb.Filter.TAG, expression=" blue || red")
    )
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        await set_check(peer, "refuse")
        async with (
            member(peer, join_of("a", subscriptions=[red])),
            member(peer, join_of("b", subscriptions=[same])) as b,
        ):
            await settled(clock)
            assert (await b.members()).generation == 1
            async with member(peer, join_of("c")) as c:
                fate = await c.fate()
            assert isinstance(fate, SubscriptionMismatch)
            assert "'c' (127.0.0.1:" in fate.message
            assert "'a' (127.0.0.1:" in fate.message
            assert "'T': every message here, tags 'blue || red' there" in fate.message

            await set_check(peer, "warn")
            async with member(peer, join_of("c")) as c:
                event = await c.hear()
                assert event.warning.name == "SubscriptionMismatch"
                await settled(clock)
                assert (await c.members()).generation == 2


async def set_check(peer: Peer, check: str) -> None:
    known = await peer.ask("ListGroups", pb.GroupListRequest(), pb.GroupListReply)
    config = pb.GroupConfig(
        name="g", retry_max_times=16, consume_enable=True, subscription_check=check
    )
    is_there = any(one.name == "g" for one in known.groups)
    request = pb.CreateGroupRequest(group=config, update=is_there)
    made = await peer.ask("CreateGroup", request, pb.GroupReply)
    assert made.group.subscription_check == check


async def test_a_static_member_comes_back_into_its_place(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        async with (
            member(peer, join_of("a", instance_id="one")) as a,
            member(peer, join_of("b", instance_id="two")) as b,
        ):
            await settled(clock)
            await a.members()
            await a.send(plan_of(1, a=[0], b=[1]))
            await b.members()
            assert await b.assigned() == (1, [1])
            ((token, _),) = await lease(peer, "b", 1, instance_id="two")

            async with member(peer, join_of("c", instance_id="two")) as c:
                assert (await c.members()).generation == 1
                assert await c.assigned() == (1, [1])
                fate = await b.fate()
                assert isinstance(fate, MemberFenced)
                assert fate.details["because"] == "instance"
                # So does the queue's broker: the new token fences the old one.
                ((newer, _),) = await lease(peer, "c", 1, instance_id="two")
                assert newer > token
                assert await lease(peer, "b", 1, tokens=[token]) == [(0, "c")]
                assert await lease(peer, "b", 1, instance_id="two") == [(0, "c")]
                await c.say(leave=pb.Leave())
                assert await c.fate() is None
            async with member(peer, join_of("b", instance_id="two")) as again:
                assert isinstance(await again.fate(), MemberFenced)
            # The place is kept for the session.
            await settled(clock)
            assert len((await state(peer)).members) == 2
            assert (await state(peer)).generation == 1


async def test_a_change_of_a_topic_begins_a_new_generation(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        async with member(peer, join_of("a")) as a:
            await settled(clock)
            assert (await a.members()).generation == 1
            config = pb.TopicConfig(name=TOPIC, read_queues=8, write_queues=8, permission=6)
            request = pb.CreateTopicRequest(topic=config, update=True)
            await peer.ask("CreateTopic", request, pb.TopicReply)
            await settled(clock)
            assert (await a.members()).generation == 2
            # The leader has seen other brokers' queues change.
            await a.say(replan=pb.Replan(generation=1))
            await a.say(replan=pb.Replan(generation=2))
            await settled(clock)
            assert (await a.members()).generation == 3


async def test_a_queue_is_one_members_at_a_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        (first, _), (other, _) = await lease(peer, "a", 0, 1)
        assert first > 0
        assert other == first, "one request, one token"
        assert await lease(peer, "b", 0) == [(0, "a")]
        assert await lease(peer, "b", 0, 2) == [(0, "a"), (first + 1, "")]

        waiting = asyncio.ensure_future(lease(peer, "b", 0, wait_ms=30_000))
        later = asyncio.ensure_future(lease(peer, "c", 0, wait_ms=30_000))
        await settled(clock)
        await release(peer, "a", 0, first)
        ((second, _),) = await waiting
        assert second > first
        # It is not renewed: after a minute it is free.
        await clock.advance(30_000)
        assert await later == [(0, "b")]
        later = asyncio.ensure_future(lease(peer, "c", 0, wait_ms=60_000))
        await settled(clock)
        await clock.advance(30_000)
        ((third, _),) = await later
        assert third > second


async def test_an_older_generation_gives_way_to_one_that_waits(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        ((token, _),) = await lease(peer, "a", 0)
        old = asyncio.ensure_future(lease(peer, "b", 0, wait_ms=500, generation=4))
        await settled(clock)
        new = asyncio.ensure_future(lease(peer, "c", 0, wait_ms=30_000, generation=5))
        await settled(clock)

        await release(peer, "a", 0, token)

        assert (await new)[0][0] > token
        await clock.advance(1_000)
        assert await old == [(0, "c")]


async def test_only_the_holder_commits(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"x"] * 5))
        await commit(peer, 1)
        ((token, _),) = await lease(peer, "a", 0)

        with pytest.raises(LeaseLost, match="is owned by member 'a'"):
            await commit(peer, 2)
        with pytest.raises(LeaseLost):
            await commit(peer, 2, lease=token - 1)
        await commit(peer, 3, lease=token)
        await commit(peer, 0, force=True)
        # That ended the lease: the holder starts again from there.
        with pytest.raises(LeaseLost, match="has no owner"):
            await commit(peer, 4, lease=token)
        request = pb.LeaseRequest(
            group="g", member_id="a", queues=[pb.QueueLease(topic=TOPIC, queue=0)]
        )
        reply = await peer.ask("LeaseQueues", request, pb.LeaseReply)
        assert reply.queues[0].committed == 0
        assert reply.queues[0].token > token


async def test_a_group_that_was_moved_back_stays_there_after_a_kill(tmp_path: Path) -> None:
    clock = VirtualClock()  # It stands: what is saved every few seconds is not.
    offsets = tmp_path / "store/config/consumerOffset.json"
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"x"] * 5))
        await commit(peer, 4)
        assert not offsets.exists()
        await commit(peer, 4, force=True)
        await commit(peer, 1, force=True)
        assert parse_consumer_offsets(offsets.read_text()).offsets == {f"{TOPIC}@{GROUP}": {0: 1}}


async def test_only_the_holder_fetches_as_such(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"x"]))
        ((token, _),) = await lease(peer, "a", 0)

        def request(lease: int) -> pb.FetchRequest:
            return pb.FetchRequest(topic=TOPIC, group="g", lease=lease)

        assert (await fetched(peer, request(0))).next_offset == 1
        assert (await fetched(peer, request(token))).next_offset == 1
        assert (await fetched(peer, request(token + 1))).error.name == "LeaseLost"


async def fetched(peer: Peer, request: pb.FetchRequest) -> pb.FetchReply:
    stream = peer.channel.stream_stream(
        PATH + "Fetch", pb.FetchRequest.SerializeToString, pb.FetchReply.FromString
    )()
    await stream.write(request)
    reply: pb.FetchReply = await stream.read()
    await stream.done_writing()
    return reply


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "lost"])
async def test_a_lease_outlives_the_broker(tmp_path: Path, kept: bool) -> None:
    clock = VirtualClock()
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"x"] * 5))
        ((token, _),) = await lease(peer, "a", 0)
    if not kept:
        shutil.rmtree(tmp_path / "store" / "pocketmq" / "tables")
    await clock.advance(1_000)
    async with broker(store_config(tmp_path), clock=clock) as (_, peer):
        if kept:
            assert await lease(peer, "b", 0) == [(0, "a")]
        await commit(peer, 2, lease=token)
        assert await lease(peer, "a", 0, tokens=[token]) == [(token, "")]
        assert await lease(peer, "b", 0) == [(0, "a")]
        await release(peer, "a", 0, token)
        ((newer, _),) = await lease(peer, "b", 0)
        assert newer > token


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.LeaseRequest(group="g", member_id="a"), "queues"),
        (pb.LeaseRequest(group="g", queues=[pb.QueueLease(topic=TOPIC)]), "member_id"),
        (
            pb.LeaseRequest(group="g", member_id="a", queues=[pb.QueueLease(topic=TOPIC)] * 2),
            "queues",
        ),
        (
            pb.LeaseRequest(
                group="g", member_id="a", lease_ms=5, queues=[pb.QueueLease(topic=TOPIC)]
            ),
            "lease_ms",
        ),
        (
            pb.LeaseRequest(group="g", member_id="a", queues=[pb.QueueLease(topic=TOPIC, queue=9)]),
            "queue",
        ),
    ],
    ids=["no queues", "no member", "twice", "short", "no such queue"],
)
async def test_a_bad_request_for_leases_is_refused(
    tmp_path: Path, request_: pb.LeaseRequest, field: str
) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()

        with pytest.raises(PocketMQError) as caught:
            await peer.ask("LeaseQueues", request_, pb.LeaseReply)

    assert caught.value.details["field"] == field
